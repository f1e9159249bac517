//! Leader election: selects which of several replicas writes, with Leases.
//!
//! Every replica is warm: its watches run, its caches are full, its plugins are compiled. A Lease gates only
//! the writes, in three independent places: `controller::run` starts workers only while it leads; every
//! request checks the [`operator_host_cluster::term::Term`] before it is sent; and the connections that carry writes reject bytes
//! once the term has ended (`client::fence`). The term ends by the replica's own monotonic clock, before
//! another replica may begin.
//!
//! In reading order: `term` is the right to write, `lease` one Lease as a state machine, `assignment` assigns
//! controllers when replicas share them, `replicas` lets them discover each other, `leases` sends the requests, `elector`
//! is the task that combines them, and `report` is what it knows, for people.

pub mod assignment;
mod elector;
pub mod lease;
mod leases;
mod replicas;
pub mod report;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Api;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::elector::Elector;
use self::report::LeadershipReport;
use operator_host_cluster::client::{ClientError, Connection, WriterFactory};
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::term::Term;
use operator_host_config::leadership::{LeadershipConfig, LeadershipMode};
use operator_host_instruments::Instruments;

/// Returns an identity that is unique to this process, for Leases and for the audit log: the host name, the
/// version, and a random number drawn at the start.
#[must_use]
pub fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator-host".to_owned());
    // Without randomness, two processes with the same host name could mistake each other's Leases for their
    // own. The time distinguishes them.
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
    /// The writer factory of all controllers, unless each controller has its own.
    shared: Option<WriterFactory>,
    report: watch::Receiver<LeadershipReport>,
    instruments: Instruments,
    stop: CancellationToken,
}

/// The controllers that take part in elections.
#[derive(Default)]
struct Roster {
    /// By controller.
    writer_factories: Mutex<BTreeMap<String, WriterFactory>>,
    changed: Notify,
}

impl Roster {
    fn writer_factories(&self) -> MutexGuard<'_, BTreeMap<String, WriterFactory>> {
        self.writer_factories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the term by controller.
    fn terms(&self) -> BTreeMap<String, Term> {
        let factories = self.writer_factories();
        factories
            .iter()
            .map(|(controller, factory)| (controller.clone(), factory.term().clone()))
            .collect()
    }
}

/// The task of the elections; it ends with [`Leadership::release`].
pub struct Elections(Option<JoinHandle<()>>);

impl Leadership {
    /// Starts to take part in elections. `identity` is this replica's name in the Leases.
    ///
    /// # Errors
    /// Returns an error when the connection cannot be used.
    pub fn start(
        config: &LeadershipConfig,
        connection: Arc<Connection>,
        identity: &str,
        events: Events,
        instruments: &Instruments,
    ) -> Result<(Self, Elections), ClientError> {
        let timing = &config.timing;
        let shared = match config.mode {
            LeadershipMode::None => Some(connection.writer_factory(&Term::endless(), timing)?),
            LeadershipMode::Single => Some(connection.writer_factory(&Term::elected(), timing)?),
            LeadershipMode::PerController => None,
        };
        let (reports, report) = watch::channel(LeadershipReport::empty(config.mode));
        let leadership = Self {
            report,
            config: config.clone(),
            roster: Arc::default(),
            shared,
            instruments: instruments.clone(),
            stop: CancellationToken::new(),
            connection,
        };
        if config.mode == LeadershipMode::None {
            return Ok((leadership, Elections(None)));
        }
        let client = leadership.connection.lease_client()?;
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
            reports,
        );
        let task = tokio::spawn(elector.run(leadership.stop.clone()));
        Ok((leadership, Elections(Some(task))))
    }

    /// Adds a controller to the elections; returns the factory for the writers that it uses while it leads. A
    /// controller that already takes part, and only has a new configuration, keeps its term.
    ///
    /// # Errors
    /// Returns an error when the connection cannot be used.
    pub fn join(&self, controller: &str) -> Result<WriterFactory, ClientError> {
        if let Some(factory) = self.roster.writer_factories().get(controller) {
            return Ok(factory.clone());
        }
        let factory = match &self.shared {
            Some(factory) => factory.clone(),
            None => self
                .connection
                .writer_factory(&Term::elected(), &self.config.timing)?,
        };
        let alone = self.config.mode == LeadershipMode::None;
        self.instruments.metrics.set_leader(controller, Some(alone));
        self.roster
            .writer_factories()
            .insert(controller.to_owned(), factory.clone());
        self.roster.changed.notify_one();
        Ok(factory)
    }

    /// Removes a controller that has stopped for good, so that another replica may take its lease.
    pub fn leave(&self, controller: &str) {
        self.roster.writer_factories().remove(controller);
        self.roster.changed.notify_one();
        self.instruments.metrics.set_leader(controller, None);
        self.instruments.health.leads(controller, None);
    }

    /// Returns the receiver of what is known about the Leases. It is kept up to date only while the page is served.
    #[must_use]
    pub fn report(&self) -> watch::Receiver<LeadershipReport> {
        self.report.clone()
    }

    /// Releases all leases, so that another replica does not wait until they expire. Nothing may be written
    /// afterwards.
    pub async fn release(&self, elections: Elections) {
        self.stop.cancel();
        if let Some(task) = elections.0
            && let Err(panic) = task.await
        {
            warn!(%panic, "internal error: the elections panicked; please report it");
        }
    }
}
