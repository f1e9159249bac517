//! Computes views, and sends one again whenever it changes, as server-sent events.
//!
//! The view is computed again from time to time, and sent when it differs. So a stream holds no subscription: when the
//! browser goes away, the connection ends, and dropping the stream frees all that it had.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream::{Stream, StreamExt, unfold};
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::task::JoinError;
use tokio::time::sleep;

use super::Sources;
use super::view::View;

/// The longest time without a byte. A browser that is gone is noticed when something is sent.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a stream lasts. The browser then opens another one.
const LIFE: Duration = Duration::from_secs(300);
/// The shortest time between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// A stream takes at most 1/20 of a processor, however many objects there are.
const SHARE: u32 = 20;

/// Computes views one at a time, so that all clients together use at most one processor.
pub(super) struct Looks {
    sources: Arc<Sources>,
    turn: Arc<Mutex<()>>,
}

impl Looks {
    pub(super) fn new(sources: Sources) -> Self {
        Self {
            sources: Arc::new(sources),
            turn: Arc::default(),
        }
    }

    /// Computes a view when it is its turn. Also returns whether there is something to show. Fails when the host is stopping.
    pub(super) async fn look(&self, view: &View) -> Result<(bool, String), JoinError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let (sources, view) = (Arc::clone(&self.sources), view.clone());
        // The task holds the turn, so that the next client waits for it even if this one goes away.
        tokio::task::spawn_blocking(move || {
            let answer = view.json(&sources);
            drop(turn);
            answer
        })
        .await
    }
}

/// Streams one view. `held` is held until the stream is dropped.
pub(super) fn stream(
    looks: Arc<Looks>,
    view: View,
    held: impl Send + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let first = (Duration::ZERO, String::new());
    let events = unfold(first, move |(mut pause, sent)| {
        let (looks, view) = (Arc::clone(&looks), view.clone());
        async move {
            loop {
                sleep(pause).await;
                let start = Instant::now();
                let (_, json) = looks.look(&view).await.ok()?;
                pause = PERIOD.max(start.elapsed() * SHARE);
                if json != sent {
                    // The browser compares times with this clock, not with its own.
                    let now = Timestamp::now().as_millisecond().to_string();
                    let event = Event::default().id(now).data(&json);
                    return Some((Ok(event), (pause, json)));
                }
            }
        }
    });
    let events = events.take_until(sleep(LIFE)).inspect(move |_| {
        let _ = &held;
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT))
}
