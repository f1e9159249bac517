//! The figures of `make bench`: medians with their spread, ratios within one run, and the machine's name.
//!
//! Every comparison with a bare client sends the same requests to the same API server in the same run, since the
//! cost of a request depends on the server. A run of all parts writes the tables in README and in
//! `figures.md` and `hostile-plugins.md` of `host/docs/reference`. `make bench PARTS="call cluster"` measures only the named parts (call,
//! convert, reload, cluster, telemetry, hostile) and prints their rows; `PARTS="hostile loop drip"` measures only those
//! hostile plugins.

#![allow(missing_docs, unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support.rs"]
mod support;

mod call;
mod cluster;
mod convert;
mod hostile;
mod reload;
mod rows;
mod table;
mod telemetry;

use std::process::ExitCode;

use table::Table;

const PARTS: [&str; 6] = ["call", "convert", "reload", "cluster", "telemetry", "hostile"];

fn main() -> ExitCode {
    // `cargo test --benches` and similar commands only check that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let (parts, cases): (Vec<&str>, Vec<&str>) = arguments
        .iter()
        .map(String::as_str)
        .partition(|argument| PARTS.contains(argument));
    let is_known = |case: &&str| rows::HOSTILE.iter().any(|row| row.case == *case);
    if let Some(unknown) = cases.iter().find(|case| !is_known(case)) {
        eprintln!("{unknown:?} is neither a part nor a hostile plugin");
        return ExitCode::FAILURE;
    }
    let is_complete = arguments.is_empty();
    let wanted = |part: &str| is_complete || parts.contains(&part) || part == "hostile" && !cases.is_empty();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut table = Table::new();
    let hostile = runtime.block_on(async {
        if wanted("call") {
            call::run(&mut table).await;
        }
        if wanted("convert") {
            convert::run(&mut table).await;
        }
        if wanted("reload") {
            reload::run(&mut table).await;
        }
        if wanted("cluster") {
            cluster::run(&mut table).await;
        }
        if wanted("telemetry") {
            telemetry::run(&mut table).await;
        }
        if wanted("hostile") {
            Some(hostile::run(&mut table, &cases).await)
        } else {
            None
        }
    });
    let figures = table.text(|_| true);
    println!("\n{figures}");
    if let Some(hostile) = &hostile {
        println!("\n{hostile}");
        if is_complete {
            table::write("README.md", &table.text(|row| rows::README.contains(&row.what)));
            table::write(rows::PAGE, &figures);
            table::write("host/docs/reference/hostile-plugins.md", hostile);
        }
    }
    ExitCode::SUCCESS
}
