//! A hostile tenant beside a quiet one. `make tenant` runs it.
//!
//! The host runs Controllers of the cluster, with the permissions that `operator-host rbac` prints and in a control group of
//! 512 MiB. The tenant may create Controllers, and ConfigMaps in its own namespace. While each of its attacks goes on, the time is
//! measured from the creation of an Echo of the other team to its first pod. The host must never be killed, the median must be at
//! most twice that of a quiet cluster, and what is refused must name the field or the ceiling.
//!
//! Modules in reading order: `attacks` one function each, `stage` the cluster, the host and the two teams, `group` the control
//! group.

mod attacks;
mod group;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use attacks::ATTACKS;
use stage::Stage;

/// How many Echoes are measured without an attack.
const QUIET: usize = 15;
/// What the machine itself may add to a median: the API server shares its processors with the compiler.
const NOISE: Duration = Duration::from_millis(250);

#[derive(Parser)]
#[command(about = "A hostile tenant beside a quiet one, against a host in a control group of 512 MiB")]
struct Args {
    /// Make only the attacks whose names contain one of these words, such as `bombs,many`
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    attacks: Vec<String>,
    /// Path of the operator-host program
    #[arg(long, value_name = "FILE")]
    host: PathBuf,
    /// The plugin of Echo
    #[arg(long, value_name = "FILE")]
    plugin: PathBuf,
    /// The definitions of Echo and of Controllers
    #[arg(long, value_name = "FILE", required = true)]
    crds: Vec<PathBuf>,
    /// Folder for the host's log
    #[arg(long, value_name = "FOLDER")]
    keep: PathBuf,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let mut stage = Stage::build(&args).await?;
    let quiet = stage.quiet(QUIET).await?;
    println!("quiet: an Echo has its first pod after {quiet:?} (median)");
    let mut failures = Vec::new();
    let is_asked = |name: &str| {
        args.attacks.is_empty() || args.attacks.iter().any(|words| name.contains(words.as_str()))
    };
    for attack in ATTACKS.iter().filter(|attack| is_asked(attack.name)) {
        let outcome = match (attack.make)(&mut stage).await {
            Ok(outcome) => outcome,
            Err(error) => {
                println!("{}: {error:#} FAILED", attack.name);
                failures.push(String::new());
                if let Some(ended) = stage.check_host() {
                    println!("  {ended}");
                }
                break;
            }
        };
        let mut problems = outcome.problems;
        if outcome.echo > 2 * quiet + NOISE {
            problems.push(format!("an Echo takes {:?}, quiet {quiet:?}", outcome.echo));
        }
        problems.extend(stage.check_host());
        problems.extend(stage.unnamed_refusals().await?);
        println!(
            "{}: Echo {:?}, peak {} MB, {} threads; {}{}",
            attack.name,
            outcome.echo,
            stage.peak()? / 1_000_000,
            outcome.threads,
            outcome.notes,
            if problems.is_empty() { "" } else { " FAILED" }
        );
        for problem in &problems {
            println!("  {problem}");
        }
        failures.extend(problems);
        stage.tidy_up().await?;
    }
    Ok(match failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => {
            println!("the host's log is {}", stage.log().display());
            ExitCode::FAILURE
        }
    })
}
