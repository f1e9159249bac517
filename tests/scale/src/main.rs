//! Measures how the host's cost grows: `make bench-scale` and `make soak`.
//!
//! A part starts its own control plane, lets the host (and, in turn, a bare client and a native kube-rs operator) do
//! the same work, and reads from `/proc` and from the API server's metrics what that cost. The results are kept in
//! `scale/results.json` beside the page that is written from them, so that a part can be measured again alone.
//!
//! Modules in reading order: `stage` the control plane and the measured processes, `plugins` copies of Echo, `echoes`
//! parents and their observer; the parts `controllers`, `parents`, `together`, `foreign`, `edit` and `soak`; the contenders
//! `bare` and `native`; `process` reads `/proc`, `cgroup` control groups, `stats` computes, `report` with `plot` writes the page, `progress` prints.

mod bare;
mod cgroup;
mod controllers;
mod echoes;
mod edit;
mod foreign;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod native;
mod parents;
mod plot;
mod plugins;
mod process;
mod progress;
mod report;
mod soak;
mod stage;
mod stats;
mod together;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use report::Results;

/// How many parents each contender reconciles at the same time.
const CONCURRENCY: usize = 10;

#[derive(Parser)]
#[command(about = "Measures how the host's cost grows with controllers and objects")]
enum Command {
    /// Measures, and writes the page
    Measure(Measure),
    /// Lets users change objects for a long time, and fails when the host grows
    Soak(Soak),
    #[command(subcommand, hide = true)]
    Contender(Contender),
}

/// The programs that are compared with the host. Each is a process of its own.
#[derive(Subcommand)]
enum Contender {
    Bare { namespace: String },
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
    /// Folder for `scale.md`, and for `scale/` with plots and results
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
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
    #[arg(long, value_delimiter = ',', default_value = "1,4,10,60,100")]
    controllers: Vec<usize>,
    /// Numbers of parents
    #[arg(long, value_delimiter = ',', default_value = "100,500,1000,5000,10000")]
    parents: Vec<usize>,
    /// Numbers of controllers that have parents
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    across: Vec<usize>,
    /// Who reconciles the parents
    #[arg(
        long = "by",
        value_delimiter = ',',
        default_value = "host,bare,native",
        value_name = "CONTENDERS"
    )]
    contenders: Vec<parents::By>,
    /// Numbers of foreign pods, in ascending order
    #[arg(long, value_delimiter = ',', default_value = "0,10000,50000")]
    foreign: Vec<usize>,
    /// Number of parents that are resynced while others are edited
    #[arg(long, default_value_t = 5000)]
    resynced: usize,
}

#[derive(Args)]
struct Soak {
    #[command(flatten)]
    common: Common,
    /// Duration of the churn
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
}

/// A part of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// Start and idle memory, by number of controllers
    #[value(aliases = ["memory", "start"])]
    Controllers,
    /// Time, processor time and memory, by number of parents
    Parents,
    /// The same number of parents, by number of controllers
    Together,
    /// Memory, by number of pods of others
    Foreign,
    /// Latency of an edit during a resync
    Edit,
    /// A long time of churn
    #[value(skip)]
    Soak,
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
            Command::Soak(soak) => {
                let (section, flat) = soak::run(&soak.common, soak.minutes).await?;
                Results::of(&soak.common.output)?.replace(section)?;
                Ok(if flat {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                })
            }
            Command::Contender(Contender::Bare { namespace }) => bare::run(&namespace).await,
            Command::Contender(Contender::Native { namespace }) => native::run(&namespace).await,
        }
    })
}

async fn run(measure: Measure) -> anyhow::Result<ExitCode> {
    let mut results = Results::of(&measure.common.output)?;
    let wanted = |part| measure.only.is_empty() || measure.only.contains(&part);
    // Each part is written when it is measured: a later one that fails loses nothing.
    for part in Part::value_variants() {
        if !wanted(*part) {
            continue;
        }
        let section = match part {
            Part::Controllers => controllers::run(&measure).await?,
            Part::Parents => parents::run(&measure).await?,
            Part::Together => together::run(&measure).await?,
            Part::Foreign => foreign::run(&measure).await?,
            Part::Edit => edit::run(&measure).await?,
            Part::Soak => continue,
        };
        results.replace(section)?;
    }
    Ok(ExitCode::SUCCESS)
}
