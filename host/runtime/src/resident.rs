//! The machine code of one plugin: in memory while the plugin is called, and otherwise in the compiled cache only.
//!
//! A hundred plugins of which three have work cost the memory of three. Loading code from the cache takes a
//! millisecond; the first call after a pause waits for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use crate::code_cache::Stored;
use crate::error::LoadError;
use crate::loader::{Loader, Prepared};

/// How long code stays in memory that was loaded to ask for the description only.
const UNCALLED: Duration = Duration::from_secs(2);

/// How long a call waits for its code, which is loaded in a millisecond unless the disk or the processor is overloaded.
const PATIENCE: Duration = Duration::from_secs(60);

/// The machine code of a plugin, ready for calls.
pub(crate) enum Resident {
    /// There is no cache, or it could not take the code: it stays in memory.
    Always(Arc<Prepared>),
    /// The cache has it.
    WhileUsed(Arc<Parked>),
}

/// Code that can be loaded from the cache at any time.
pub(crate) struct Parked {
    loader: Arc<Loader>,
    /// How long code without a call stays in memory.
    idle: Duration,
    /// Held while the code is loaded, so that concurrent calls load it once.
    state: Arc<Mutex<State>>,
}

struct State {
    stored: Arc<Stored>,
    loaded: Option<Loaded>,
}

struct Loaded {
    prepared: Arc<Prepared>,
    /// When it is dropped without another call.
    until: Instant,
}

impl Resident {
    /// Describes code that the cache has. `prepared` is what was loaded to ask for the description: the first call
    /// usually comes at once.
    pub(crate) fn parked(
        loader: &Arc<Loader>,
        stored: Arc<Stored>,
        prepared: Option<Prepared>,
        idle: Duration,
    ) -> Self {
        let is_loaded = prepared.is_some();
        let parked = Arc::new(Parked {
            loader: Arc::clone(loader),
            idle,
            state: Arc::new(Mutex::new(State {
                stored,
                loaded: prepared.map(|prepared| Loaded {
                    prepared: Arc::new(prepared),
                    until: Instant::now() + idle.min(UNCALLED),
                }),
            })),
        });
        if is_loaded {
            tokio::spawn(drop_when_idle(Arc::downgrade(&parked)));
        }
        Self::WhileUsed(parked)
    }

    /// Returns the code, and loads it first if necessary.
    ///
    /// # Errors
    /// Returns an error when the entry of the cache was changed since it was opened, or when it is not loaded within a minute.
    pub(crate) async fn prepared(&self) -> Result<Arc<Prepared>, LoadError> {
        match self {
            Self::Always(prepared) => Ok(Arc::clone(prepared)),
            Self::WhileUsed(parked) => {
                let prepared = timeout(PATIENCE, parked.prepared()).await;
                prepared.unwrap_or_else(|_| {
                    Err(LoadError::host(format!(
                            "its compiled code was not loaded from the cache within {PATIENCE:?}; give the host more CPU, or \
                             a faster volume for the cache"
                        )))
                })
            }
        }
    }

    /// Reports whether the code is in memory.
    pub(crate) async fn is_loaded(&self) -> bool {
        match self {
            Self::Always(_) => true,
            Self::WhileUsed(parked) => parked.state.lock().await.loaded.is_some(),
        }
    }
}

impl Parked {
    async fn prepared(self: &Arc<Self>) -> Result<Arc<Prepared>, LoadError> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        if let Some(loaded) = &mut state.loaded {
            loaded.until = Instant::now() + self.idle;
            return Ok(Arc::clone(&loaded.prepared));
        }
        // In its own task: the code is kept for the next call even if this one is not waited for any more.
        let load = tokio::spawn(Arc::clone(self).load(state));
        load.await.map_err(LoadError::host)?
    }

    /// Loads the code, and keeps it in `state`.
    async fn load(self: Arc<Self>, mut state: OwnedMutexGuard<State>) -> Result<Arc<Prepared>, LoadError> {
        let prepared = self.loader.restore(Arc::clone(&state.stored)).await?;
        let prepared = Arc::new(prepared);
        state.loaded = Some(Loaded {
            prepared: Arc::clone(&prepared),
            until: Instant::now() + self.idle,
        });
        tokio::spawn(drop_when_idle(Arc::downgrade(&self)));
        Ok(prepared)
    }
}

/// Drops the code when it had no call for a while. Calls that still run keep it until they end.
async fn drop_when_idle(parked: Weak<Parked>) {
    let mut until = Instant::now();
    loop {
        sleep_until(until).await;
        let Some(parked) = parked.upgrade() else { return };
        let mut state = parked.state.lock().await;
        match &state.loaded {
            Some(code) if code.until > Instant::now() => until = code.until,
            _ => {
                state.loaded = None;
                debug!("dropped the code of a plugin that is not called");
                return;
            }
        }
    }
}
