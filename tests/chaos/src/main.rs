//! Breaks everything around the host at random, and checks that the cluster ends up in exactly the expected state.
//!
//! `make chaos ROUNDS=n SEED=s` runs it. A round has its own namespace: users create parents of every sample and
//! change them as fast as they can, while faults begin and end. After the last fault everything must reach the
//! exact state within a limit, stay unchanged, and have been reached without a needless or forbidden write.
//!
//! The round's seed determines what users do and which faults occur; their exact timing is not deterministic. Ten
//! consecutive seeds (1230 to 1239) have hosts of the same shape, which go on from one round to the next.
//!
//! Modules in reading order: `draw` random choices, `oracle` expected objects, `users` their actions, `faults` the
//! failures, `check` the final checks, `rollouts` workarounds for Kubernetes, `stage` with `fleet`, `files`, `objects` and
//! `outside` the environment, `report` the output.

mod check;
mod draw;
mod faults;
mod files;
mod fleet;
mod objects;
mod oracle;
mod outside;
mod report;
mod rollouts;
mod stage;
mod users;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use check::{History, Violation, Want};
use draw::Draw;
use faults::{Fault, Planned, Possible};
use files::Edit;
use fleet::Shape;
use oracle::Sample;
use report::{Outcome, Report};
use stage::{Paths, Stage};
use users::Crowd;

/// How many consecutive seeds have hosts of the same shape.
const SAME_SHAPE: u64 = 10;
/// The minimum time for the users' actions.
const STORM: Duration = Duration::from_millis(1500);

#[derive(Parser)]
#[command(
    about = "Breaks everything around the host at random, and checks that the cluster ends up exactly right"
)]
struct Args {
    /// Number of rounds
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Seed of the first round; later rounds count up [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// First run the rounds of the seeds in this file, at most ROUNDS: one per line, followed by what it found
    #[arg(long, value_name = "FILE")]
    regressions: Option<PathBuf>,
    /// Draw only faults whose names contain one of these words, such as `host,etcd`
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    faults: Vec<String>,
    /// Time in seconds within which everything must become exact after the last fault
    #[arg(long, default_value_t = 60)]
    settle: u64,
    /// Path of the operator-host program
    #[arg(long, value_name = "FILE")]
    host: PathBuf,
    /// Folder with the built plugins
    #[arg(long, value_name = "FOLDER")]
    plugins: PathBuf,
    /// File or folder with definitions of the samples
    #[arg(long, value_name = "PATH", required = true)]
    crds: Vec<PathBuf>,
    /// Folder for the logs and files of a failed round
    #[arg(long, value_name = "FOLDER")]
    keep: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    fleet::unshare_mounts();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(run(&args))
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut seeds = match &args.regressions {
        Some(file) => regressions(file)?,
        None => Vec::new(),
    };
    // Hosts of another shape take longer to start than a round takes.
    seeds.sort_by_key(|seed| shape(*seed));
    let fresh = args.rounds.saturating_sub(seeds.len()) as u64;
    let first = args
        .seed
        .unwrap_or_else(|| jiff::Timestamp::now().as_second().unsigned_abs() * SAME_SHAPE);
    seeds.extend(first..first + fresh);
    seeds.truncate(args.rounds);
    let mut report = Report::begin(seeds.len());
    let mut play = Play::new(args);
    for (number, seed) in seeds.into_iter().enumerate() {
        let mut outcome = play.round(seed).await?;
        if !outcome.is_exact() {
            play.keep_evidence(seed, &mut outcome).await;
            play.stage = None;
        }
        report.add(number + 1, seed, &outcome);
    }
    Ok(report.end())
}

/// Returns the shape of the hosts of a round.
fn shape(seed: u64) -> Shape {
    Shape::draw(&mut Draw::new(seed / SAME_SHAPE))
}

/// Reads the seeds of a file: the first word of each line that begins with a digit.
fn regressions(file: &Path) -> anyhow::Result<Vec<u64>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let seeds = text
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok());
    Ok(seeds.collect())
}

/// The environment as left by the last round, if that succeeded.
struct Play<'a> {
    args: &'a Args,
    paths: Paths,
    stage: Option<(Stage, History)>,
}

impl<'a> Play<'a> {
    fn new(args: &'a Args) -> Self {
        Self {
            args,
            paths: Paths {
                host: args.host.clone(),
                plugins: args.plugins.clone(),
                crds: args.crds.clone(),
                compiled: args.keep.join("cache"),
            },
            stage: None,
        }
    }

    async fn round(&mut self, seed: u64) -> anyhow::Result<Outcome> {
        self.set_up(shape(seed)).await?;
        let (stage, history) = self.stage.as_mut().context("a stage")?;
        tokio::select! {
            outcome = round(stage, history, seed, self.args) => outcome,
            broken = stage.tend() => Err(broken.err().context("hosts are tended for ever")?),
        }
    }

    /// Starts hosts of this shape, on the control plane of the previous ones, unless they run already.
    async fn set_up(&mut self, shape: Shape) -> anyhow::Result<()> {
        let current = self.stage.as_mut().map(|(stage, _)| stage.fleet.get_mut().shape);
        match &mut self.stage {
            Some(_) if current == Some(shape) => {}
            Some((stage, history)) => {
                stage.recast(&self.paths, shape).await?;
                history.forget_leases();
            }
            None => {
                let stage = Stage::build(&self.paths, shape).await?;
                if !stage.fleet.lock().await.has_disks() {
                    eprintln!(
                        "disk-full is left out: nothing can be mounted here; it needs root or a container that may"
                    );
                }
                let history = History::new(&stage.audit_log);
                self.stage = Some((stage, history));
            }
        }
        Ok(())
    }

    /// Saves logs, audit log and configuration of a failed round, prints the failures, and adds to each what the
    /// hosts last logged about its object, since the last lines are all that is left of a run elsewhere.
    async fn keep_evidence(&self, seed: u64, outcome: &mut Outcome) {
        let Some((stage, _)) = &self.stage else { return };
        let folder = self.args.keep.join(seed.to_string());
        let mut kept = std::fs::create_dir_all(&folder);
        let mut keep = |from: &Path, name: &str| {
            kept = std::mem::replace(&mut kept, Ok(()))
                .and_then(|()| std::fs::copy(from, folder.join(name)).map(drop));
        };
        let fleet = stage.fleet.lock().await;
        for (name, log) in fleet.logs() {
            keep(&log, &format!("host-{name}.log"));
        }
        keep(&stage.audit_log, "audit.log");
        keep(&stage.outside.log(), "egress.log");
        keep(&stage.files.config(), "config.yaml");
        let server = stage.server.lock().await;
        for log in ["kube-apiserver.log", "kube-controller-manager.log", "etcd.log"] {
            keep(&server.data_dir().join(log), log);
        }
        let objects = check::all_objects(&stage.client, &format!("round-{seed}")).await;
        kept = kept.and_then(|()| std::fs::write(folder.join("objects.json"), objects));
        for fault in &outcome.faults {
            eprintln!("{fault}");
        }
        for fault in &mut outcome.faults {
            let logged = fault
                .object_name()
                .map(|name| fleet.last_logged(&format!("round-{seed}/{name}"), 4));
            fault.add(logged.into_iter().flatten());
        }
        eprint!("{}", fleet.log_tails(30));
        match kept {
            Ok(()) => eprintln!("logs, audit log and configuration are in {}", folder.display()),
            Err(error) => eprintln!("could not keep the logs in {}: {error}", folder.display()),
        }
        eprintln!("again: make chaos ROUNDS=1 SEED={seed}");
    }
}

async fn round(stage: &Stage, history: &mut History, seed: u64, args: &Args) -> anyhow::Result<Outcome> {
    let draw = Draw::new(seed);
    let (shape, has_disks) = {
        let fleet = stage.fleet.lock().await;
        (fleet.shape, fleet.has_disks())
    };
    let possible = Possible {
        shape,
        has_disks,
        only: &args.faults,
    };
    let plan = faults::plan(&mut draw.fork(0), &possible)?;
    let mut outcome = Outcome::new(
        shape,
        plan.iter().map(|planned| planned.fault.to_string()).collect(),
    );
    let namespace = format!("round-{seed}");
    control_plane::create_namespace(&stage.client, &namespace).await?;
    if let Err(fault) = play(stage, history, &draw, &plan, &namespace, args, &mut outcome).await {
        outcome.faults.push(fault);
    }
    let crashes = stage.fleet.lock().await.take_crashes();
    outcome.faults.extend(crashes.into_iter().map(Violation::new));
    if outcome.is_exact() {
        stage.fleet.lock().await.clear_logs();
        stage::delete_namespace(&stage.client, &namespace).await?;
        drop(stage.wire.take_seen());
    }
    Ok(outcome)
}

/// Runs a round and returns the first deviation that ends it; the others are added to the outcome.
async fn play(
    stage: &Stage,
    history: &mut History,
    draw: &Draw,
    plan: &[Planned],
    namespace: &str,
    args: &Args,
    outcome: &mut Outcome,
) -> Result<(), Violation> {
    let (client, limit) = (&stage.client, Duration::from_secs(args.settle));
    history.begin(namespace)?;
    let mut crowd = Crowd::new(client, namespace, draw);
    crowd.move_in().await;
    // The very first hosts have to compile the plugins.
    let calm = check::until(stage, namespace, Want::Exact, history, limit * 5).await;
    calm.map_err(|fault| fault.when("before anything broke"))?;
    let kept = stage.fleet.lock().await.keep_compiled();
    kept.map_err(|error| Violation::new(format!("{error:#}")))?;
    let data = check::retained(client, namespace).await?;

    let over = AtomicBool::new(false);
    let weather = async {
        let (done, ()) = tokio::join!(faults::carry_out(stage, plan), tokio::time::sleep(STORM));
        over.store(true, Ordering::Relaxed);
        done
    };
    let outside = draw.fork(99);
    let outside = stage.outside.storm(&outside, &over);
    let (done, (), ()) = tokio::join!(weather, crowd.storm(&over, &stage.closed), outside);
    done.map_err(|error| Violation::new(format!("{error:#}")).when("while a fault began or ended"))?;
    let (mut reasons, actions) = crowd.calm_down().await;
    outcome.actions = actions;
    for planned in plan {
        // Without its Controller, what is decorated loses its children.
        if let Fault::DefinitionRemoved(sample)
        | Fault::ConfigEdited(Edit::Without(sample @ Sample::Decorated)) = planned.fault
        {
            reasons.add_deletions(sample);
        }
    }

    let settled = check::until(stage, namespace, Want::Exact, history, limit).await;
    (outcome.settled, outcome.counts) = settled.map_err(|fault| fault.when("after the last fault"))?;
    outcome.writes = history.writes().count();
    outcome.faults.extend(history.faults(outcome.shape, &reasons));
    outcome.memory = stage.fleet.lock().await.memory();
    outcome.faults.extend(check::growth(&outcome.memory));
    let after = check::retained(client, namespace).await?;
    outcome
        .faults
        .extend(check::lost(&data, &after, &history.retained_created()));

    users::leave(client, namespace, &mut reasons)
        .await
        .map_err(|error| Violation::new(format!("cannot delete the parents: {error}")))?;
    let gone = check::until(stage, namespace, Want::Gone, history, limit).await;
    (outcome.gone, _) = gone.map_err(|fault| fault.when("after all parents were deleted"))?;
    let left = check::retained(client, namespace).await?;
    outcome.faults.extend(check::lost(&after, &left, &[]));
    outcome.faults.extend(history.faults(outcome.shape, &reasons));
    Ok(())
}
