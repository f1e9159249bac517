//! Cost of bringing parents to their state from nothing: the host, a bare client and a native operator.

use crate::controllers::{join, megabytes, megabytes_if_measured};
use crate::echoes::{self, Observer};
use crate::report::{Plot, Section, Table};
use crate::stage::{Stage, servers};
use crate::stats::{Spread, figure};
use crate::{Common, Measure, Part, cgroup, process, progress};
use anyhow::{Context, ensure};

const PODS: usize = 3;
const NAMESPACE: &str = "crowd";

/// One who brings parents to their state.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    Host,
    Bare,
    Native,
}

impl By {
    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Bare => "bare",
            Self::Native => "native",
        }
    }
}

struct Figures {
    wall: f64,
    own: f64,
    apiserver: f64,
    etcd: f64,
    writes: f64,
    reads: f64,
    resident: f64,
    working_set: f64,
    peak: f64,
}

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Section> {
    progress::part("parents: time, processor time, memory");
    let cache = tempfile::tempdir().context("create a folder")?;
    let cache = cache.path().join("compiled");
    // The host starts as it does after an update of its image: with compiled plugins.
    let stage = Stage::start(&measure.common).await?;
    let mut host = stage.start_host(&cache)?;
    host.until_ready(1).await?;
    host.stop().await;
    let contenders = &measure.contenders;
    let names: Vec<&str> = contenders.iter().map(|by| by.name()).collect();
    let options = format!("--parents {} --by {}", join(&measure.parents), names.join(","));
    let mut section = Section::new(Part::Parents, measure, &options, &stage).await?;
    stage.shutdown().await;

    let mut table = Table::new(&[
        "parents",
        "by",
        "until the last status, s",
        "against bare",
        "own processor time, s",
        "API server, s",
        "etcd, s",
        "writes",
        "reads",
        "resident after, MB",
        "its control group, MB",
        "peak, MB",
    ]);
    let plot = |name, title, y| Plot::new(name, title, "parents, with 3 pods each", y).logarithmic();
    let mut wall = plot("parents-time", "Time until the last status", "s");
    let mut own = plot("parents-processor", "Processor time of the contender", "s");
    let mut memory = plot("parents-memory", "Resident memory afterwards", "MB");
    for &count in &measure.parents {
        let mut figures: Vec<Vec<Figures>> = names.iter().map(|_| Vec::new()).collect();
        for round in 0..measure.repeat as usize {
            // The first one takes turns, so that the fluctuations of a shared machine affect all alike.
            for turn in 0..names.len() {
                let contender = (turn + round) % names.len();
                let one = once(&measure.common, names[contender], count, &cache).await?;
                progress::step(&format!(
                    "{count} parents, {}: {:.1} s, {:.1} s of its own, {:.0} writes, {:.1} MB",
                    names[contender], one.wall, one.own, one.writes, one.resident
                ));
                figures[contender].push(one);
            }
        }
        let bare = contenders.iter().position(|by| *by == By::Bare);
        let bare = bare.map(|bare| Spread::of(figures[bare].iter().map(|figures| figures.wall)).median);
        for (samples, &name) in figures.iter().zip(&names) {
            let spread = |pick: fn(&Figures) -> f64| Spread::of(samples.iter().map(pick));
            wall.add(name, count, spread(|figures| figures.wall));
            own.add(name, count, spread(|figures| figures.own));
            memory.add(name, count, spread(|figures| figures.resident));
            let picks: [fn(&Figures) -> f64; 8] = [
                |figures| figures.own,
                |figures| figures.apiserver,
                |figures| figures.etcd,
                |figures| figures.writes,
                |figures| figures.reads,
                |figures| figures.resident,
                |figures| figures.working_set,
                |figures| figures.peak,
            ];
            let took = spread(|figures| figures.wall);
            let mut row = vec![
                count.to_string(),
                name.to_owned(),
                took.to_string(),
                bare.map_or_else(String::new, |bare| figure(took.median / bare)),
            ];
            row.extend(picks.map(|pick| spread(pick).to_string()));
            table.row(row);
        }
    }
    section.text = format!(
        "Echos of {PODS} pods exist; then a contender starts on a fresh control plane, in turn: the *host* with a warm \
         compiled cache; a *bare* client that sends the same writes and does nothing else; and a *native* operator \
         written with kube-rs (`tests/scale/src/native.rs`), compiled for speed. Each works on {} parents at a time. \
         The time runs from the start of the process until the status of the last parent names all its pods. Processor \
         time, requests and memory include what the contender does afterwards until it is idle. Requests are those of \
         pods, Echos and Events, counted by the API server; watches are not among them. {}",
        crate::CONCURRENCY,
        cgroup::EXPLAINED
    );
    section.tables.push(table);
    section.plots.extend([wall, own, memory]);
    Ok(section)
}

async fn once(
    common: &Common,
    contender: &'static str,
    count: usize,
    cache: &std::path::Path,
) -> anyhow::Result<Figures> {
    let stage = Stage::start(common).await?;
    stage.namespace(NAMESPACE).await?;
    echoes::create(&stage.client, NAMESPACE, count, PODS).await?;
    stage.until_quiet().await?;
    let mut observer = Observer::start(echoes::api(&stage.client, NAMESPACE)).await?;
    let (writes, reads) = stage.requests().await?;
    let [apiserver, etcd] = servers()?;
    let mut running = match contender {
        "host" => stage.start_host(cache)?,
        contender => stage.start_contender(contender, NAMESPACE)?,
    };
    let done = observer.until_done(count, PODS, &mut running).await?;
    running.until_idle().await?;
    let memory = running.memory()?;
    let own = process::times(running.id())?.own;
    let [apiserver_after, etcd_after] = servers()?;
    let (writes_after, reads_after) = stage.requests().await?;
    let pods = echoes::count(&echoes::pods(&stage.client, NAMESPACE)).await?;
    ensure!(
        pods == count * PODS,
        "{contender}: there are {pods} pods instead of {}",
        count * PODS
    );
    let wall = (done - running.started).as_secs_f64();
    running.stop().await;
    stage.shutdown().await;
    Ok(Figures {
        wall,
        own: own.as_secs_f64(),
        apiserver: (apiserver_after - apiserver).as_secs_f64(),
        etcd: (etcd_after - etcd).as_secs_f64(),
        writes: writes_after - writes,
        reads: reads_after - reads,
        resident: megabytes(memory.resident),
        working_set: megabytes_if_measured(memory.working_set),
        peak: megabytes(memory.peak),
    })
}
