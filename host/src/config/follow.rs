//! Follows the configuration's file, which may be a mounted ConfigMap: what it says takes effect without a restart, and
//! what cannot be taken is refused whole. So are the keys that plugins must be signed with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tracing::{error, info};

use super::trust::{KEYS_LIMIT, Keys};
use super::{Config, ConfigError};
use crate::health::Health;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::plugin::reload::{Files, Watched};
use crate::plugin::source::{Look, Source};

/// Bytes that a configuration may have.
const LIMIT: usize = 4 << 20;
/// How long after a refusal the same text is looked at again: it may name a plugin's file that comes later, as in a
/// volume of its own.
const AGAIN: Duration = Duration::from_secs(1);

/// The file, and where to say what is wrong with it.
pub struct Follower {
    /// The configuration's file.
    pub file: PathBuf,
    /// The file of the keys that plugins must be signed with, when signatures are asked for.
    pub keys: Option<PathBuf>,
    /// What a call of each controller must fit into.
    pub memory: Memory,
    /// Counts what was taken and refused.
    pub metrics: Arc<Metrics>,
    /// Says what is refused.
    pub health: Arc<Health>,
}

/// The configurations that came of one file: the one that is in use, and every good one after it.
pub struct Configurations {
    receiver: watch::Receiver<Arc<Config>>,
    _watched: Vec<Watched>,
}

/// The text of a file, or why it cannot be read; `None` before the first look.
type Text = Option<Result<Bytes, String>>;

/// What the files say.
#[derive(Clone, Default)]
struct Looks {
    config: Text,
    keys: Text,
}

impl Configurations {
    /// The one that is to be in use.
    pub fn current(&mut self) -> Arc<Config> {
        Arc::clone(&self.receiver.borrow_and_update())
    }

    /// Waits for another one.
    pub async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The task that looks has ended, as the process does: there will be no other.
            std::future::pending::<()>().await;
        }
    }
}

impl Follower {
    /// Follows the files, of which `first` was read at the start.
    #[must_use]
    pub fn start(self, files: &Files, first: Config) -> Configurations {
        self.metrics.config_reloaded("taken");
        let (looks, news) = watch::channel(Looks::default());
        let looks = Arc::new(looks);
        let watch = |file: &Path, limit: usize, set: fn(&mut Looks, Text)| {
            let looks = Arc::clone(&looks);
            files.watch(Source::plain(file.to_owned(), limit), move |look, _| {
                let text = match look {
                    Look::New(content) => Ok(content.bytes),
                    Look::Trouble(reason) => Err(reason),
                    Look::Same | Look::Unsettled(_) => return,
                };
                looks.send_modify(|looks| set(looks, Some(text)));
            })
        };
        let mut watched = vec![watch(&self.file, LIMIT, |looks, text| looks.config = text)];
        if let Some(keys) = &self.keys {
            watched.push(watch(keys, KEYS_LIMIT, |looks, text| looks.keys = text));
        }
        let (sender, receiver) = watch::channel(Arc::new(first));
        tokio::spawn(self.run(news, sender));
        Configurations {
            receiver,
            _watched: watched,
        }
    }

    async fn run(self, mut news: watch::Receiver<Looks>, sender: watch::Sender<Arc<Config>>) {
        let mut refused: Option<String> = None;
        loop {
            let looks = news.borrow_and_update().clone();
            match self.read(&looks).transpose() {
                Ok(None) => {}
                Ok(Some(config)) => {
                    self.health.configuration(None);
                    let again = refused.take().is_some();
                    let news = sender.send_if_modified(|current| {
                        let news = **current != config;
                        if news {
                            *current = Arc::new(config);
                        }
                        news
                    });
                    if news {
                        self.metrics.config_reloaded("taken");
                    } else if again {
                        info!(file = %self.file.display(), "the configuration's file holds what is in use again");
                    }
                }
                Err(reason) => {
                    if refused.as_ref() != Some(&reason) {
                        error!("the configuration is refused, the one before stays in use: {reason}");
                        self.metrics.config_reloaded("refused");
                        self.health.configuration(Some(reason.clone()));
                    }
                    refused = Some(reason);
                }
            }
            let changed = async {
                match refused {
                    None => news.changed().await,
                    Some(_) => tokio::time::timeout(AGAIN, news.changed())
                        .await
                        .unwrap_or(Ok(())),
                }
            };
            if changed.await.is_err() {
                return;
            }
        }
    }

    /// `None` before the first look at all of the files.
    fn read(&self, looks: &Looks) -> Option<Result<Config, String>> {
        let config = parse(&self.file, looks.config.as_ref()?, Config::parse).and_then(|config| {
            let fits = self.memory.check(&config);
            fits.map_err(|reason| format!("{}: {reason}", self.file.display()))?;
            Ok(config)
        });
        let Some(file) = &self.keys else {
            return Some(config);
        };
        let keys = parse(file, looks.keys.as_ref()?, Keys::parse);
        let config = config.and_then(|config| {
            config
                .check_place_of_keys(file)
                .map_err(|error| error.to_string())?;
            Ok(config.trusting(Some(&keys?)))
        });
        Some(config)
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
