//! Follows the configuration's file, which may be a mounted ConfigMap: what it says takes effect without a restart, and
//! what cannot be taken is refused whole.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info};

use super::Config;
use crate::health::Health;
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
    /// Counts what was taken and refused.
    pub metrics: Arc<Metrics>,
    /// Says what is refused.
    pub health: Arc<Health>,
}

/// The configurations that came of one file: the one that is in use, and every good one after it.
pub struct Configurations {
    receiver: watch::Receiver<Arc<Config>>,
    _watched: Watched,
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
    /// Follows the file, of which `first` was read at the start.
    #[must_use]
    pub fn start(self, files: &Files, first: Config) -> Configurations {
        self.metrics.config_reloaded("taken");
        let (looks, news) = watch::channel(None);
        let source = Source::plain(self.file.clone(), LIMIT);
        let watched = files.watch(source, move |look, _| {
            let text = match look {
                Look::New(content) => Ok(content.bytes),
                Look::Trouble(reason) => Err(reason),
                Look::Same | Look::Unsettled(_) => return,
            };
            looks.send_replace(Some(text));
        });
        let (sender, receiver) = watch::channel(Arc::new(first));
        tokio::spawn(self.run(news, sender));
        Configurations {
            receiver,
            _watched: watched,
        }
    }

    async fn run(
        self,
        mut news: watch::Receiver<Option<Result<bytes::Bytes, String>>>,
        sender: watch::Sender<Arc<Config>>,
    ) {
        let mut refused: Option<String> = None;
        loop {
            let look = news.borrow_and_update().clone();
            let read = match look {
                None => Ok(None),
                Some(Ok(bytes)) => self.parse(&bytes).map(Some),
                Some(Err(reason)) => Err(format!("{}: {reason}", self.file.display())),
            };
            match read {
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

    fn parse(&self, bytes: &[u8]) -> Result<Config, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| format!("{}: {error}", self.file.display()))?;
        Config::parse(&self.file, text).map_err(|error| error.to_string())
    }
}
