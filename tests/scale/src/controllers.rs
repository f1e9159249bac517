//! Start and idle memory of the host, by number of controllers.

use std::path::Path;

use crate::Measure;
use crate::report::{Table, megabytes};
use crate::stage::{IDLE, Stage, controllers};
use control_plane::process;

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Table> {
    let stage = Stage::start(&measure.common).await?;
    let head = "controllers | compiled cache | all ready, s | processor time, s | \
                of its compilers, s | idle resident, MB | of it anonymous, MB | peak, MB";
    let mut table = Table::new(head);
    let mut installed = 0;
    for &count in &measure.controllers {
        stage.add_copies(&measure.common, installed..count).await?;
        installed = installed.max(count);
        stage.until_quiet().await?;
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..measure.repeat {
            let cache = stage.cache(&format!("cache-{count}-{round}"));
            for samples in &mut figures {
                samples.push(once(&stage, count, &cache).await?);
            }
        }
        for (samples, state) in figures.iter().zip(["cold", "warm"]) {
            table.row(&[count.to_string(), state.to_owned()], samples);
        }
    }
    // For comparison: one native operator with nothing to do.
    stage.namespace("idle").await?;
    let mut native = stage.start_contender("native", "idle")?;
    native.until_logged("ready").await?;
    tokio::time::sleep(IDLE).await;
    let resident = megabytes(process::memory(native.id())?.resident);
    native.stop().await;
    table.texts(vec![format!(
        "a native operator for one kind, idle: {resident:.1} MB resident"
    )]);
    stage.shutdown().await;
    Ok(table)
}

async fn once(stage: &Stage, count: usize, cache: &Path) -> anyhow::Result<[f64; 6]> {
    let mut host = stage.start_host_with(&controllers(count), cache)?;
    host.until_ready(count).await?;
    let ready = host.started.elapsed().as_secs_f64();
    let times = process::times(host.id())?;
    tokio::time::sleep(IDLE).await;
    let memory = process::memory(host.id())?;
    host.stop().await;
    Ok([
        ready,
        times.own.as_secs_f64(),
        times.children.as_secs_f64(),
        megabytes(memory.resident),
        megabytes(memory.anonymous),
        megabytes(memory.peak),
    ])
}
