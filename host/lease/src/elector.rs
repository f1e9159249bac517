//! The task that takes, renews and releases the Lease, and updates the term.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::lease::{Candidate, Step};
use super::report::{LeaseReport, LeaseState};
use super::requests::{LeaseError, LeaseOutcome, Requests};
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::term::Term;
use operator_host_config::leadership::{LeadershipConfig, Timing};
use operator_host_core::backoff::at_least;
use operator_host_instruments::Instruments;
use operator_host_instruments::health::Pulse;

/// Each iteration of the loop must finish in this time.
const PULSE: Duration = Duration::from_secs(60);
/// Maximum time to release the Lease at shutdown.
const RELEASE: Duration = Duration::from_secs(2);

pub(super) struct Elector {
    identity: String,
    timing: Timing,
    namespace: String,
    requests: Requests,
    candidate: Candidate,
    term: Term,
    events: Events,
    instruments: Instruments,
    pulse: Pulse,
    /// When to renew.
    due: Instant,
    /// Until when the API server has asked to be left alone. Renewals have deadlines of their own.
    quiet_until: Option<Instant>,
    /// Why the last request failed; `None` when it succeeded.
    problem: Option<String>,
    /// The last problem that was logged, so that it is logged once.
    last_logged: Option<String>,
    /// Whether the Lease could be read and written once.
    took_part: bool,
    /// The state that was reported last.
    leads: bool,
    reports: watch::Sender<Option<LeaseReport>>,
}

impl Elector {
    pub(super) fn new(
        config: &LeadershipConfig,
        identity: &str,
        leases: Api<Lease>,
        term: Term,
        events: Events,
        instruments: Instruments,
        reports: watch::Sender<Option<LeaseReport>>,
    ) -> Self {
        Self {
            identity: identity.to_owned(),
            timing: config.timing,
            namespace: leases.namespace().unwrap_or_default().to_owned(),
            requests: Requests::new(leases, config),
            candidate: Candidate::new(&config.name, identity, config.timing),
            term,
            events,
            pulse: instruments.health.pulse("leader-election".to_owned(), PULSE),
            instruments,
            due: Instant::now(),
            quiet_until: None,
            problem: None,
            last_logged: None,
            took_part: false,
            leads: false,
            reports,
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            self.pulse.beat();
            let next = self.turn().await;
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = stop.cancelled() => {}
            }
        }
        if tokio::time::timeout(RELEASE, self.release()).await.is_err() {
            warn!("cannot release the Lease within {RELEASE:?}: another replica takes it when it expires");
        }
    }

    /// Runs one iteration, and returns when the next is due.
    async fn turn(&mut self) -> Instant {
        self.problem = None;
        let now = Instant::now();
        if self.candidate.holds(now) {
            if self.due <= now {
                self.write().await;
            }
        } else if self.quiet_until.is_none_or(|until| until <= now) {
            self.take().await;
        }
        self.report_changes();
        self.took_part |= self.problem.is_none();
        // What fails later passes, and makes no replica unready.
        let problem = self.problem.clone().filter(|_| !self.took_part);
        self.instruments.health.cannot_elect(problem);
        self.publish();
        self.next()
    }

    /// Reads the Lease, and takes it when it is free.
    async fn take(&mut self) {
        match self.requests.read().await {
            Ok(lease) => {
                self.candidate.observe(lease, Instant::now());
                // Reconciles of an earlier term must have ended, because they do not know what other replicas did
                // since.
                if self.term.is_idle() {
                    self.write().await;
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Takes or renews the Lease, if that is the next step.
    async fn write(&mut self) {
        let sent = Instant::now();
        let Step::Write(record) = self.candidate.step(sent, Timestamp::now()) else {
            return;
        };
        self.candidate.writing(&record, sent);
        let outcome = self.requests.write(&record).await;
        let now = Instant::now();
        match outcome {
            LeaseOutcome::Won(answer) => {
                let renewed = self.candidate.won(answer, sent, now);
                self.due = if renewed {
                    sent + self.timing.retry_period
                } else {
                    now
                };
                if let Some((until, expiry)) = self.candidate.term() {
                    self.term.extend(until, expiry);
                }
                self.last_logged = None;
            }
            LeaseOutcome::Lost(lease) => {
                self.candidate.observe(lease, now);
                if self.candidate.holds(now) {
                    // The Lease is still ours, with different contents: renewed in the next iteration.
                    self.due = now;
                } else {
                    self.term.end();
                }
            }
            LeaseOutcome::Failed(error) => {
                self.due = now + self.poll();
                if let (Some(asked), Some((until, _))) = (error.retry_after, self.candidate.term()) {
                    // A leader that waits as long as it was asked to must still have time for another attempt.
                    let latest = until.checked_sub(self.timing.retry_period).unwrap_or(now);
                    self.due = self.due.max(latest.min(now + asked));
                }
                self.failed(&error);
            }
        }
    }

    async fn release(&mut self) {
        self.term.end();
        if let Some(record) = self.candidate.release(Instant::now(), Timestamp::now()) {
            match self.requests.write(&record).await {
                LeaseOutcome::Won(lease) => self.candidate.observe(Some(lease), Instant::now()),
                LeaseOutcome::Lost(lease) => self.candidate.observe(lease, Instant::now()),
                LeaseOutcome::Failed(error) => self.failed(&error),
            }
        }
        self.report_changes();
    }

    /// Reports what has changed: in the log, as an Event, as a metric, and to `/readyz`.
    fn report_changes(&mut self) {
        let leads = self.term.holds();
        if !leads {
            self.term.end();
        }
        self.instruments.metrics.set_leader(leads);
        let holder = self.candidate.holder().filter(|holder| *holder != self.identity);
        let words = match holder {
            _ if leads => "it leads".to_owned(),
            Some(holder) => format!("stands by; {holder} leads"),
            None => "stands by; no replica leads yet".to_owned(),
        };
        self.instruments.health.leader(words);
        if leads == self.leads {
            return;
        }
        self.leads = leads;
        let lease = &self.candidate.name;
        let verb = if leads {
            info!(lease, identity = self.identity, "this replica leads");
            "became leader"
        } else {
            info!(lease, identity = self.identity, holder, "this replica stands by");
            "stopped leading"
        };
        if let Some(lease) = self.candidate.lease() {
            self.events.elected(lease, &format!("{} {verb}", self.identity));
        }
    }

    /// Publishes what is known about the Lease, if someone could look.
    fn publish(&self) {
        if self.instruments.journal.is_none() {
            return;
        }
        let state = match self.candidate.holder() {
            _ if self.term.holds() => LeaseState::Here,
            Some(holder) if holder != self.identity && !self.candidate.is_free(Instant::now()) => {
                LeaseState::Other
            }
            _ => LeaseState::Nobody,
        };
        let report = LeaseReport::of(&self.candidate, &self.namespace, self.problem.clone(), state);
        self.reports.send_replace(Some(report));
    }

    /// Reports a failed request, and leaves the API server alone for as long as it asks.
    fn failed(&mut self, error: &LeaseError) {
        if let Some(asked) = error.retry_after {
            let quiet = at_least(asked).min(self.timing.renew_deadline / 2);
            self.quiet_until = Some(Instant::now() + quiet);
        }
        let text = error.to_string();
        if self.last_logged.as_ref() == Some(&text) {
            debug!("{text}");
        } else {
            warn!("{text}");
            self.last_logged = Some(text.clone());
        }
        self.problem = Some(text);
    }

    /// Returns how often a replica that does not lead reads the Lease.
    fn poll(&self) -> Duration {
        self.timing.retry_period / 4
    }

    /// Returns when the next iteration is due.
    fn next(&self) -> Instant {
        let now = Instant::now();
        if self.candidate.holds(now) {
            return self.due;
        }
        let poll = now + self.poll();
        match self.candidate.step(now, Timestamp::UNIX_EPOCH) {
            // Exactly when the Lease expires.
            Step::Wait(expiry) => expiry.min(poll),
            Step::Write(_) | Step::Look => poll,
        }
    }
}
