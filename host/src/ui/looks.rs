//! Computes views one at a time, so that all clients together use at most one processor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::JoinError;

use super::Sources;
use super::view::View;

/// The shortest time between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// A stream takes at most 1/20 of a processor, however many objects there are.
const SHARE: u32 = 20;

/// Computes views; see the module.
pub(super) struct Looks {
    sources: Arc<Sources>,
    /// The last overview, which is the same for everyone, and until when it is shown. Locked while a view is computed.
    overview: Arc<Mutex<Option<(Instant, Look)>>>,
}

/// A view that has been computed.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// Whether there is something to show.
    pub(super) found: bool,
    pub(super) json: Arc<str>,
    /// How long it took to compute.
    took: Duration,
}

impl Look {
    /// Returns how long to wait before the next look.
    pub(super) fn pause(&self) -> Duration {
        PERIOD.max(self.took * SHARE)
    }
}

impl Looks {
    pub(super) fn new(sources: Sources) -> Self {
        Self {
            sources: Arc::new(sources),
            overview: Arc::default(),
        }
    }

    /// Computes a view when it is its turn. The overview may be the last one.
    ///
    /// # Errors
    /// When the computation panicked, or the host is stopping.
    pub(super) async fn look(&self, view: &View) -> Result<Look, JoinError> {
        let mut overview = Arc::clone(&self.overview).lock_owned().await;
        if *view == View::Overview
            && let Some((until, look)) = &*overview
            && Instant::now() < *until
        {
            let took = Duration::ZERO;
            return Ok(Look { took, ..look.clone() });
        }
        let (sources, view) = (Arc::clone(&self.sources), view.clone());
        // The task holds the lock, so that the next client waits for it even if this one goes away.
        let task = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let (found, json) = view.json(&sources);
            let look = Look {
                found,
                json: json.into(),
                took: start.elapsed(),
            };
            if view == View::Overview {
                *overview = Some((Instant::now() + look.pause(), look.clone()));
            }
            look
        });
        task.await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use tokio::sync::watch;

    use super::*;
    use operator_host_instruments::health::Health;

    #[tokio::test]
    async fn one_view_is_computed_at_a_time_and_the_overview_is_shared() {
        let health = Arc::<Health>::default();
        let looks = Looks::new(Sources {
            controllers: Arc::default(),
            health: Arc::clone(&health),
            journal: Arc::default(),
            identity: "a".into(),
            lease: watch::channel(None).1,
            hide_differences: false,
        });
        let first = looks.look(&View::Overview).await.unwrap();
        health.configuration(Some("it is damaged".into()));
        let second = looks.look(&View::Overview).await.unwrap();
        assert!(Arc::ptr_eq(&first.json, &second.json));
        looks.overview.lock().await.as_mut().unwrap().0 = Instant::now();
        let third = looks.look(&View::Overview).await.unwrap();
        assert!(third.json.contains("it is damaged"), "{}", third.json);
        let other = View::parse("view=controller&controller=b").unwrap();
        assert!(!looks.look(&other).await.unwrap().found);

        let turn = looks.overview.lock().await;
        assert!(looks.look(&View::Overview).now_or_never().is_none());
        assert!(looks.look(&other).now_or_never().is_none());
        drop(turn);
        looks.look(&other).await.unwrap();
    }

    #[test]
    fn a_slow_look_is_followed_by_a_longer_pause() {
        let pause = |took| {
            let (found, json) = (true, "".into());
            Look { found, json, took }.pause()
        };
        assert_eq!(pause(Duration::ZERO), PERIOD);
        assert_eq!(pause(Duration::from_secs(1)), Duration::from_secs(20));
    }
}
