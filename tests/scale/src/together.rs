//! The same parents, distributed over more and more controllers: what a controller costs besides its objects.

use crate::echoes::{self, Observer};
use crate::report::{Table, megabytes};
use crate::stage::{Stage, controllers, servers};
use crate::{Measure, foreign, plugins};
use control_plane::process;

const NAMESPACE: &str = "crowd";
const FOREIGN: &str = "foreign";
/// Number of parents of all controllers together.
const PARENTS: usize = 1000;
const PODS: usize = 3;
/// Number of pods of others that are created afterwards.
const FOREIGN_PODS: usize = 5000;

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let head = "controllers | parents of each | until the last status, s | own processor time, s | \
                API server, s | writes | resident after, MB | processor time for a foreign pod, µs";
    let mut table = Table::new(head);
    for &count in &measure.across {
        let mut samples = Vec::new();
        for _ in 0..measure.repeat {
            let stage = Stage::start(&measure.common).await?;
            samples.push(once(measure, &stage, count).await?);
            stage.shutdown().await;
        }
        table.row(&[count.to_string(), (PARENTS / count).to_string()], &samples);
    }
    Ok(table)
}

async fn once(measure: &Measure, stage: &Stage, count: usize) -> anyhow::Result<[f64; 6]> {
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
    let memory = process::memory(host.id())?;
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
    Ok([
        wall,
        own.as_secs_f64(),
        (apiserver_after - apiserver).as_secs_f64(),
        writes_after - writes,
        megabytes(memory.resident),
        foreign.as_secs_f64() * 1e6 / FOREIGN_PODS as f64,
    ])
}
