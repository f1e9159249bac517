//! The same parents, distributed over more and more controllers: what a controller costs besides its objects.

use crate::controllers::{join, megabytes, megabytes_if_measured};
use crate::echoes::{self, Observer};
use crate::report::{Plot, Section, Table};
use crate::stage::{Stage, controllers, servers};
use crate::stats::Spread;
use crate::{Measure, Part, cgroup, foreign, plugins, process, progress};

const NAMESPACE: &str = "crowd";
const FOREIGN: &str = "foreign";
/// Number of parents of all controllers together.
const PARENTS: usize = 1000;
const PODS: usize = 3;
/// Number of pods of others that are created afterwards.
const FOREIGN_PODS: usize = 5000;

struct Figures {
    wall: f64,
    own: f64,
    apiserver: f64,
    writes: f64,
    resident: f64,
    working_set: f64,
    foreign: f64,
}

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Section> {
    progress::part("together: the same parents with more controllers");
    let mut table = Table::new(&[
        "controllers",
        "parents of each",
        "until the last status, s",
        "own processor time, s",
        "API server, s",
        "writes",
        "resident after, MB",
        "its control group, MB",
        "processor time for a foreign pod, µs",
    ]);
    let mut plot = Plot::new(
        "together-processor",
        "Processor time by number of controllers",
        "controllers",
        "s",
    );
    let mut section = None;
    for &count in &measure.across {
        let mut samples = Vec::new();
        for _ in 0..measure.repeat {
            let stage = Stage::start(&measure.common).await?;
            let figures = once(measure, &stage, count).await?;
            progress::step(&format!(
                "{count} controllers: {:.1} s, {:.1} s of its own, {:.1} MB, {:.0} µs for a foreign pod",
                figures.wall, figures.own, figures.resident, figures.foreign
            ));
            samples.push(figures);
            if section.is_none() {
                let options = format!("--across {}", join(&measure.across));
                section = Some(Section::new(Part::Together, measure, &options, &stage).await?);
            }
            stage.shutdown().await;
        }
        let spread = |pick: fn(&Figures) -> f64| Spread::of(samples.iter().map(pick));
        plot.add("host", count, spread(|figures| figures.own));
        let picks: [fn(&Figures) -> f64; 7] = [
            |figures| figures.wall,
            |figures| figures.own,
            |figures| figures.apiserver,
            |figures| figures.writes,
            |figures| figures.resident,
            |figures| figures.working_set,
            |figures| figures.foreign,
        ];
        let mut row = vec![count.to_string(), (PARENTS / count).to_string()];
        row.extend(picks.map(|pick| spread(pick).to_string()));
        table.row(row);
    }
    let mut section = section.ok_or_else(|| anyhow::anyhow!("`--across` names no number of controllers"))?;
    section.text = format!(
        "{PARENTS} Echos of {PODS} pods exist, distributed over so many kinds, each with its own controller and plugin file. \
         Then the host starts, with a warm compiled cache. Afterwards {FOREIGN_PODS} pods of others are created, of a kind \
         that every controller watches. {}",
        cgroup::EXPLAINED
    );
    section.tables.push(table);
    section.plots.push(plot);
    Ok(section)
}

async fn once(measure: &Measure, stage: &Stage, count: usize) -> anyhow::Result<Figures> {
    stage.add_copies(&measure.common, 0..count).await?;
    let (configured, cache) = (controllers(count), stage.cache("compiled"));
    let mut host = stage.start_host_with(&configured, &cache)?;
    host.until_ready(count).await?;
    host.stop().await;
    let mut observers = Vec::new();
    stage.namespace(NAMESPACE).await?;
    for number in 0..count {
        let group = plugins::group(number);
        let api = echoes::api_of(&stage.client, NAMESPACE, &group);
        let parents =
            (0..PARENTS / count).map(|parent| echoes::echo(&group, &format!("e{number}-{parent}"), PODS));
        echoes::create_all(&api, parents).await?;
        observers.push(Observer::start(api).await?);
    }
    stage.until_quiet().await?;
    let (writes, _) = stage.requests().await?;
    let [apiserver, _] = servers()?;
    let mut host = stage.start_host_with(&configured, &cache)?;
    let mut done = host.started;
    for observer in &mut observers {
        done = done.max(observer.until_done(PARENTS / count, PODS, &mut host).await?);
    }
    host.until_idle().await?;
    let own = process::times(host.id())?.own;
    let memory = host.memory()?;
    let [apiserver_after, _] = servers()?;
    let (writes_after, _) = stage.requests().await?;
    let wall = (done - host.started).as_secs_f64();

    stage.namespace(FOREIGN).await?;
    let pods = echoes::pods(&stage.client, FOREIGN);
    let before = process::times(host.id())?.own;
    echoes::create_all(&pods, (0..FOREIGN_PODS).map(foreign::pod)).await?;
    host.until_idle().await?;
    let foreign = process::times(host.id())?.own - before;
    host.stop().await;
    Ok(Figures {
        wall,
        own: own.as_secs_f64(),
        apiserver: (apiserver_after - apiserver).as_secs_f64(),
        writes: writes_after - writes,
        resident: megabytes(memory.resident),
        working_set: megabytes_if_measured(memory.working_set),
        foreign: foreign.as_secs_f64() * 1e6 / FOREIGN_PODS as f64,
    })
}
