//! A long time of churn: does the host grow?

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use control_plane::Options;
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::controllers::megabytes;
use crate::report::{Plot, Section, Table};
use crate::stage::{GROUP, Running, Stage};
use crate::stats::{figure, grew, quarters};
use crate::{Common, Part, echoes, process, progress};

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

/// Runs the churn. Returns the section, and whether nothing grew.
pub(crate) async fn run(common: &Common, minutes: f64) -> anyhow::Result<(Section, bool)> {
    progress::part(&format!("soak: {minutes} minutes of churn"));
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
    let (start, mut times) = (Instant::now(), Vec::new());
    let mut ticks = tokio::time::interval(SAMPLE);
    while start.elapsed().as_secs_f64() < minutes * 60.0 {
        ticks.tick().await;
        host.check()?;
        times.push(start.elapsed().as_secs_f64() / 60.0);
        let sampled = sample(&host).await?;
        for (series, value) in all.iter_mut().zip(sampled) {
            series.values.push(value);
        }
        if times.len().is_multiple_of(30) {
            progress::step(&format!(
                "{:.0} minutes: {:.1} MB",
                times[times.len() - 1],
                sampled[0]
            ));
        }
    }
    let reconciles = host.metrics().await?.sum("operator_host_reconciles_total", "");
    users.shutdown().await;

    let mut table = Table::new(&["", "first quarter", "second", "third", "last", "flat"]);
    let mut memory = Plot::new("soak-memory", "Resident memory under churn", "minutes", "MB");
    let mut rest = Plot::new(
        "soak-handles",
        "Handles and queue under churn",
        "minutes",
        "number",
    );
    let mut flat = true;
    for (index, series) in all.iter().enumerate() {
        let grew = grew(&series.values, series.slack);
        flat &= !grew;
        let mut row = vec![series.name.to_owned()];
        row.extend(quarters(&series.values).map(figure));
        row.push(if grew { "**no**" } else { "yes" }.to_owned());
        progress::step(&row.join("  "));
        table.row(row);
        let plot = if index == 0 { &mut memory } else { &mut rest };
        plot.line(
            series.name,
            times.iter().copied().zip(series.values.iter().copied()),
        );
    }
    let command = format!("make soak MINUTES={minutes}");
    let mut section = Section::named(Part::Soak, command, &stage, &common.host).await?;
    section.text = format!(
        "{USERS} users create, scale, edit and delete Echos, at most {NAMES} each, about {:.0} reconciles a second. The \
         table has the median of each quarter of the time. *Flat* means that the last quarter does not exceed the \
         second by more than 10 % (small numbers: by a few).",
        reconciles / (minutes * 60.0)
    );
    section.tables.push(table);
    section.plots.extend([memory, rest]);
    host.stop().await;
    stage.shutdown().await;
    Ok((section, flat))
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
            Err(error) => progress::step(&format!("{namespace}: {error}")),
            Ok(()) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}
