//! A long time of churn: does the host grow?

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control_plane::Options;
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::report::{Table, megabytes};
use crate::stage::{GROUP, Running, Stage};
use crate::stats::{figure, grew, quarters};
use crate::{Common, echoes};
use control_plane::process;

const SAMPLE: Duration = Duration::from_secs(10);
const USERS: usize = 4;
/// How many names each user has.
const NAMES: u64 = 25;
/// The pause of a user between two actions.
const PAUSE: Duration = Duration::from_millis(50);

/// What is sampled: its name, how much it may grow beyond 10 %, and the figure.
struct Series {
    name: &'static str,
    slack: f64,
    values: Vec<f64>,
}

/// Runs the churn, prints the table, and fails when something grew.
pub(crate) async fn run(common: &Common, minutes: f64) -> anyhow::Result<ExitCode> {
    // With the garbage collector and a node that makes pods Ready.
    let stage = Stage::start_with(common, Options::default()).await?;
    let mut host = stage.start_host(&stage.cache("compiled"))?;
    host.until_ready(1).await?;
    let mut users = tokio::task::JoinSet::new();
    for user in 0..USERS {
        let namespace = format!("user-{user}");
        stage.namespace(&namespace).await?;
        users.spawn(churn(stage.client.clone(), namespace));
    }
    let series = |name, slack| Series {
        name,
        slack,
        values: Vec::new(),
    };
    let mut all = [
        series("resident memory, MB", 0.0),
        series("file descriptors", 2.0),
        series("connections", 2.0),
        series("threads", 2.0),
        series("queue", 10.0),
    ];
    let start = Instant::now();
    let mut ticks = tokio::time::interval(SAMPLE);
    while start.elapsed().as_secs_f64() < minutes * 60.0 {
        ticks.tick().await;
        host.check()?;
        let sampled = sample(&host).await?;
        for (series, value) in all.iter_mut().zip(sampled) {
            series.values.push(value);
        }
    }
    let reconciles = host.metrics().await?.sum("operator_host_reconciles_total", "");
    users.shutdown().await;

    let mut table = Table::new(" | first quarter | second | third | last | flat");
    let mut flat = true;
    for series in &all {
        let grew = grew(&series.values, series.slack);
        flat &= !grew;
        let mut row = vec![series.name.to_owned()];
        row.extend(quarters(&series.values).map(figure));
        row.push(if grew { "**no**" } else { "yes" }.to_owned());
        table.texts(row);
    }
    let rate = reconciles / (minutes * 60.0);
    println!("Soak: {USERS} users with at most {NAMES} Echos each, {rate:.0} reconciles a second\n\n{table}");
    host.stop().await;
    stage.shutdown().await;
    Ok(if flat {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn sample(host: &Running) -> anyhow::Result<[f64; 5]> {
    let (memory, handles) = (process::memory(host.id())?, process::handles(host.id())?);
    Ok([
        megabytes(memory.resident),
        handles.descriptors as f64,
        handles.sockets as f64,
        handles.threads as f64,
        host.metrics().await?.sum("operator_host_queue_depth", ""),
    ])
}

/// What a user does next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Apply { replicas: usize, image: u64 },
    Delete,
}

/// Returns the name and the action of a step: one deletion to five changes. The same for each run.
fn action(step: u64) -> (String, Action) {
    let mut hasher = DefaultHasher::new();
    step.hash(&mut hasher);
    let drawn = hasher.finish();
    let name = format!("e{}", drawn % NAMES);
    let action = match drawn / NAMES % 6 {
        0 => Action::Delete,
        _ => Action::Apply {
            replicas: (drawn / 1_000 % 6) as usize,
            image: drawn / 10_000 % 3,
        },
    };
    (name, action)
}

async fn churn(client: Client, namespace: String) {
    let echoes = echoes::api(&client, &namespace);
    for step in 0.. {
        let (name, action) = action(step);
        let outcome = match action {
            Action::Apply { replicas, image } => {
                let mut echo = echoes::echo(GROUP, &name, replicas);
                echo["spec"]["image"] = json!(format!("echo:{image}"));
                let params = PatchParams::apply("user").force();
                echoes.patch(&name, &params, &Patch::Apply(echo)).await.map(drop)
            }
            Action::Delete => echoes.delete(&name, &DeleteParams::default()).await.map(drop),
        };
        match outcome {
            // It is not there, or is going.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => eprintln!("{namespace}: {error}"),
            Ok(()) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}
