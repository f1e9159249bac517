//! All controllers: health, plugins, load, and what went wrong last.

use std::cmp::Reverse;

use serde::Serialize;

use super::not_running;
use crate::ui::Sources;
use operator_host_delivery::report::PluginReport;
use operator_host_instruments::health::Check;
use operator_host_instruments::journal::{PublishedEvent, Reconcile, STEP, Step};

/// Number of reconciles and of Events of all controllers together.
const LAST: usize = 50;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Overview {
    version: &'static str,
    /// This replica's name in the Lease.
    identity: String,
    /// The checks that are about no controller, such as `configuration`.
    checks: Vec<Shown>,
    controllers: Vec<Controller>,
    /// The reconciles that failed or were slow, the newest first.
    troubled: Vec<Of<Reconcile>>,
    /// The newest first.
    events: Vec<Of<PublishedEvent>>,
}

/// Something of one controller.
#[derive(Serialize)]
struct Of<T> {
    controller: String,
    #[serde(flatten)]
    it: T,
}

#[derive(Serialize)]
struct Shown {
    name: String,
    ok: bool,
    text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Controller {
    name: String,
    /// Whether it and its plugin are ready.
    ok: bool,
    /// What the checks of the controller and of its plugin say; often empty.
    texts: Vec<String>,
    /// The kind, when the cluster serves it.
    kind: Option<String>,
    /// Where it is configured, when the cluster serves its kind.
    source: Option<&'static str>,
    objects: usize,
    queue: usize,
    /// How long the first parent has waited, in whole seconds.
    queue_age: u64,
    /// The last steps, the oldest first.
    steps: Vec<Step>,
    /// How long one of them is.
    step_seconds: u64,
    plugin: Option<PluginReport>,
}

pub(super) fn overview(sources: &Sources) -> Overview {
    let checks = sources.health.ready();
    let reports = sources.health.plugins();
    let names = checks
        .iter()
        .filter_map(|check| check.name.strip_prefix("controller/"));
    let names: Vec<_> = names.collect();
    let (mut troubled, mut events) = (Vec::new(), Vec::new());
    for name in &names {
        let journal = sources.journal.of(name);
        troubled.extend(of(name, journal.troubled()));
        events.extend(of(name, journal.events(None)));
    }
    troubled.sort_by_key(|reconcile| Reverse(reconcile.it.at));
    troubled.truncate(LAST);
    events.sort_by_key(|event| Reverse(event.it.at));
    events.truncate(LAST);
    let controllers = names
        .iter()
        .map(|name| controller(sources, name, &checks, &reports));
    let is_other = |check: &&Check| !check.name.contains('/') && check.name != "ping";
    let others = checks.iter().filter(is_other);
    Overview {
        version: env!("CARGO_PKG_VERSION"),
        identity: sources.identity.clone(),
        checks: others.map(shown).collect(),
        controllers: controllers.collect(),
        troubled,
        events,
    }
}

/// Returns one controller of the overview.
pub(super) fn one(sources: &Sources, name: &str) -> Result<Controller, String> {
    let checks = sources.health.ready();
    let wanted = format!("controller/{name}");
    if !checks.iter().any(|check| check.name == wanted) {
        return Err(not_running(name));
    }
    Ok(controller(sources, name, &checks, &sources.health.plugins()))
}

fn of<T>(controller: &str, all: Vec<T>) -> impl Iterator<Item = Of<T>> {
    all.into_iter().map(|it| Of {
        controller: controller.to_owned(),
        it,
    })
}

fn shown(check: &Check) -> Shown {
    let (Ok(text) | Err(text)) = &check.result;
    Shown {
        name: check.name.clone(),
        ok: check.result.is_ok(),
        text: text.clone(),
    }
}

fn controller(sources: &Sources, name: &str, checks: &[Check], reports: &[PluginReport]) -> Controller {
    let find = |prefix: &str| {
        let wanted = format!("{prefix}/{name}");
        checks.iter().find(|check| check.name == wanted)
    };
    let own = ["controller", "plugin"].into_iter().filter_map(find).map(shown);
    let own: Vec<_> = own.collect();
    let ok = own.iter().all(|check| check.ok);
    let texts = own.into_iter().map(|check| check.text);
    let running = sources.controllers.named(name);
    let running = running.as_deref();
    let report = reports.iter().find(|report| report.controller == name);
    let (queue, age) = running.map_or_else(Default::default, |context| context.queue.backlog());
    Controller {
        name: name.to_owned(),
        ok,
        texts: texts.filter(|text| !text.is_empty()).collect(),
        kind: running.map(|context| context.config.parent.to_string()),
        source: running.map(|context| match context.config.is_object() {
            true => "a Controller of the cluster",
            false => "the configuration file",
        }),
        objects: running.map_or(0, |context| context.caches.parent_count()),
        queue,
        queue_age: age.as_secs(),
        steps: sources.journal.of(name).series(),
        step_seconds: STEP.as_secs(),
        plugin: report.cloned(),
    }
}
