//! All controllers: health, plugins, load, and what went wrong last.

use serde::Serialize;

use super::not_running;
use crate::rollout::orders::command;
use crate::ui::Sources;
use operator_host_delivery::candidate_check::Order;
use operator_host_delivery::report::{CandidateState, PluginReport};
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
    series: Series,
    plugin: Option<PluginReport>,
    commands: Vec<Command>,
}

/// The same numbers of every step, the oldest first.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Series {
    /// Seconds.
    step: u64,
    reconciles: Vec<u32>,
    errors: Vec<u32>,
    mean_ms: Vec<f64>,
    max_ms: Vec<f64>,
    queue: Vec<usize>,
}

impl Series {
    fn of(steps: &[Step]) -> Self {
        let mean = |step: &Step| match step.reconciles {
            0 => 0.0,
            count => (step.total_ms / f64::from(count) * 1e3).round() / 1e3,
        };
        Self {
            step: STEP.as_secs(),
            reconciles: steps.iter().map(|step| step.reconciles).collect(),
            errors: steps.iter().map(|step| step.errors).collect(),
            mean_ms: steps.iter().map(mean).collect(),
            max_ms: steps.iter().map(|step| step.max_ms).collect(),
            queue: steps.iter().map(|step| step.queue).collect(),
        }
    }
}

/// A command, and what it is for.
#[derive(Debug, PartialEq, Serialize)]
struct Command {
    what: String,
    command: String,
}

pub(super) fn overview(sources: &Sources) -> Overview {
    let checks = sources.health.ready();
    let reports = sources.reports();
    let names = checks
        .iter()
        .filter_map(|check| check.name.strip_prefix("controller/"));
    let controllers: Vec<_> = names
        .map(|name| controller(sources, name, &checks, &reports))
        .collect();
    let of_all = controllers.iter().map(|controller| controller.name.clone());
    let journals: Vec<_> = of_all.map(|name| (sources.journal.of(&name), name)).collect();
    let mut troubled: Vec<_> = journals
        .iter()
        .flat_map(|(journal, name)| of(name, journal.troubled()))
        .collect();
    troubled.sort_by_key(|reconcile| std::cmp::Reverse(reconcile.it.at));
    troubled.truncate(LAST);
    let mut events: Vec<_> = journals
        .iter()
        .flat_map(|(journal, name)| of(name, sources.events(journal, None)))
        .collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.it.at));
    events.truncate(LAST);
    let others = checks
        .iter()
        .filter(|check| !check.name.contains('/') && check.name != "ping");
    Overview {
        version: env!("CARGO_PKG_VERSION"),
        identity: sources.identity.clone(),
        checks: others.map(shown).collect(),
        controllers,
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
    Ok(controller(sources, name, &checks, &sources.reports()))
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
    let own: Vec<_> = ["controller", "plugin"]
        .into_iter()
        .filter_map(find)
        .map(shown)
        .collect();
    let running = sources.controllers.named(name);
    let is_object = running.as_ref().is_some_and(|context| context.config.is_object);
    let report = reports.iter().find(|report| report.controller == name);
    let (queue, age) = running
        .as_ref()
        .map_or_else(Default::default, |context| context.queue.backlog());
    Controller {
        name: name.to_owned(),
        ok: own.iter().all(|check| check.ok),
        texts: own
            .into_iter()
            .map(|check| check.text)
            .filter(|text| !text.is_empty())
            .collect(),
        kind: running.as_ref().map(|context| context.config.parent.to_string()),
        source: running.as_ref().map(|_| match is_object {
            true => "a Controller of the cluster",
            false => "the configuration file",
        }),
        objects: running.as_ref().map_or(0, |context| {
            let watches = context.parents.all();
            watches.iter().map(|watch| watch.count()).sum()
        }),
        queue,
        queue_age: age.as_secs(),
        series: Series::of(&sources.journal.of(name).series()),
        commands: match (&running, report) {
            (Some(context), Some(report)) => {
                let definition = context.resource.definition_name();
                commands(
                    &|order, digest| command(&context.config, Some(&definition), order, digest),
                    report,
                )
            }
            _ => Vec::new(),
        },
        plugin: report.cloned(),
    }
}

/// Returns the commands that promote, pin and roll back.
fn commands(command: &dyn Fn(Order, Option<&str>) -> String, report: &PluginReport) -> Vec<Command> {
    let short = |digest: &str| -> String { digest.trim_start_matches("sha256:").chars().take(12).collect() };
    let order = |what: String, order: Order, digest: Option<&str>| Command {
        what,
        command: command(order, digest.map(short).as_deref()),
    };
    let mut commands = Vec::new();
    if let Some(candidate) = &report.candidate
        && candidate.state == CandidateState::HeldBack
        && let Some(digest) = &candidate.digest
    {
        let version = candidate.version.as_deref().unwrap_or("?");
        commands.push(order(
            format!("Promote version {version} anyway"),
            Order::Promote,
            Some(digest),
        ));
    }
    if let Some(pinned) = &report.pinned {
        commands.push(order(format!("Remove the pin of {pinned}"), Order::Pin, None));
    }
    if let Some(live) = report.live.as_ref().filter(|_| report.pinned.is_none()) {
        commands.push(order(
            format!("Pin the live version {}", live.version),
            Order::Pin,
            Some(&live.digest),
        ));
    }
    let is_live = |digest: &str| report.live.as_ref().is_some_and(|live| live.digest == digest);
    for kept in report.kept.iter().filter(|kept| !is_live(&kept.digest)) {
        commands.push(order(
            format!("Roll back to version {}", kept.version),
            Order::Pin,
            Some(&kept.digest),
        ));
    }
    commands
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use tokio::sync::watch;

    use super::*;
    use operator_host_config::Config;
    use operator_host_delivery::registry::Live;
    use operator_host_delivery::report::{CandidateVersion, KeptVersion, LiveVersion};
    use operator_host_instruments::health::Health;

    #[tokio::test]
    async fn where_other_containers_can_read_it_the_page_shows_no_differences() {
        let health = Arc::<Health>::default();
        let (_plugin, live) = watch::channel(Live::Loading);
        health.expect("a", live, watch::channel(None).1);
        let at = jiff::Timestamp::UNIX_EPOCH;
        let report = PluginReport {
            controller: "a".into(),
            live: Some(LiveVersion {
                digest: "sha256:0".into(),
                name: "a".into(),
                version: "1".into(),
                since: at,
                because: "proved".into(),
                diff: "+live trade".into(),
            }),
            candidate: Some(CandidateVersion {
                digest: None,
                version: None,
                state: CandidateState::HeldBack,
                reason: None,
                message: "it changes much".into(),
                diff: "+candidate trade".into(),
                since: at,
            }),
            ..PluginReport::default()
        };
        let (_sender, receiver) = watch::channel(report);
        health.report("a", receiver);
        let mut sources = Sources {
            controllers: Arc::default(),
            health,
            journal: Arc::default(),
            identity: "b".into(),
            lease: watch::channel(None).1,
            hide_differences: false,
        };
        let texts = |sources: &Sources| {
            let all = serde_json::to_string(&overview(sources)).unwrap();
            let one = serde_json::to_string(&one(sources, "a").unwrap()).unwrap();
            let mut note = "it changes much: fix it\n+child trade".to_owned();
            sources.hide(&mut note);
            [all, one, note]
        };
        for text in texts(&sources) {
            assert!(text.contains(" trade") && !text.contains("(hidden"), "{text}");
        }
        sources.hide_differences = true;
        for text in texts(&sources) {
            assert!(!text.contains(" trade") && text.contains("(hidden"), "{text}");
            assert!(text.contains("it changes much"), "{text}");
        }
        assert!(one(&sources, "b").is_err());
    }

    #[test]
    fn the_commands_promote_pin_and_roll_back() {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let digest = |start: &str| format!("sha256:{start:0<64}");
        let kept = |version: &str, start: &str| KeptVersion {
            digest: digest(start),
            version: version.into(),
            since: at,
        };
        let mut report = PluginReport {
            live: Some(LiveVersion {
                digest: digest("aaaaaaaaaaaa"),
                name: "echo".into(),
                version: "1.1".into(),
                since: at,
                because: String::new(),
                diff: String::new(),
            }),
            candidate: Some(CandidateVersion {
                digest: Some(digest("bbbbbbbbbbbb")),
                version: Some("1.2".into()),
                state: CandidateState::HeldBack,
                reason: None,
                message: String::new(),
                diff: String::new(),
                since: at,
            }),
            kept: vec![kept("1.1", "aaaaaaaaaaaa"), kept("1.0", "cccccccccccc")],
            ..PluginReport::default()
        };
        let text = "controllers: [{name: echo, parent: {apiVersion: my-operator.dev/v1, kind: Echo}, plugin: echo.wasm}]";
        let mut file = Config::parse(Path::new("/etc/config.yaml"), text).unwrap();
        let mut config = file.controllers.remove(0);
        let texts = |report: &PluginReport| -> Vec<String> {
            let annotate =
                |order, digest: Option<&str>| command(&config, Some("echoes.my-operator.dev"), order, digest);
            let commands = commands(&annotate, report).into_iter();
            commands
                .map(|it| format!("{}: {}", it.what, it.command))
                .collect()
        };
        let start = "kubectl annotate crd echoes.my-operator.dev operator-host.dev";
        assert_eq!(
            texts(&report),
            [
                format!("Promote version 1.2 anyway: {start}/promote=bbbbbbbbbbbb --overwrite"),
                format!("Pin the live version 1.1: {start}/pin=aaaaaaaaaaaa --overwrite"),
                format!("Roll back to version 1.0: {start}/pin=cccccccccccc --overwrite"),
            ]
        );
        report.candidate = None;
        report.pinned = Some("aaaaaaaaaaaa".into());
        assert_eq!(
            texts(&report)[0],
            format!("Remove the pin of aaaaaaaaaaaa: {start}/pin- --overwrite")
        );
        // Annotations have no effect on a Controller of the cluster.
        config.is_object = true;
        let patch = |order, digest: Option<&str>| command(&config, None, order, digest);
        let start = "kubectl patch controllers.operator-host.dev echo --type merge -p";
        assert_eq!(
            commands(&patch, &report)[0].command,
            format!(r#"{start} '{{"spec":{{"version":{{"pin":null}}}}}}'"#)
        );
        report.pinned = None;
        assert_eq!(
            commands(&patch, &report)[0].command,
            format!(r#"{start} '{{"spec":{{"version":{{"pin":"aaaaaaaaaaaa"}}}}}}'"#)
        );
    }
}
