//! The readiness and liveness of the host, and the server that reports them: `/livez`, `/readyz`, `/healthz`
//! in the format of Kubernetes' own servers, and `/metrics`.
//!
//! Ready means that the configuration is applied, that the API server answers, that every controller has its first lists, or
//! reports that it waits for its CustomResourceDefinition, and that every plugin is loaded. A plugin that cannot be used does not make the
//! host unready while another plugin is live, because the other one's webhook is reached through the same
//! endpoint. Alive means that the loops of each controller make progress, and that the API server is not out of reach for
//! so long that a new process is the better choice.

pub mod server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use operator_host_core::sync::lock;
use operator_host_delivery::history::{History, HistoryEntry};
use operator_host_delivery::registry::Live;
use operator_host_delivery::report::PluginReport;

/// How long the API server may be out of reach until the host is not ready. A rolling update of it takes less.
const UNREACHED: Duration = Duration::from_secs(30);
/// How long until the host is not alive either, if a new process may have more luck.
const HOPELESS: Duration = Duration::from_mins(5);

/// The readiness of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Its kinds are being looked up, or its first lists are running. With the reason why the last list failed.
    Starting(Option<String>),
    /// It reconciles.
    Ready,
    /// Its kind is not one that it can reconcile, which is not an error of the host: what it waits for.
    Waiting(String),
}

/// The result of one check: a remark for users, or the reason why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The name, such as `controller/echo`.
    pub name: String,
    /// A remark, often empty, or the reason why it failed.
    pub result: Result<String, String>,
    /// Whether its failure makes the whole host fail.
    pub counts: bool,
}

impl Check {
    fn new(name: impl Into<String>, result: Result<String, String>) -> Self {
        Self {
            name: name.into(),
            result,
            counts: true,
        }
    }

    /// Any answer of the server shows that the runtime is alive.
    fn ping() -> Self {
        Self::new("ping", Ok(String::new()))
    }
}

/// The API server does nothing for this host: no request succeeds.
#[derive(Clone, Debug)]
pub struct Unreached {
    /// For how long.
    pub lasting: Duration,
    /// What the last request ended with.
    pub why: String,
    /// Whether a new process could reach it. It does not help when the API server itself answers with errors.
    pub may_restart_help: bool,
}

type Reach = dyn Fn() -> Option<Unreached> + Send + Sync;

/// The state that the checks read. One per process.
#[derive(Default)]
pub struct Health {
    /// The checks of what not every host has, by name: an election and a webhook.
    others: Mutex<BTreeMap<&'static str, Result<String, String>>>,
    controllers: Mutex<BTreeMap<String, Expected>>,
    /// Why the current configuration file is not the one in use.
    configuration: Mutex<Option<String>>,
    pulses: Mutex<Vec<Weak<Beats>>>,
    reach: OnceLock<Box<Reach>>,
    /// Whether the controllers of the first configuration are known.
    applied: AtomicBool,
    stopping: AtomicBool,
}

/// The state of one controller of the configuration.
struct Expected {
    readiness: Readiness,
    plugin: watch::Receiver<Live>,
    report: watch::Receiver<PluginReport>,
    history: Arc<History>,
    /// What the live version cannot do here.
    disagreements: Vec<String>,
}

impl Health {
    /// Registers a controller of the configuration, which is not ready yet, with its plugin, and the report and the history
    /// of that.
    pub fn expect(
        &self,
        controller: &str,
        plugin: watch::Receiver<Live>,
        report: watch::Receiver<PluginReport>,
        history: Arc<History>,
    ) {
        let expected = Expected {
            readiness: Readiness::Starting(None),
            plugin,
            report,
            history,
            disagreements: Vec::new(),
        };
        lock(&self.controllers).insert(controller.to_owned(), expected);
    }

    /// Removes a controller that is no longer in the configuration.
    pub fn forget(&self, controller: &str) {
        lock(&self.controllers).remove(controller);
    }

    /// Sets the readiness of a controller.
    pub fn set(&self, controller: &str, readiness: Readiness) {
        if let Some(expected) = lock(&self.controllers).get_mut(controller) {
            expected.readiness = readiness;
        }
    }

    /// Sets what the live version of a controller's plugin cannot do under its configuration and definition. It does
    /// the rest, so this does not make the host unready.
    pub fn disagrees(&self, controller: &str, disagreements: Vec<String>) {
        if let Some(expected) = lock(&self.controllers).get_mut(controller) {
            expected.disagreements = disagreements;
        }
    }

    /// Sets the text about the leader; a replica that stands by is ready.
    pub fn leader(&self, words: String) {
        lock(&self.others).insert("leader", Ok(words));
    }

    /// Sets why this replica has not taken part in an election yet; `None` once it has. Until then it is not ready: a replica
    /// that cannot read or write its Lease would never work.
    pub fn cannot_elect(&self, problem: Option<String>) {
        let mut others = lock(&self.others);
        match problem {
            Some(problem) => others.insert("leases", Err(problem)),
            None => others.remove("leases"),
        };
    }

    /// Sets what is wrong with the webhook's certificate; empty when nothing is. It may arrive later, so this does not
    /// make the host unready.
    pub fn webhook(&self, problem: String) {
        lock(&self.others).insert("webhook", Ok(problem));
    }

    /// Returns the history of a controller's plugin, the newest entry first; `None` without that controller. Reads no
    /// file.
    pub fn history_of(&self, controller: &str) -> Option<Vec<HistoryEntry>> {
        let controllers = lock(&self.controllers);
        Some(controllers.get(controller)?.history.entries())
    }

    /// Returns the reports about all plugins, sorted by the names of the controllers.
    pub fn plugins(&self) -> Vec<PluginReport> {
        let controllers = lock(&self.controllers);
        let reports = controllers.values().map(|expected| &expected.report);
        reports.map(|report| report.borrow().clone()).collect()
    }

    /// Sets why the current configuration file cannot be used; `None` when it is in use. The previous one
    /// stays in use, so this does not make the host unready.
    pub fn configuration(&self, refused: Option<String>) {
        *lock(&self.configuration) = refused;
    }

    /// Records that every controller of the configuration is registered. Until then the host is not ready: it would look
    /// like one that has none.
    pub fn applied(&self) {
        self.applied.store(true, Ordering::Relaxed);
    }

    /// Sets how to ask whether the API server is reached. Only the first call counts.
    pub fn ask_for_reach(&self, reach: impl Fn() -> Option<Unreached> + Send + Sync + 'static) {
        // A process has one API server.
        let _ = self.reach.set(Box::new(reach));
    }

    /// Makes the host unready, because the process is ending.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Returns the pulse of a loop that must beat at least once in `limit`. It is checked while a clone of it
    /// exists, so the supervisor of the loop must hold a clone too: otherwise a loop that dies would not be
    /// noticed.
    pub fn pulse(&self, name: String, limit: Duration) -> Pulse {
        let beats = Arc::new(Beats {
            name,
            limit,
            start: Instant::now(),
            last: AtomicU64::new(0),
        });
        let mut pulses = lock(&self.pulses);
        pulses.retain(|pulse| pulse.strong_count() > 0);
        pulses.push(Arc::downgrade(&beats));
        Pulse(beats)
    }

    /// Runs the checks of `/livez`.
    pub fn live(&self) -> Vec<Check> {
        let pulses: Vec<Arc<Beats>> = lock(&self.pulses).iter().filter_map(Weak::upgrade).collect();
        std::iter::once(Check::ping())
            .chain(pulses.iter().map(|beats| beats.check()))
            .chain(self.reached(HOPELESS, |unreached| unreached.may_restart_help))
            .collect()
    }

    /// Checks that the API server was reached in this time, as far as a failure counts.
    fn reached(&self, limit: Duration, counts: impl Fn(&Unreached) -> bool) -> Option<Check> {
        let unreached = self.reach.get()?();
        let failed = unreached.filter(|it| it.lasting >= limit && counts(it));
        let result = failed.map_or_else(
            || Ok(String::new()),
            |Unreached { lasting, why, .. }| {
                Err(format!(
                    "no request has succeeded for {} s: {why}; check the network, the credentials and the authorities of the connection",
                    lasting.as_secs()
                ))
            },
        );
        Some(Check::new("api-server", result))
    }

    /// Runs the checks of `/readyz`.
    pub fn ready(&self) -> Vec<Check> {
        let mut checks = vec![Check::ping()];
        checks.extend(self.reached(UNREACHED, |_| true));
        let refused = lock(&self.configuration).clone();
        let refused = refused.map_or_else(String::new, |why| format!("the previous one is in use: {why}"));
        let configuration = match self.applied.load(Ordering::Relaxed) {
            true => Ok(refused),
            false => Err("it is not applied yet".to_owned()),
        };
        checks.push(Check::new("configuration", configuration));
        let controllers = lock(&self.controllers);
        let some_live = controllers
            .values()
            .any(|expected| matches!(*expected.plugin.borrow(), Live::Plugin(_)));
        for (name, expected) in &*controllers {
            let result = match &expected.readiness {
                Readiness::Starting(None) => Err("its first lists are in progress".to_owned()),
                Readiness::Starting(Some(error)) => {
                    Err(format!("its first lists fail and are tried again: {error}"))
                }
                Readiness::Ready => Ok(String::new()),
                Readiness::Waiting(why) => Ok(why.clone()),
            };
            let live = &*expected.plugin.borrow();
            // The API server cannot list the kind before a ready replica converts it, so its lists may wait for this, and its
            // plugin for the lists.
            let converts = matches!(live, Live::Plugin(plugin) if !plugin.description().versions.is_empty());
            let is_listing = matches!(expected.readiness, Readiness::Starting(_));
            let waits =
                matches!(&expected.readiness, Readiness::Starting(Some(error)) if needs_conversion(error));
            checks.push(Check {
                counts: !(converts && is_listing || waits),
                ..Check::new(format!("controller/{name}"), result)
            });
            let result = match live {
                Live::Loading => Err("it is loading".to_owned()),
                Live::Plugin(plugin) => {
                    let digest = plugin.digest();
                    let state = match expected.report.borrow().trouble() {
                        None => digest.to_string(),
                        Some(trouble) => format!("{digest} stays live: {trouble}"),
                    };
                    let all: Vec<&str> = std::iter::once(&state)
                        .chain(&expected.disagreements)
                        .map(String::as_str)
                        .collect();
                    Ok(all.join("; "))
                }
                Live::Failed(failed) => Err(failed.why.to_string()),
            };
            checks.push(Check {
                counts: !(some_live && matches!(live, Live::Failed(_)) || waits),
                ..Check::new(format!("plugin/{name}"), result)
            });
        }
        drop(controllers);
        let others = lock(&self.others).clone();
        checks.extend(others.into_iter().map(|(name, result)| Check::new(name, result)));
        if self.stopping.load(Ordering::Relaxed) {
            checks.push(Check::new("shutdown", Err("the process is stopping".to_owned())));
        }
        checks
    }
}

/// Reports whether a list fails because nothing converts the objects. The words are the API server's.
fn needs_conversion(error: &str) -> bool {
    error.contains("conversion webhook")
}

/// Lets a loop report that it makes progress. Clones share the pulse.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    name: String,
    limit: Duration,
    start: Instant,
    /// Time of the last beat, in milliseconds after the start.
    last: AtomicU64,
}

impl Pulse {
    /// Records an iteration of the loop.
    pub fn beat(&self) {
        let now = u64::try_from(self.0.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last.store(now, Ordering::Relaxed);
    }

    /// Returns how often an idle loop should beat.
    pub fn period(&self) -> Duration {
        self.0.limit / 4
    }
}

impl Beats {
    fn check(&self) -> Check {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let silence = self.start.elapsed().saturating_sub(last);
        let (silent, limit) = (silence.as_secs(), self.limit.as_secs());
        let result = match silence <= self.limit {
            true => Ok(String::new()),
            false => Err(format!("no progress for {silent} s; the limit is {limit} s")),
        };
        Check::new(&self.name, result)
    }
}

#[cfg(test)]
mod tests {
    use operator_host_runtime::{EngineOptions, Limits, Runtime};
    use plugin_fixtures::{Fixture, Form, cases};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    fn failing(checks: &[Check]) -> Vec<&str> {
        let failing = checks
            .iter()
            .filter(|check| check.result.is_err() && check.counts);
        failing.map(|check| check.name.as_str()).collect()
    }

    #[tokio::test]
    async fn a_loop_that_stops_makes_the_host_not_live() {
        let health = Health::default();
        let pulse = health.pulse("loop/a".into(), LIMIT);
        let beating = pulse.clone();
        let task = tokio::spawn(async move {
            loop {
                beating.beat();
                tokio::time::sleep(beating.period()).await;
            }
        });
        tokio::time::sleep(LIMIT * 2).await;
        assert!(failing(&health.live()).is_empty(), "the loop runs");
        task.abort();
        tokio::time::sleep(LIMIT * 2).await;
        assert_eq!(failing(&health.live()), ["loop/a"]);
        drop(pulse);
        // The loop is no longer expected to run.
        assert!(failing(&health.live()).is_empty());
    }

    #[test]
    fn a_host_without_its_configuration_or_api_server_is_not_ready() {
        let health = Health::default();
        assert_eq!(failing(&health.ready()), ["configuration"]);
        health.applied();
        assert!(failing(&health.ready()).is_empty());
        let lasting = Arc::new(Mutex::new((Duration::ZERO, true)));
        let state = Arc::clone(&lasting);
        health.ask_for_reach(move || {
            let (lasting, may_restart_help) = *lock(&state);
            Some(Unreached {
                lasting,
                why: "UnknownIssuer".to_owned(),
                may_restart_help,
            })
        });
        let failing_at = |time, may_restart_help| {
            *lock(&lasting) = (time, may_restart_help);
            (failing(&health.ready()).len(), failing(&health.live()).len())
        };
        assert_eq!(failing_at(Duration::ZERO, true), (0, 0));
        assert_eq!(failing_at(UNREACHED, true), (1, 0));
        assert_eq!(failing_at(HOPELESS, true), (1, 1));
        assert_eq!(failing_at(HOPELESS, false), (1, 0), "a restart does not help");
        let ready = health.ready();
        let check = ready.iter().find(|check| check.name == "api-server").unwrap();
        assert!(check.result.as_ref().unwrap_err().contains("UnknownIssuer"));
    }

    #[tokio::test]
    async fn a_plugin_that_cannot_be_used_does_not_take_the_others_out_of_service() {
        let health = Health::default();
        health.applied();
        let (_sender, report) = watch::channel(PluginReport::default());
        let channels = ["a", "b"].map(|name| {
            let (plugin, live) = watch::channel(Live::Loading);
            health.expect(name, live, report.clone(), Arc::default());
            health.set(name, Readiness::Ready);
            plugin
        });
        let runtime = Runtime::new(EngineOptions::default()).unwrap();
        let file = Fixture::new(cases::ANSWER).build(Form::Command);
        let plugin = runtime.load(file, Limits::default()).await.unwrap();
        channels[0].send_replace(Live::Failed("it is no plugin".into()));
        assert_eq!(failing(&health.ready()), ["plugin/a", "plugin/b"], "none is live");
        channels[1].send_replace(Live::Plugin(plugin));
        assert!(failing(&health.ready()).is_empty());
        let ready = health.ready();
        let check = ready.iter().find(|check| check.name == "plugin/a").unwrap();
        assert!(check.result.is_err(), "it is reported all the same");
        health.disagrees("b", vec!["the plugin creates v1/Pod".into()]);
        let ready = health.ready();
        let check = ready.iter().find(|check| check.name == "plugin/b").unwrap();
        let remark = check.result.as_ref().unwrap();
        assert!(remark.ends_with("; the plugin creates v1/Pod"), "{remark}");
        channels[0].send_replace(Live::Loading);
        assert_eq!(failing(&health.ready()), ["plugin/a"], "it may come in a moment");
    }

    #[test]
    fn a_process_that_stops_is_not_ready() {
        let health = Health::default();
        health.applied();
        health.stopping();
        assert_eq!(failing(&health.ready()), ["shutdown"]);
    }
}
