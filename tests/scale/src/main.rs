//! Measures how the host's cost grows: `make bench-scale` and `make soak`.
//!
//! A part starts its own control plane, lets the host (and, in turn, a native kube-rs operator) do the same work, and reads from
//! `/proc` and from the API server's metrics what that cost. It prints a table for `host/docs/reference/scale.md`.
//!
//! Modules in reading order: `stage` the control plane and the measured processes, `plugins` copies of Echo, `echoes`
//! parents and their observer; the parts `controllers`, `parents`, `together`, `foreign`, `edit`, `reads`, `decorated`, `externals` and `soak`;
//! `native` the other operator; `functions` finds out which functions of the host run meanwhile; `stats` computes, `report` prints.

mod controllers;
mod decorated;
mod echoes;
mod edit;
mod externals;
mod foreign;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod functions;
mod native;
mod parents;
mod plugins;
mod reads;
mod report;
mod soak;
mod stage;
mod stats;
mod together;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// How many parents the host and the native operator reconcile at the same time.
const CONCURRENCY: usize = 10;

#[derive(Parser)]
#[command(about = "Measures how the host's cost grows with controllers and objects")]
enum Command {
    /// Measures, and prints tables
    Measure(Measure),
    /// Lets users change objects for a long time, and fails when the host grows
    Soak(Soak),
    /// Prints a linker script with the functions that `--record` has found
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    Order {
        #[arg(value_name = "FILE")]
        list: PathBuf,
    },
    #[command(subcommand, hide = true)]
    Contender(Contender),
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[command(hide = true)]
    Record {
        list: PathBuf,
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// The program that is compared with the host, a process of its own.
#[derive(Subcommand)]
enum Contender {
    Native { namespace: String },
}

/// What every measurement needs.
#[derive(Args)]
struct Common {
    /// Path of the operator-host program
    #[arg(long, value_name = "FILE")]
    host: PathBuf,
    /// Path of the Echo plugin
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// File with Echo's CustomResourceDefinition
    #[arg(long, value_name = "FILE")]
    crd: PathBuf,
    /// File for the names of the host's functions that ran, which makes every figure meaningless (x86-64 only)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Args)]
struct Measure {
    #[command(flatten)]
    common: Common,
    /// Measure only these parts [default: all]
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// How often each figure is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Numbers of controllers, in ascending order
    #[arg(long, value_delimiter = ',', default_value = "1,4,10,100")]
    controllers: Vec<usize>,
    /// Numbers of parents
    #[arg(long, value_delimiter = ',', default_value = "100,500,1000,5000")]
    parents: Vec<usize>,
    /// Numbers of controllers that have parents
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    across: Vec<usize>,
    /// Numbers of foreign pods, in ascending order
    #[arg(long, value_delimiter = ',', default_value = "0,50000")]
    foreign: Vec<usize>,
    /// Numbers of objects of a kind of which some are decorated
    #[arg(long, value_delimiter = ',', default_value = "100,10000")]
    decorated: Vec<usize>,
    /// Numbers of Externals
    #[arg(long, value_delimiter = ',', default_value = "500,5000")]
    externals: Vec<usize>,
    /// Number of parents that are resynced while others are edited
    #[arg(long, default_value_t = 5000)]
    resynced: usize,
    /// Numbers of namespaces that a parent reads
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    read: Vec<usize>,
}

#[derive(Args)]
struct Soak {
    #[command(flatten)]
    common: Common,
    /// Duration of the churn
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
}

/// A section of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Start and idle memory, by number of controllers
    Controllers,
    /// Time, processor time and memory, by number of parents
    Parents,
    /// The same number of parents, by number of controllers
    Together,
    /// Memory, by number of pods of others
    Foreign,
    /// Latency of an edit during a resync
    Edit,
    /// A parent that reads objects of many namespaces
    Reads,
    /// A Controller that decorates a few objects, by number of all objects of the kind
    Decorated,
    /// Time and memory of `operator-host egress`, by number of Externals
    Externals,
}

fn main() -> anyhow::Result<ExitCode> {
    let command = Command::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        match command {
            Command::Measure(measure) => run(measure).await,
            Command::Soak(soak) => soak::run(&soak.common, soak.minutes).await,
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Command::Order { list } => {
                let list = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
                print!("{}", functions::order(&list));
                Ok(ExitCode::SUCCESS)
            }
            #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
            Command::Record {
                list,
                program,
                arguments,
            } => functions::record(list, program, arguments).await,
            Command::Contender(Contender::Native { namespace }) => native::run(&namespace).await,
        }
    })
}

async fn run(measure: Measure) -> anyhow::Result<ExitCode> {
    for part in Part::value_variants() {
        if !measure.only.is_empty() && !measure.only.contains(part) {
            continue;
        }
        eprintln!("{part:?}");
        let table = match part {
            Part::Controllers => controllers::run(&measure).await?,
            Part::Parents => parents::run(&measure).await?,
            Part::Together => together::run(&measure).await?,
            Part::Foreign => foreign::run(&measure).await?,
            Part::Edit => edit::run(&measure).await?,
            Part::Reads => reads::run(&measure).await?,
            Part::Decorated => decorated::run(&measure).await?,
            Part::Externals => externals::run(&measure).await?,
        };
        println!("{part:?}\n\n{table}");
    }
    Ok(ExitCode::SUCCESS)
}
