//! Cost of bringing parents to their state from nothing: the host and a native operator.

use std::path::Path;

use anyhow::{Context, ensure};

use crate::echoes::{self, Observer};
use crate::report::{Table, megabytes};
use crate::stage::{Stage, servers};
use crate::{Common, Measure};
use control_plane::process;

const PODS: usize = 3;
const NAMESPACE: &str = "crowd";
const CONTENDERS: [&str; 2] = ["host", "native"];

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let cache = tempfile::tempdir().context("create a folder")?;
    let cache = cache.path().join("compiled");
    // The host starts as it does after an update of its image: with compiled plugins.
    let stage = Stage::start(&measure.common).await?;
    let mut host = stage.start_host(&cache)?;
    host.until_ready(1).await?;
    host.stop().await;
    stage.shutdown().await;
    let head = "parents | by | until the last status, s | own processor time, s | API server, s | \
                etcd, s | writes | reads | resident after, MB | peak, MB";
    let mut table = Table::new(head);
    for &count in &measure.parents {
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..measure.repeat as usize {
            // The first one takes turns, so that the fluctuations of a shared machine affect both alike.
            for turn in 0..CONTENDERS.len() {
                let contender = (turn + round) % CONTENDERS.len();
                figures[contender].push(once(&measure.common, CONTENDERS[contender], count, &cache).await?);
            }
        }
        for (samples, name) in figures.iter().zip(CONTENDERS) {
            table.row(&[count.to_string(), name.to_owned()], samples);
        }
    }
    Ok(table)
}

async fn once(
    common: &Common,
    contender: &'static str,
    count: usize,
    cache: &Path,
) -> anyhow::Result<[f64; 8]> {
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
    let memory = process::memory(running.id())?;
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
    Ok([
        wall,
        own.as_secs_f64(),
        (apiserver_after - apiserver).as_secs_f64(),
        (etcd_after - etcd).as_secs_f64(),
        writes_after - writes,
        reads_after - reads,
        megabytes(memory.resident),
        megabytes(memory.peak),
    ])
}
