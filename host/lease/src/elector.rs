//! The task that takes, renews and releases Leases, and updates the terms.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Roster;
use super::assignment::{Member, allotted, surplus};
use super::lease::{Candidate, Step};
use super::leases::{LeaseError, LeaseOutcome, Leases};
use super::replicas::Replicas;
use super::report::{LeadershipReport, LeaseReport, LeaseState};
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::term::{Phase, Term};
use operator_host_config::leadership::{LeadershipConfig, LeadershipMode};
use operator_host_core::backoff::at_least;
use operator_host_instruments::Instruments;
use operator_host_instruments::health::Pulse;

/// Each iteration of the loop must finish in this time.
const PULSE: Duration = Duration::from_secs(60);
/// Maximum time to release the leases at shutdown.
const RELEASE: Duration = Duration::from_secs(2);

/// One lease and its state.
struct Election {
    controllers: BTreeSet<String>,
    candidate: Candidate,
    term: Term,
    /// When to renew.
    due: Instant,
    /// Since when any replica could take it.
    free_since: Option<Instant>,
    /// The state that was reported last.
    leads: bool,
}

pub(super) struct Elector {
    config: LeadershipConfig,
    identity: String,
    leases: Leases,
    roster: Arc<Roster>,
    elections: BTreeMap<String, Election>,
    /// Present only when replicas share the controllers.
    replicas: Option<Replicas>,
    events: Events,
    instruments: Instruments,
    pulse: Pulse,
    /// Until when the API server has asked to be left alone. Renewals have deadlines of their own.
    quiet_until: Option<Instant>,
    /// The last problem that was logged, so that it is logged once.
    last_logged: Option<String>,
    /// Whether the Leases could be read and written once.
    took_part: bool,
    /// What is reported to people, and who receives it.
    report: LeadershipReport,
    reports: watch::Sender<LeadershipReport>,
}

impl Elector {
    pub(super) fn new(
        config: LeadershipConfig,
        identity: String,
        leases: Api<Lease>,
        roster: Arc<Roster>,
        events: Events,
        instruments: Instruments,
        reports: watch::Sender<LeadershipReport>,
    ) -> Self {
        let replicas = (config.mode == LeadershipMode::PerController)
            .then(|| Replicas::new(&config.name, &identity, config.timing));
        Self {
            pulse: instruments.health.pulse("leader-election".to_owned(), PULSE),
            report: LeadershipReport {
                namespace: leases.namespace().unwrap_or_default().to_owned(),
                ..LeadershipReport::empty(config.mode)
            },
            reports,
            leases: Leases::new(leases, &config),
            config,
            identity,
            roster,
            elections: BTreeMap::new(),
            replicas,
            events,
            instruments,
            quiet_until: None,
            last_logged: None,
            took_part: false,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let roster = Arc::clone(&self.roster);
        while !stop.is_cancelled() {
            self.pulse.beat();
            let next = self.turn().await;
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = roster.changed.notified() => {}
                () = stop.cancelled() => {}
            }
        }
        if tokio::time::timeout(RELEASE, self.release_all()).await.is_err() {
            warn!("cannot release the leases within {RELEASE:?}: other replicas take them when they expire");
        }
    }

    /// Returns how often a replica that does not lead reads the Leases.
    fn poll(&self) -> Duration {
        self.config.timing.retry_period / 4
    }

    /// Runs one iteration, and returns when the next is due.
    async fn turn(&mut self) -> Instant {
        self.report.problem = None;
        self.follow_roster();
        let must_read = self.replicas.is_some()
            || self
                .elections
                .values()
                .any(|election| !election.candidate.holds(Instant::now()));
        let is_quiet = self.quiet_until.is_some_and(|until| Instant::now() < until);
        let renewals = self.renewals();
        let eligible = self.eligible();
        let own = self
            .replicas
            .as_mut()
            .filter(|_| !is_quiet)
            .and_then(|replicas| replicas.record(&eligible, Instant::now()));
        // The replica's own Lease is written first: another replica that sees an expired one must not find
        // later that this one holds a lease.
        if let Some(record) = own {
            self.write_own(record, eligible).await;
        }
        let all = async {
            if must_read && !is_quiet {
                Some(self.leases.all(|name| self.elections.contains_key(name)).await)
            } else {
                None
            }
        };
        let (all, renewed) = join(all, self.leases.write_all(renewals)).await;
        for (name, sent, outcome) in renewed {
            self.handle_outcome(&name, sent, outcome);
        }
        match all {
            None => {}
            Some(Ok(all)) => {
                self.take(&all).await;
                self.delete_stale_leases().await;
            }
            Some(Err(error)) => self.failed(&error),
        }
        self.give_up().await;
        self.report_changes();
        self.took_part |= self.report.problem.is_none() && !self.elections.is_empty();
        // What fails later passes, and makes no replica unready.
        let problem = self.report.problem.clone().filter(|_| !self.took_part);
        self.instruments.health.cannot_elect(problem);
        self.publish();
        self.next()
    }

    /// Adds, updates and removes elections, one for each controller that takes part.
    fn follow_roster(&mut self) {
        let terms = self.roster.terms();
        let mut wanted: BTreeMap<String, (BTreeSet<String>, Term)> = BTreeMap::new();
        for (controller, term) in terms {
            let lease = match self.config.mode {
                LeadershipMode::PerController => format!("{}-{controller}", self.config.name),
                LeadershipMode::None | LeadershipMode::Single => self.config.name.clone(),
            };
            let (controllers, _) = wanted.entry(lease).or_insert_with(|| (BTreeSet::new(), term));
            controllers.insert(controller);
        }
        for (lease, election) in &mut self.elections {
            let now = wanted.get(lease);
            let rest = now.map(|(controllers, _)| controllers);
            for gone in election
                .controllers
                .iter()
                .filter(|c| !rest.is_some_and(|rest| rest.contains(*c)))
            {
                self.instruments.metrics.set_leader(gone, None);
                self.instruments.health.leads(gone, None);
            }
            // A controller that was removed and added again since the last look has another term: this one ends first.
            if now.is_none_or(|(_, term)| !term.is(&election.term)) {
                // The election is removed once the lease is released.
                election.controllers.clear();
                election.term.leave();
            }
        }
        self.elections.retain(|_, election| {
            !election.controllers.is_empty() || election.term.phase() != Phase::Standby
        });
        for (lease, (controllers, term)) in wanted {
            let now = Instant::now();
            let election = self.elections.entry(lease.clone()).or_insert_with(|| Election {
                controllers: BTreeSet::new(),
                candidate: Candidate::new(&lease, &self.config.name, &self.identity, self.config.timing),
                term: term.clone(),
                due: now,
                free_since: None,
                leads: false,
            });
            if election.controllers.is_empty() {
                // A controller that was removed and added again has a new term; the old one ends here.
                if election.term.phase() != Phase::Standby {
                    continue;
                }
                election.term = term;
            }
            election.controllers = controllers;
        }
    }

    /// Returns the leases that this replica could hold: those with a live plugin and full caches.
    fn eligible(&self) -> BTreeSet<String> {
        let eligible = self
            .elections
            .iter()
            .filter(|(_, election)| !election.controllers.is_empty() && election.term.is_warm());
        eligible.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the leases to renew now.
    fn renewals(&mut self) -> Vec<(String, Lease)> {
        let (now, clock) = (Instant::now(), Timestamp::now());
        let mut records = Vec::new();
        for (name, election) in &mut self.elections {
            if election.candidate.holds(now)
                && election.due <= now
                && let Step::Write(record) = election.candidate.step(now, clock)
            {
                election.candidate.writing(&record, now);
                records.push((name.clone(), *record));
            }
        }
        records
    }

    async fn write_own(&mut self, record: Lease, eligible: BTreeSet<String>) {
        let sent = Instant::now();
        let outcome = self.leases.write(&record).await;
        let Some(replicas) = &mut self.replicas else {
            return;
        };
        match outcome {
            LeaseOutcome::Won(answer) => replicas.written(answer, eligible, sent),
            LeaseOutcome::Lost(lease) => replicas.refused(lease),
            LeaseOutcome::Failed(error) => self.failed(&error),
        }
    }

    fn handle_outcome(&mut self, name: &str, sent: Instant, outcome: LeaseOutcome) {
        let (now, poll, retry) = (Instant::now(), self.poll(), self.config.timing.retry_period);
        let Some(election) = self.elections.get_mut(name) else {
            return;
        };
        match outcome {
            LeaseOutcome::Won(answer) => {
                let renewed = election.candidate.won(answer, sent, now);
                election.due = if renewed { sent + retry } else { now };
                election.free_since = None;
                if let Some((until, expiry)) = election.candidate.term() {
                    election.term.extend(until, expiry);
                }
                self.last_logged = None;
            }
            LeaseOutcome::Lost(lease) => {
                election.candidate.observe(lease, now);
                if election.candidate.holds(now) {
                    // The lease is still ours, with different contents: renewed in the next iteration.
                    election.due = now;
                } else {
                    election.term.end();
                }
            }
            LeaseOutcome::Failed(error) => {
                election.due = now + poll;
                if let (Some(asked), Some((until, _))) = (error.retry_after, election.candidate.term()) {
                    // A leader that waits as long as it was asked to must still have time for another attempt.
                    let latest = until.checked_sub(retry).unwrap_or(now);
                    election.due = election.due.max(latest.min(now + asked));
                }
                self.failed(&error);
            }
        }
    }

    /// Observes the leases of other replicas, and takes those that are assigned to this replica.
    async fn take(&mut self, all: &BTreeMap<String, Lease>) {
        let now = Instant::now();
        for (name, election) in &mut self.elections {
            // Our own writes are the best source for the leases that we hold.
            if !election.candidate.holds(now) {
                election.candidate.observe(all.get(name).cloned(), now);
            }
            let free = election.candidate.is_free(now);
            election.free_since = election.free_since.filter(|_| free).or(free.then_some(now));
        }
        let mine = self.mine(all, now);
        let clock = Timestamp::now();
        let mut records = Vec::new();
        for (name, election) in &mut self.elections {
            // Reconciles of an earlier term must have ended, because they do not know what other replicas did
            // since.
            if mine.contains(name)
                && election.term.is_idle()
                && let Step::Write(record) = election.candidate.step(now, clock)
            {
                election.candidate.writing(&record, now);
                records.push((name.clone(), *record));
            }
        }
        for (name, sent, outcome) in self.leases.write_all(records).await {
            self.handle_outcome(&name, sent, outcome);
        }
    }

    /// Returns the free leases that this replica should take.
    fn mine(&mut self, all: &BTreeMap<String, Lease>, now: Instant) -> BTreeSet<String> {
        let free: BTreeSet<String> = self
            .elections
            .iter()
            .filter(|(_, election)| election.free_since.is_some() && !election.controllers.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        let eligible = self.eligible();
        let Some(replicas) = &mut self.replicas else {
            return free;
        };
        replicas.observe(all, now);
        let held = self
            .elections
            .iter()
            .filter(|(_, election)| election.candidate.holds(now))
            .map(|(name, _)| name.clone())
            .collect();
        let own = Member { able: eligible, held };
        let members = replicas.members(all, own, now);
        self.report.set_replicas(&members);
        let mut mine = allotted(&members, &free, &self.identity);
        // The replica with the assignment may be unable to take it: after this time any replica may. If none is warm, one
        // must report in the status of the parents what they wait for.
        let takeover_delay = self.config.timing.retry_period * 2;
        for name in &free {
            let since = self.elections[name].free_since;
            if since.is_some_and(|since| now >= since + takeover_delay) {
                mine.insert(name.clone());
            }
        }
        // A replica that is not warm leads only until another one can do better.
        for (name, election) in &self.elections {
            let others = || members.iter().filter(|(identity, _)| **identity != self.identity);
            if election.term.phase() == Phase::Leading
                && !election.term.is_warm()
                && others().any(|(_, other)| other.able.contains(name))
            {
                info!(
                    lease = name,
                    "this replica cannot work for the controller yet, and another one can: releasing the lease"
                );
                election.term.leave();
            }
        }
        let leaving = self
            .elections
            .values()
            .any(|election| election.term.phase() == Phase::Leaving);
        if free.is_empty()
            && !leaving
            && let Some(election) =
                surplus(&members, &self.identity).and_then(|name| self.elections.get(&name))
        {
            info!(
                lease = election.candidate.name(),
                "another replica leads fewer controllers: releasing this lease"
            );
            election.term.leave();
        }
        mine
    }

    /// Deletes the Leases of replicas that no longer exist.
    async fn delete_stale_leases(&self) {
        let gone = self
            .replicas
            .iter()
            .flat_map(|replicas| replicas.gone(Instant::now()));
        for (name, version) in gone {
            self.leases.delete(&name, version).await;
        }
    }

    /// Releases the leases that another replica should take, once the running reconciles have ended.
    async fn give_up(&mut self) {
        let (now, clock) = (Instant::now(), Timestamp::now());
        let mut records = Vec::new();
        for election in self.elections.values_mut() {
            if election.term.phase() == Phase::Leaving && election.term.is_idle() {
                election.term.end();
                records.extend(election.candidate.release(now, clock));
            }
        }
        self.write_back(records).await;
    }

    async fn write_back(&mut self, records: Vec<Lease>) {
        let named = records
            .into_iter()
            .map(|record| (record.metadata.name.clone().unwrap_or_default(), record));
        let named = named.collect();
        for (name, _, outcome) in self.leases.write_all(named).await {
            let Some(election) = self.elections.get_mut(&name) else {
                continue;
            };
            match outcome {
                LeaseOutcome::Won(lease) => election.candidate.observe(Some(lease), Instant::now()),
                LeaseOutcome::Lost(lease) => election.candidate.observe(lease, Instant::now()),
                LeaseOutcome::Failed(error) => self.failed(&error),
            }
        }
    }

    async fn release_all(&mut self) {
        let (now, clock) = (Instant::now(), Timestamp::now());
        let mut records = Vec::new();
        for election in self.elections.values_mut() {
            election.term.end();
            records.extend(election.candidate.release(now, clock));
        }
        // Deleted first, so that a replica that sees free leases does not count this one as a member.
        if let Some(replicas) = &self.replicas {
            self.leases.delete(replicas.own_name(), None).await;
        }
        self.write_back(records).await;
        self.report_changes();
    }

    /// Reports what has changed: in the log, as an Event, as a metric, and to `/readyz`.
    fn report_changes(&mut self) {
        for election in self.elections.values_mut() {
            let leads = election.term.holds();
            if !leads {
                election.term.end();
            }
            for controller in &election.controllers {
                self.instruments.metrics.set_leader(controller, Some(leads));
                let words = match election.candidate.holder() {
                    _ if leads => "it leads".to_owned(),
                    Some(holder) if holder != self.identity => format!("stands by; {holder} leads"),
                    _ => "stands by; no replica leads yet".to_owned(),
                };
                self.instruments.health.leads(controller, Some(words));
            }
            if leads == election.leads {
                continue;
            }
            election.leads = leads;
            let lease = election.candidate.name();
            let verb = if leads {
                info!(lease, identity = self.identity, "this replica leads");
                "became leader"
            } else {
                let holder = election
                    .candidate
                    .holder()
                    .filter(|holder| *holder != self.identity);
                info!(lease, identity = self.identity, holder, "this replica stands by");
                "stopped leading"
            };
            if let Some(lease) = election.candidate.lease() {
                self.events.elected(lease, &format!("{} {verb}", self.identity));
            }
        }
    }

    /// Publishes what is known about the Leases, if someone could look.
    fn publish(&mut self) {
        if self.instruments.journal.is_none() {
            return;
        }
        let now = Instant::now();
        let elections = self.elections.values();
        let leases = elections.filter(|election| !election.controllers.is_empty());
        self.report.leases = leases
            .map(|election| {
                let state = match election.term.phase() {
                    Phase::Leaving => LeaseState::Leaving,
                    _ if election.term.holds() => LeaseState::Here,
                    _ => match election.candidate.holder() {
                        Some(holder) if holder != self.identity && !election.candidate.is_free(now) => {
                            LeaseState::Other
                        }
                        _ => LeaseState::Nobody,
                    },
                };
                LeaseReport::of(&election.candidate, &election.controllers, state)
            })
            .collect();
        self.reports.send_if_modified(|last| {
            let is_new = *last != self.report;
            if is_new {
                last.clone_from(&self.report);
            }
            is_new
        });
    }

    /// Reports a failed request, and leaves the API server alone for as long as it asks. Not for too long: other
    /// replicas count this one as gone when it does not renew its own Lease.
    fn failed(&mut self, error: &LeaseError) {
        if let Some(asked) = error.retry_after {
            let quiet = at_least(asked).min(self.config.timing.renew_deadline / 2);
            self.quiet_until = Some(Instant::now() + quiet);
        }
        let text = error.to_string();
        self.report.problem = Some(text.clone());
        if self.last_logged.as_ref() == Some(&text) {
            debug!("{text}");
        } else {
            warn!("{text}");
            self.last_logged = Some(text);
        }
    }

    /// Returns when the next iteration is due.
    fn next(&self) -> Instant {
        let now = Instant::now();
        let poll = now + self.poll();
        let elections = self.elections.values().map(|election| {
            if election.candidate.holds(now) && election.term.phase() == Phase::Leading {
                return election.due;
            }
            match election.candidate.step(now, Timestamp::UNIX_EPOCH) {
                // Exactly when the lease expires.
                Step::Wait(expiry) => expiry.min(poll),
                Step::Write(_) | Step::Look => poll,
            }
        });
        let shared = self.replicas.as_ref().map(|_| poll);
        elections
            .chain(shared)
            .min()
            .unwrap_or(now + self.config.timing.retry_period)
            .max(now)
    }
}
