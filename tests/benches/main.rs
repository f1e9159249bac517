//! The figures of `make bench`: medians with their spread, ratios within one run, and the machine's name.
//!
//! Every comparison with a bare client sends the same requests to the same API server in the same run, since the
//! cost of a request depends on the server. A run of all parts writes the tables in README and in
//! `host/docs/reference/figures.md`. `make bench PARTS="call cluster"` measures only the named parts (call, convert, reload,
//! cluster) and prints their rows.

#![allow(missing_docs, unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support.rs"]
mod support;

mod call;
mod cluster;
mod convert;
mod reload;
mod rows;
mod table;

use std::process::ExitCode;

use table::Table;

fn main() -> ExitCode {
    // `cargo test --benches` and similar commands only check that it builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let parts: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut table = Table::new();
    runtime.block_on(async {
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
    });
    let figures = table.text(|_| true);
    println!("\n{figures}");
    if parts.is_empty() {
        table::write("README.md", &table.text(|row| row.in_readme));
        table::write(rows::PAGE, &figures);
    }
    let passed = table.passed();
    for row in &passed {
        eprintln!("error: {row:?} is larger than its bound");
    }
    ExitCode::from(u8::from(!passed.is_empty()))
}
