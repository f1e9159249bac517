//! Leader election: selects which of several replicas writes, with a Lease.
//!
//! Every replica is warm: its watches run, its caches are full, its plugins are compiled. The Lease gates only
//! the writes, in three independent places: `controller::run` starts workers only while it leads; every
//! request checks the [`operator_host_cluster::term::Term`] before it is sent; and the connections that carry writes reject bytes
//! once the term has ended (`client::fence`). The term ends by the replica's own monotonic clock, before
//! another replica may begin.
//!
//! In reading order: `term` is the right to write, `lease` the Lease as a state machine, `requests` sends the requests,
//! `elector` is the task that combines them, and `report` is what it knows, for people.

mod elector;
pub mod lease;
pub mod report;
mod requests;

use std::sync::Arc;

use kube::Api;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::elector::Elector;
use self::report::LeaseReport;
use operator_host_cluster::client::{ClientError, Connection, Pace, WriterFactory};
use operator_host_cluster::event_recorder::Events;
use operator_host_cluster::term::Term;
use operator_host_config::leadership::{LeadershipConfig, LeadershipMode};
use operator_host_instruments::Instruments;

/// Returns an identity that is unique to this process, for the Lease and for the audit log: the host name, the
/// version, and a random number drawn at the start.
pub fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator-host".to_owned());
    // Without randomness, two processes with the same host name could mistake each other's Lease for their
    // own. The time distinguishes them.
    let drawn =
        getrandom::u32().unwrap_or_else(|_| jiff::Timestamp::now().subsec_nanosecond().unsigned_abs());
    format!("{host}_{}_{drawn:08x}", env!("CARGO_PKG_VERSION"))
}

/// The part of this process in the election. It ends with [`Leadership::release`].
pub struct Leadership {
    factory: WriterFactory,
    report: watch::Receiver<Option<LeaseReport>>,
    events: Events,
    stop: CancellationToken,
    /// `None` without election.
    task: Option<JoinHandle<()>>,
}

impl Leadership {
    /// Starts to take part in the election, if there is one. `identity` is this replica's name in the Lease, and `program` that of
    /// the Events about it where the host has no name.
    ///
    /// # Errors
    /// Returns an error when the connection cannot be used.
    pub fn start(
        config: &LeadershipConfig,
        connection: &Arc<Connection>,
        identity: &str,
        program: &str,
        instruments: &Instruments,
    ) -> Result<Self, ClientError> {
        // Replicas that do not lead write nothing but Events about elections, which have a rate of their own.
        let own = connection.writer_factory(&Term::endless(), &config.timing)?;
        let limits = Arc::new(own.write_limits(Pace::new(1, 1)));
        let instance = std::env::var("HOSTNAME").unwrap_or_else(|_| program.to_owned());
        let events = Events::new(
            own.writer(None)?.limited(&limits),
            instance,
            Arc::clone(&instruments.metrics),
        );
        let (reports, report) = watch::channel(None);
        let stop = CancellationToken::new();
        let is_alone = config.mode == LeadershipMode::None;
        instruments.metrics.set_leader(is_alone);
        let term = if is_alone {
            Term::endless()
        } else {
            Term::elected()
        };
        let factory = connection.writer_factory(&term, &config.timing)?;
        let mut task = None;
        if !is_alone {
            let client = connection.lease_client()?;
            let namespace = config.namespace.as_deref().unwrap_or(client.default_namespace());
            let leases = Api::namespaced(client.clone(), namespace);
            info!(
                lease = %format_args!("{namespace}/{}", config.name),
                identity,
                "taking part in the election"
            );
            let (events, instruments) = (events.clone(), instruments.clone());
            let elector = Elector::new(config, identity, leases, term, events, instruments, reports);
            task = Some(tokio::spawn(elector.run(stop.clone())));
        }
        Ok(Self {
            factory,
            report,
            events,
            stop,
            task,
        })
    }

    /// Returns the factory for the writers of all controllers, which write only while this replica leads.
    pub const fn factory(&self) -> &WriterFactory {
        &self.factory
    }

    /// Returns the recorder of Events, which needs no term.
    pub const fn events(&self) -> &Events {
        &self.events
    }

    /// Returns the receiver of what is known about the Lease; `None` without election. It is kept up to date only while the
    /// page is served.
    pub fn report(&self) -> watch::Receiver<Option<LeaseReport>> {
        self.report.clone()
    }

    /// Releases the Lease, so that another replica does not wait until it expires. Nothing may be written
    /// afterwards.
    pub async fn release(self) {
        self.stop.cancel();
        if let Some(task) = self.task
            && let Err(panic) = task.await
        {
            warn!(%panic, "internal error: the election panicked; please report it");
        }
    }
}
