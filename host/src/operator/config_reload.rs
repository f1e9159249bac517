//! Follows the configuration file, which may be a mounted ConfigMap: changes take effect without a restart, and an
//! invalid configuration is refused as a whole. Follows the file of the signature keys in the same way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info};

use operator_host_config::memory_limit::Memory;
use operator_host_config::trust::{KEYS_LIMIT, Keys};
use operator_host_config::{Config, ConfigError};
use operator_host_delivery::reload::watch_file;
use operator_host_delivery::source::{Look, WatchedFile};
use operator_host_instruments::Instruments;

/// Bytes that a configuration may have.
const LIMIT: usize = 4 << 20;

/// The files to follow, and where to report problems.
pub(super) struct Follower {
    /// The configuration's file.
    pub file: PathBuf,
    /// The file of the signature keys, when signatures are required.
    pub keys: Option<PathBuf>,
    /// The memory that a call of each controller must fit into.
    pub memory: Memory,
    /// Counts the accepted and the refused configurations, and reports a refused one.
    pub instruments: Instruments,
}

/// The configurations read from one file: the one in use, and each valid one after it.
pub(super) struct Configurations {
    receiver: watch::Receiver<Arc<Config>>,
    _watched: Vec<AbortOnDropHandle<()>>,
}

/// The texts of the configuration and of the keys, or why they cannot be read; `None` before the first read.
type Looks = [Option<Result<Bytes, String>>; 2];

impl Configurations {
    /// Returns the configuration to use.
    pub(super) fn current(&mut self) -> Arc<Config> {
        Arc::clone(&self.receiver.borrow_and_update())
    }

    /// Waits for the next configuration.
    pub(super) async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The task that reads the files has ended because the process is stopping: no configuration follows.
            std::future::pending::<()>().await;
        }
    }
}

impl Follower {
    /// Starts to follow the files. `first` is the configuration that was read at the start.
    pub(super) fn start(self, first: Config) -> Configurations {
        self.instruments.metrics.config_reloaded("taken");
        let (looks, changes) = watch::channel(Looks::default());
        let looks = Arc::new(looks);
        let keys = self.keys.as_ref().map(|file| (file, KEYS_LIMIT));
        let files = std::iter::once((&self.file, LIMIT)).chain(keys).enumerate();
        let watched = files.map(|(place, (file, limit))| {
            let looks = Arc::clone(&looks);
            watch_file(WatchedFile::plain(file.clone(), limit), None, move |look| {
                let text = match look {
                    Look::New(found) => Ok(found.bytes.unwrap_or_default()),
                    Look::Trouble(reason) => Err(reason),
                    Look::Same | Look::Unsettled => return,
                };
                looks.send_modify(|looks| looks[place] = Some(text));
            })
        });
        let watched = watched.collect();
        let (sender, receiver) = watch::channel(Arc::new(first));
        tokio::spawn(self.run(changes, sender));
        Configurations {
            receiver,
            _watched: watched,
        }
    }

    async fn run(self, mut changes: watch::Receiver<Looks>, sender: watch::Sender<Arc<Config>>) {
        let mut refused: Option<String> = None;
        loop {
            let looks = changes.borrow_and_update().clone();
            match self.read(&looks).transpose() {
                Ok(None) => {}
                Ok(Some(config)) => {
                    self.instruments.health.configuration(None);
                    let again = refused.take().is_some();
                    if **sender.borrow() != config {
                        sender.send_replace(Arc::new(config));
                        self.instruments.metrics.config_reloaded("taken");
                    } else if again {
                        info!(file = %self.file.display(), "the configuration file matches the configuration in use again");
                    }
                }
                Err(reason) => {
                    if refused.as_ref() != Some(&reason) {
                        self.instruments.metrics.config_reloaded("refused");
                        self.instruments.health.configuration(Some(reason.clone()));
                        error!("the configuration is refused, the previous one stays in use: {reason}");
                    }
                    refused = Some(reason);
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns `None` before all files have been read once.
    fn read(&self, looks: &Looks) -> Option<Result<Config, String>> {
        let [text, keys] = looks;
        let text = text.as_ref()?;
        let keys = match &self.keys {
            Some(file) => Some((file, keys.as_ref()?)),
            None => None,
        };
        let read = || -> Result<Config, String> {
            let config = parse(&self.file, text, Config::parse)?;
            let fits = self.memory.check(&config);
            fits.map_err(|reason| format!("{}: {reason}", self.file.display()))?;
            let Some((file, text)) = keys else {
                return Ok(config);
            };
            config
                .check_place_of_keys(file)
                .map_err(|error| error.to_string())?;
            Ok(config.trusting(Some(&parse(file, text, Keys::parse)?)))
        };
        Some(read())
    }
}

fn parse<T>(
    file: &Path,
    text: &Result<Bytes, String>,
    parse: fn(&Path, &str) -> Result<T, ConfigError>,
) -> Result<T, String> {
    let named = |reason: &dyn std::fmt::Display| format!("{}: {reason}", file.display());
    let bytes = text.as_ref().map_err(|reason| named(reason))?;
    let text = std::str::from_utf8(bytes).map_err(|error| named(&error))?;
    parse(file, text).map_err(|error| error.to_string())
}
