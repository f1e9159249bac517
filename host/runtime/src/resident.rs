//! The machine code of one plugin: in memory while the plugin is called, and otherwise in the compiled cache only.
//!
//! A hundred plugins of which three have work cost the memory of three. Loading code from the cache takes a
//! millisecond; the first call after a pause waits for it.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use crate::code_cache::Stored;
use crate::digest::Digest;
use crate::error::LoadError;
use crate::limits::Limits;
use crate::loader::{CodeOrigin, Loader, Prepared};
use crate::plugin_bytes::PluginBytes;

/// How long code stays in memory that was loaded to ask for the description only.
const UNCALLED: Duration = Duration::from_secs(2);

/// How long a call waits for its code, which is loaded in a millisecond unless the disk or the processor is overloaded.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it takes until code that could not be made again is tried once more.
const RENEWAL: Duration = Duration::from_secs(60);

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
    origin: Origin,
    /// How long code without a call stays in memory.
    idle: Duration,
    /// Held while the code is loaded, so that concurrent calls load it once.
    state: Arc<Mutex<State>>,
}

/// What code is compiled from again if its entry in the cache is damaged.
pub(crate) struct Origin {
    /// The plugin's file. The watch of the file usually has the same.
    file: std::sync::Mutex<PluginBytes>,
    limits: Limits,
}

struct State {
    /// The entry of the cache; `None` when the cache could not take the code again, or damages it: it stays in memory.
    stored: Option<Arc<Stored>>,
    loaded: Option<Loaded>,
    /// Whether the entry was compiled again, and has not been loaded since.
    is_renewed: bool,
    /// Why the code could not be made again, and until when that is not tried once more.
    failed: Option<(String, Instant)>,
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
        origin: Origin,
        stored: Arc<Stored>,
        prepared: Option<Prepared>,
        idle: Duration,
    ) -> Self {
        let is_loaded = prepared.is_some();
        let parked = Arc::new(Parked {
            loader: Arc::clone(loader),
            origin,
            idle,
            state: Arc::new(Mutex::new(State {
                stored: Some(stored),
                loaded: prepared.map(|prepared| Loaded {
                    prepared: Arc::new(prepared),
                    until: Instant::now() + idle.min(UNCALLED),
                }),
                is_renewed: false,
                failed: None,
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
    /// Returns an error when the entry of the cache was changed since it was opened and the code cannot be compiled again,
    /// or when it is not loaded within a minute.
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

    /// Returns the plugin's file, from which it can be compiled again; `None` when the code stays in memory.
    pub(crate) fn file(&self) -> Option<PluginBytes> {
        match self {
            Self::Always(_) => None,
            Self::WhileUsed(parked) => Some(parked.origin.file().clone()),
        }
    }

    /// Replaces the copy of the plugin's file that is used to compile it again.
    pub(crate) fn share(&self, file: &PluginBytes) {
        if let Self::WhileUsed(parked) = self {
            *parked.origin.file() = file.clone();
        }
    }
}

impl Origin {
    pub(crate) const fn new(file: PluginBytes, limits: Limits) -> Self {
        Self {
            file: std::sync::Mutex::new(file),
            limits,
        }
    }

    fn file(&self) -> std::sync::MutexGuard<'_, PluginBytes> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
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
        let restored = match &state.stored {
            Some(stored) => self.loader.restore(Arc::clone(stored)).await?,
            None => None,
        };
        let prepared = match restored {
            Some(prepared) => {
                state.is_renewed = false;
                prepared
            }
            None => self.renew(&mut state).await?,
        };
        let prepared = Arc::new(prepared);
        state.loaded = Some(Loaded {
            prepared: Arc::clone(&prepared),
            until: Instant::now() + self.idle,
        });
        if state.stored.is_some() {
            tokio::spawn(drop_when_idle(Arc::downgrade(&self)));
        }
        Ok(prepared)
    }

    /// Makes the code again, since its entry in the cache is damaged. A failure is not repeated for a while, however often
    /// the plugin is called. Code whose new entry is damaged, too, stays in memory, so that it is not compiled after every
    /// pause.
    async fn renew(&self, state: &mut State) -> Result<Prepared, LoadError> {
        state.stored = None;
        let failed = |message: &str| {
            LoadError::host(format!(
                "its compiled code in the cache was damaged, and it cannot be compiled again: {message}"
            ))
        };
        if let Some((message, until)) = &state.failed
            && Instant::now() < *until
        {
            return Err(failed(message));
        }
        let file = self.origin.file().clone();
        let renewed = match file.read().await {
            Ok(bytes) => {
                let digest = Digest::of(&bytes);
                let renewed = self.loader.renew(bytes, &self.origin.limits).await;
                renewed.map(|(prepared, stored, made)| (prepared, stored, made, digest))
            }
            Err(error) => Err(LoadError::host(format!(
                "the plugin's file cannot be read again: {error}"
            ))),
        };
        match renewed {
            Ok((prepared, stored, made, digest)) => {
                let is_compiled = made == CodeOrigin::Compiled;
                if is_compiled && state.is_renewed {
                    warn!(
                        %digest,
                        "the compiled code in the cache was damaged again: it stays in memory; check the volume of the cache"
                    );
                } else {
                    state.stored = stored;
                }
                (state.is_renewed, state.failed) = (is_compiled, None);
                Ok(prepared)
            }
            Err(error) => {
                let message = error.to_string();
                let error = failed(&message);
                state.failed = Some((message, Instant::now() + RENEWAL));
                Err(error)
            }
        }
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
