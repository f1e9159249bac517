//! How long an edit takes to reach its child while many other parents are resynced.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::echoes::{self, Observer};
use crate::report::Table;
use crate::stage::{Running, Stage};
use crate::stats::percentile;
use crate::{Measure, plugins};

const CROWD: &str = "crowd";
const EDITED: &str = "edited";
const PODS: usize = 3;
/// Number of parents that are edited in turn. Each has one pod.
const EDITS_OF: usize = 10;
/// Number of samples that a phase needs.
const SAMPLES: usize = 300;
/// The most reloads for these samples: the resync of few parents is over soon.
const RELOADS: u8 = 10;

/// When an edit was sent, and how long it took until its pod had the new image.
type Samples = Arc<Mutex<Vec<(Instant, f64)>>>;

/// What happens while edits are measured.
const PHASES: [&str; 3] = [
    "nothing else happens",
    "a resync changes nothing",
    "a resync changes every pod",
];
/// The latencies of each phase in milliseconds.
type Phases = [Vec<f64>; 3];

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let mut rounds: Vec<Phases> = Vec::new();
    for _ in 0..measure.repeat {
        let stage = Stage::start(&measure.common).await?;
        rounds.push(once(measure, &stage).await?);
        stage.shutdown().await;
    }
    let head = "while | edits | median, ms | 99th percentile, ms | most, ms | \
                99th against quiet";
    let mut table = Table::new(head);
    for (phase, name) in PHASES.iter().enumerate() {
        let samples: Vec<[f64; 5]> = rounds
            .iter()
            .map(|phases| {
                let at = |share| percentile(&phases[phase], share);
                let edits = phases[phase].len() as f64;
                [
                    edits,
                    at(0.5),
                    at(0.99),
                    at(1.0),
                    at(0.99) / percentile(&phases[0], 0.99),
                ]
            })
            .collect();
        table.row(&[(*name).to_owned()], &samples);
    }
    Ok(table)
}

async fn once(measure: &Measure, stage: &Stage) -> anyhow::Result<Phases> {
    let count = measure.resynced;
    for (namespace, parents, replicas) in [(CROWD, count, PODS), (EDITED, EDITS_OF, 1)] {
        stage.namespace(namespace).await?;
        echoes::create(&stage.client, namespace, parents, replicas).await?;
    }
    let mut observer = Observer::start(echoes::api(&stage.client, CROWD)).await?;
    let mut edited = Observer::start(echoes::api(&stage.client, EDITED)).await?;
    let mut host = stage.start_host(&stage.cache("compiled"))?;
    observer.until_done(count, PODS, &mut host).await?;
    drop(observer);
    edited.until_done(EDITS_OF, 1, &mut host).await?;
    drop(edited);
    host.until_idle().await?;
    stage.until_quiet().await?;

    let samples = Samples::default();
    // In a task of its own, so that nothing else delays what it sees.
    let mut editor = tokio::spawn(edit(stage.client.clone(), samples.clone()));
    let phases = tokio::select! {
        phases = phases(measure, stage, &mut host, &samples) => phases?,
        ended = &mut editor => bail!("the editor has ended: {ended:?}"),
    };
    editor.abort();
    host.stop().await;
    Ok(phases)
}

/// Returns the latencies of each phase, in milliseconds.
async fn phases(
    measure: &Measure,
    stage: &Stage,
    host: &mut Running,
    samples: &Samples,
) -> anyhow::Result<Phases> {
    let echo = std::fs::read(&measure.common.plugin).context("read the plugin")?;
    let start = Instant::now();
    host.until("enough edits", async |_| {
        (between(samples, start, Instant::now()).len() >= SAMPLES).then_some(())
    })
    .await?;
    let quiet = between(samples, start, Instant::now());
    let mut unchanged = Vec::new();
    for number in 0..RELOADS {
        let (start, end) = resync(stage, host, measure.resynced, &plugins::version(&echo, number)).await?;
        unchanged.extend(between(samples, start, end));
        if unchanged.len() >= SAMPLES {
            break;
        }
    }
    let (start, end) = resync(stage, host, measure.resynced, &plugins::relabelled(&echo)?).await?;
    let changed = between(samples, start, end);
    Ok([quiet, unchanged, changed])
}

/// Replaces the plugin. Returns when the new version took over, and when all parents had been reconciled with it.
async fn resync(
    stage: &Stage,
    host: &mut Running,
    parents: usize,
    plugin: &[u8],
) -> anyhow::Result<(Instant, Instant)> {
    const LOADS: &str = "operator_host_plugin_reloads_total";
    const LOADED: &str = "result=\"loaded\"";
    const RECONCILES: &str = "operator_host_reconciles_total";
    const RELOAD: &str = "trigger=\"reload\"";
    let metrics = host.metrics().await?;
    let (loaded, before) = (metrics.sum(LOADS, LOADED), metrics.sum(RECONCILES, RELOAD));
    stage.put_plugin("echo.wasm", plugin)?;
    let took_over = async |host: &Running| {
        let metrics = host.metrics().await.ok()?;
        (metrics.sum(LOADS, LOADED) > loaded).then_some(())
    };
    host.until("using the new version of the plugin", took_over)
        .await?;
    let start = Instant::now();
    let reconciled = host
        .until("done with the resync", async |host| {
            let metrics = host.metrics().await.ok()?;
            let reconciled = metrics.sum(RECONCILES, RELOAD) - before;
            if reconciled > 0.0 && metrics.sum("operator_host_queue_depth", "") == 0.0 {
                return Some(reconciled);
            }
            // Reading metrics is work for the host as well.
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        })
        .await?;
    let end = Instant::now();
    // A parent that changes meanwhile counts for another reason.
    ensure!(
        reconciled > 0.5 * parents as f64,
        "the reload made the host reconcile {reconciled} of {parents} parents"
    );
    Ok((start, end))
}

fn between(samples: &Samples, start: Instant, end: Instant) -> Vec<f64> {
    let samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
    let within = samples.iter().filter(|(sent, _)| (start..end).contains(sent));
    within.map(|(_, latency)| *latency).collect()
}

/// Edits one Echo after the other until it is aborted.
async fn edit(client: Client, samples: Samples) -> anyhow::Result<()> {
    let echoes = echoes::api(&client, EDITED);
    let mut pods = Observer::start(echoes::pods(&client, EDITED)).await?;
    for number in 2_usize.. {
        let (name, image) = (format!("e{}", number % EDITS_OF), format!("echo:{number}"));
        let sent = Instant::now();
        let patch = json!({"spec": {"image": image}});
        echoes
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        let pod = format!("{name}-pod-0");
        let seen = loop {
            let (seen, object) = pods.next().await?;
            let is_it = object.metadata.name.as_ref() == Some(&pod);
            if is_it && object.data["spec"]["containers"][0]["image"] == image.as_str() {
                break seen;
            }
        };
        let sample = (sent, (seen - sent).as_secs_f64() * 1e3);
        samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(sample);
    }
    Ok(())
}
