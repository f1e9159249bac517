//! Which of several replicas writes: by Leases, so that Kubernetes itself is the distributed engine.
//!
//! Every replica is warm: its watches run, its caches are full, its plugins are compiled. What a Lease gates is the
//! writing, in three places that do not trust each other: `controller::run` has workers only while it leads; every
//! request looks at the [`term::Term`] before it is made; and the connections that carry writes refuse bytes once the
//! term is over (`client::fence`). The term ends by the replica's own monotonic clock, before another may begin.
//!
//! In reading order: `term` the right to write, `lease` one Lease as a state machine, `share` who leads what when
//! replicas share the controllers, `replicas` how they know of each other, `elector` the task that does it.

mod elector;
pub mod lease;
mod leases;
mod replicas;
pub mod share;
pub mod term;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Api;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::elector::Elector;
use self::term::Term;
use crate::cluster::client::{ClientError, Connection, Writers};
use crate::cluster::event_recorder::Events;
use crate::config::leadership::{LeadershipConfig, Mode};
use crate::telemetry::Instruments;

/// What tells this process from every other, for Leases and for the audit log: where it runs, its version, and a
/// number drawn at its start.
#[must_use]
pub fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator-host".to_owned());
    // Without randomness two processes of one name could take each other for themselves; the time tells them apart.
    let drawn =
        getrandom::u32().unwrap_or_else(|_| jiff::Timestamp::now().subsec_nanosecond().unsigned_abs());
    format!("{host}_{}_{drawn:08x}", env!("CARGO_PKG_VERSION"))
}

/// The controllers of this process and their terms. Cheap to clone.
#[derive(Clone)]
pub struct Leadership {
    connection: Arc<Connection>,
    config: LeadershipConfig,
    roster: Arc<Roster>,
    /// Of all controllers, unless each has its own.
    shared: Option<Writers>,
    instruments: Instruments,
    stop: CancellationToken,
}

/// Who takes part in elections.
#[derive(Default)]
struct Roster {
    /// With the name of the Lease, by controller.
    writers: Mutex<BTreeMap<String, (String, Writers)>>,
    changed: Notify,
}

impl Roster {
    fn writers(&self) -> MutexGuard<'_, BTreeMap<String, (String, Writers)>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The terms by controller, with the name of the Lease.
    fn terms(&self) -> BTreeMap<String, (String, Term)> {
        let writers = self.writers();
        writers
            .iter()
            .map(|(controller, (lease, writers))| {
                (controller.clone(), (lease.clone(), writers.term().clone()))
            })
            .collect()
    }
}

/// The task of the elections; it ends with [`Leadership::release`].
pub struct Elections(Option<JoinHandle<()>>);

impl Leadership {
    /// Begins to take part in elections. `identity` is this replica's name in the Leases.
    ///
    /// # Errors
    /// When the connection cannot be used.
    pub fn start(
        config: &LeadershipConfig,
        connection: Arc<Connection>,
        identity: &str,
        events: Events,
        instruments: &Instruments,
    ) -> Result<(Self, Elections), ClientError> {
        let timing = &config.timing;
        let shared = match config.mode {
            Mode::None => Some(connection.writers(&Term::endless(), timing)?),
            Mode::Single => Some(connection.writers(&Term::elected(), timing)?),
            Mode::PerController => None,
        };
        let leadership = Self {
            config: config.clone(),
            roster: Arc::default(),
            shared,
            instruments: instruments.clone(),
            stop: CancellationToken::new(),
            connection,
        };
        if config.mode == Mode::None {
            return Ok((leadership, Elections(None)));
        }
        let client = leadership.connection.client()?;
        let namespace = config
            .namespace
            .clone()
            .unwrap_or_else(|| client.default_namespace().to_owned());
        info!(
            mode = config.mode.as_str(),
            lease = %format_args!("{namespace}/{}", config.name),
            identity,
            "taking part in elections"
        );
        let elector = Elector::new(
            config.clone(),
            identity.to_owned(),
            Api::namespaced(client, &namespace),
            Arc::clone(&leadership.roster),
            events,
            instruments.clone(),
        );
        let task = tokio::spawn(elector.run(leadership.stop.clone()));
        Ok((leadership, Elections(Some(task))))
    }

    /// A controller takes part from now on; what it writes with, once it leads. One that takes part already, and is only
    /// configured otherwise, keeps its term. `lease` names its Lease where each controller has one.
    ///
    /// # Errors
    /// When the connection cannot be used.
    pub fn join(&self, controller: &str, lease: &str) -> Result<Writers, ClientError> {
        if let Some((same, writers)) = self.roster.writers().get(controller)
            && same == lease
        {
            return Ok(writers.clone());
        }
        let writers = match &self.shared {
            Some(writers) => writers.clone(),
            None => self.connection.writers(&Term::elected(), &self.config.timing)?,
        };
        let alone = self.config.mode == Mode::None;
        self.instruments.metrics.set_leader(controller, Some(alone));
        self.roster
            .writers()
            .insert(controller.to_owned(), (lease.to_owned(), writers.clone()));
        self.roster.changed.notify_one();
        Ok(writers)
    }

    /// A controller has stopped for good: another replica may have its lease.
    pub fn leave(&self, controller: &str) {
        self.roster.writers().remove(controller);
        self.roster.changed.notify_one();
        self.instruments.metrics.set_leader(controller, None);
        self.instruments.health.leads(controller, None);
    }

    /// Gives all leases back, so that another replica need not wait for their end. Nothing is to be written any more.
    pub async fn release(&self, elections: Elections) {
        self.stop.cancel();
        if let Some(task) = elections.0
            && let Err(panic) = task.await
        {
            warn!(%panic, "the elections panicked: this is a bug of the host");
        }
    }
}
