//! Memory of the host in a cluster with many pods that are none of its business.

use std::time::Duration;

use serde_json::{Value, json};

use crate::controllers::{join, megabytes, megabytes_if_measured};
use crate::report::{Plot, Section, Table};
use crate::stage::Stage;
use crate::stats::Spread;
use crate::{Measure, Part, cgroup, echoes, process, progress};

/// How long the host is left alone before its memory is read.
const IDLE: Duration = Duration::from_secs(5);
const NAMESPACE: &str = "foreign";

struct Figures {
    ready: f64,
    own: f64,
    resident: f64,
    anonymous: f64,
    working_set: f64,
    peak: f64,
}

pub(crate) async fn run(measure: &Measure) -> anyhow::Result<Section> {
    progress::part("foreign: memory by number of pods of others");
    let stage = Stage::start(&measure.common).await?;
    stage.namespace(NAMESPACE).await?;
    let cache = stage.cache("compiled");
    let mut host = stage.start_host(&cache)?;
    host.until_ready(1).await?;
    host.stop().await;
    let mut table = Table::new(&[
        "foreign pods",
        "until ready, s",
        "processor time, s",
        "resident, MB",
        "of it anonymous, MB",
        "its control group, MB",
        "peak, MB",
        "bytes for each pod",
    ]);
    let mut plot = Plot::new(
        "foreign-memory",
        "Memory by number of foreign pods",
        "pods of others",
        "MB",
    );
    let pods = echoes::pods(&stage.client, NAMESPACE);
    let (mut created, mut first) = (0, None);
    for &count in &measure.foreign {
        echoes::create_all(&pods, (created..count).map(pod)).await?;
        created = created.max(count);
        stage.until_quiet().await?;
        let mut samples = Vec::new();
        for _ in 0..measure.repeat {
            let mut host = stage.start_host(&cache)?;
            host.until_ready(1).await?;
            let (ready, times) = (host.started.elapsed(), process::times(host.id())?);
            tokio::time::sleep(IDLE).await;
            let memory = host.memory()?;
            host.stop().await;
            let figures = Figures {
                ready: ready.as_secs_f64(),
                own: times.own.as_secs_f64(),
                resident: megabytes(memory.resident),
                anonymous: megabytes(memory.anonymous),
                working_set: megabytes_if_measured(memory.working_set),
                peak: megabytes(memory.peak),
            };
            progress::step(&format!(
                "{count} foreign pods: {:.1} MB, at most {:.1} MB",
                figures.resident, figures.peak
            ));
            samples.push(figures);
        }
        let spread = |pick: fn(&Figures) -> f64| Spread::of(samples.iter().map(pick));
        let resident = spread(|figures| figures.resident);
        plot.add("resident", count, resident);
        plot.add("peak", count, spread(|figures| figures.peak));
        let (fewest, least) = *first.get_or_insert((count, resident.median));
        let each = match count - fewest {
            0 => String::new(),
            more => format!("{:.0}", (resident.median - least) * 1e6 / more as f64),
        };
        table.row(vec![
            count.to_string(),
            spread(|figures| figures.ready).to_string(),
            spread(|figures| figures.own).to_string(),
            resident.to_string(),
            spread(|figures| figures.anonymous).to_string(),
            spread(|figures| figures.working_set).to_string(),
            spread(|figures| figures.peak).to_string(),
            each,
        ]);
    }
    let options = format!("--foreign {}", join(&measure.foreign));
    let mut section = Section::new(Part::Foreign, measure, &options, &stage).await?;
    section.text = format!(
        "The host starts with one controller for Echo, without any Echo, in a cluster with so many pods of others, \
         which look like those of a Deployment. The memory is that of {} s after it is ready. {}",
        IDLE.as_secs(),
        cgroup::EXPLAINED
    );
    section.tables.push(table);
    section.plots.push(plot);
    stage.shutdown().await;
    Ok(section)
}

/// Returns a pod like one of a Deployment.
pub(crate) fn pod(number: usize) -> Value {
    let (set, name) = (number / 10, format!("web-{}-7c5ddbdf54-{number}", number / 10));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{set}"),
                "app.kubernetes.io/version": "1.2.3", "pod-template-hash": "7c5ddbdf54",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("web-{set}-7c5ddbdf54"),
                "uid": format!("7f1b5a6e-8d0c-4f6e-9f1c-{set:012}"), "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {"containers": [{"name": "web", "image": "registry.example.com/team/web:1.2.3"}]},
    })
}
