//! Start and idle memory of the host, by number of controllers.

use std::time::{Duration, Instant};

use crate::report::{Plot, Section, Table};
use crate::stage::{Running, Stage, controllers};
use crate::stats::Spread;
use crate::{Measure, Part, cgroup, process, progress};

/// How long the host is left alone before its idle memory is read.
const IDLE: Duration = Duration::from_secs(5);

struct Figures {
    first: f64,
    ready: f64,
    own: f64,
    compilers: f64,
    idle: f64,
    anonymous: f64,
    working_set: f64,
    peak: f64,
    peak_with_compilers: f64,
}

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Section> {
    progress::part("controllers: start and idle memory");
    let stage = Stage::start(&measure.common).await?;
    let mut table = Table::new(&[
        "controllers",
        "compiled cache",
        "first controller starts, s",
        "all ready, s",
        "processor time, s",
        "of its compilers, s",
        "idle resident, MB",
        "of it anonymous, MB",
        "its control group, MB",
        "peak, MB",
        "peak with compilers, MB",
    ]);
    let mut memory = Plot::new(
        "idle-memory",
        "Idle memory by number of controllers",
        "controllers",
        "resident, MB",
    );
    let mut start = Plot::new(
        "start",
        "Start by number of controllers",
        "controllers",
        "until ready, s",
    );
    let mut installed = 0;
    for &count in &measure.controllers {
        stage.add_copies(&measure.common, installed..count).await?;
        installed = installed.max(count);
        stage.until_quiet().await?;
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..measure.repeat {
            let cache = stage.cache(&format!("cache-{count}-{round}"));
            for (samples, state) in figures.iter_mut().zip(["cold", "warm"]) {
                let figures = once(&stage, count, &cache).await?;
                progress::step(&format!(
                    "{count} controllers, {state}: ready in {:.2} s, {:.1} MB idle",
                    figures.ready, figures.idle
                ));
                samples.push(figures);
            }
        }
        for (samples, state) in figures.iter().zip(["cold", "warm"]) {
            let spread = |pick: fn(&Figures) -> f64| Spread::of(samples.iter().map(pick));
            memory.add(state, count, spread(|figures| figures.idle));
            start.add(state, count, spread(|figures| figures.ready));
            let picks: [fn(&Figures) -> f64; 9] = [
                |figures| figures.first,
                |figures| figures.ready,
                |figures| figures.own,
                |figures| figures.compilers,
                |figures| figures.idle,
                |figures| figures.anonymous,
                |figures| figures.working_set,
                |figures| figures.peak,
                |figures| figures.peak_with_compilers,
            ];
            let mut row = vec![count.to_string(), state.to_owned()];
            row.extend(picks.map(|pick| spread(pick).to_string()));
            table.row(row);
        }
    }
    // For comparison: one native operator with nothing to do.
    stage.namespace("idle").await?;
    let mut native = Vec::new();
    for _ in 0..measure.repeat {
        let mut running = stage.start_contender("native", "idle")?;
        running.until_logged("ready").await?;
        tokio::time::sleep(IDLE).await;
        native.push(megabytes(process::memory(running.id())?.resident));
        running.stop().await;
    }
    let native = Spread::of(native);
    let options = format!("--controllers {}", join(&measure.controllers));
    let mut section = Section::new(Part::Controllers, measure, &options, &stage).await?;
    section.text = format!(
        "Each controller has its own CustomResourceDefinition and its own plugin file, a copy of Echo for another API \
         group. *Cold* is the first start with an empty `--cache-dir`, *warm* the next one. Ready means that `/readyz` names every controller and plugin as ready. The \
         processor time is that of the serving process until it is ready; the compilers are child processes, whose \
         memory is sampled. Idle is {} s later. A native operator for one kind, idle: {native} MB resident. \
         {}",
        IDLE.as_secs(),
        cgroup::EXPLAINED
    );
    section.tables.push(table);
    section.plots.extend([memory, start]);
    stage.shutdown().await;
    Ok(section)
}

async fn once(stage: &Stage, count: usize, cache: &std::path::Path) -> anyhow::Result<Figures> {
    let mut host = stage.start_host_with(&controllers(count), cache)?;
    let with_compilers = host.until_ready(count).await?;
    let ready = host.started.elapsed().as_secs_f64();
    let (times, first) = (process::times(host.id())?, first(&mut host).await?);
    let idle_from = Instant::now() + IDLE;
    tokio::time::sleep_until(idle_from.into()).await;
    let memory = host.memory()?;
    host.stop().await;
    Ok(Figures {
        first,
        ready,
        own: times.own.as_secs_f64(),
        compilers: times.children.as_secs_f64(),
        idle: megabytes(memory.resident),
        anonymous: megabytes(memory.anonymous),
        working_set: megabytes_if_measured(memory.working_set),
        peak: megabytes(memory.peak),
        peak_with_compilers: megabytes(with_compilers.max(memory.peak)),
    })
}

async fn first(host: &mut Running) -> anyhow::Result<f64> {
    host.until("a controller started", async |host| {
        host.seconds_to("controller started")
    })
    .await
}

pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Returns NaN for what was not measured.
pub(crate) fn megabytes_if_measured(bytes: Option<u64>) -> f64 {
    bytes.map_or(f64::NAN, megabytes)
}

pub(crate) fn join(numbers: &[usize]) -> String {
    numbers
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}
