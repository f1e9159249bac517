//! The page: what the host does, for people who look. It reads what is in memory and writes nothing.
//!
//! On a loopback address it needs no login, like any local tool: a program that reaches the address is on this machine, or may
//! forward a port of the host's pod. Names of other sites that lead to this machine are refused (`server`). It is served on no
//! other address.
//!
//! In reading order: `view` is what can be asked for, `stream` sends it again when it changes, `server` answers requests, and
//! `assets` are the files of the page, which uses nothing from elsewhere.

mod assets;
mod server;
mod stream;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use operator_host_core::sync::lock;
use operator_host_engine::reconcile::context::Context;
use operator_host_instruments::health::Health;
use operator_host_instruments::journal::Journal;
use operator_host_lease::report::LeaseReport;

pub use self::server::start;

/// The controllers that run, so that their objects can be shown.
#[derive(Default)]
pub struct RunningControllers(Mutex<BTreeMap<String, Weak<Context>>>);

impl RunningControllers {
    /// Adds a controller that now runs.
    pub fn open(&self, context: &Arc<Context>) {
        let mut controllers = lock(&self.0);
        controllers.retain(|_, context| context.strong_count() > 0);
        controllers.insert(context.config.id.clone(), Arc::downgrade(context));
    }

    /// Returns a controller by its name.
    pub fn named(&self, controller: &str) -> Option<Arc<Context>> {
        lock(&self.0).get(controller)?.upgrade()
    }
}

/// What the page shows.
pub struct Sources {
    /// The controllers that run.
    pub controllers: Arc<RunningControllers>,
    /// What is ready, and the versions of all plugins.
    pub health: Arc<Health>,
    /// What the controllers did last.
    pub journal: Arc<Journal>,
    /// This replica's name in the Lease.
    pub identity: String,
    /// What is known about the Lease; `None` without election.
    pub lease: watch::Receiver<Option<LeaseReport>>,
}
