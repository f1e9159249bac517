//! Sends a view again whenever it changes, as server-sent events.
//!
//! The view is computed again from time to time, and sent when it differs. So a stream holds no subscription: when the
//! browser goes away, the connection ends, and dropping the stream frees all that it had.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::Stream;
use futures::stream::unfold;
use hyper::body::Frame;
use jiff::Timestamp;
use tokio::sync::OwnedSemaphorePermit;

use super::looks::Looks;
use super::view::View;

/// The longest time without a byte. A browser that is gone is noticed when something is sent.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a stream lasts. The browser then opens another one, for which its permissions are checked again.
const LIFE: Duration = Duration::from_secs(300);

struct State {
    looks: Arc<Looks>,
    view: View,
    started: Instant,
    sent: Instant,
    pause: Duration,
    /// Of the last text that was sent.
    hash: Option<u64>,
    _turn: OwnedSemaphorePermit,
}

/// Returns the events of one view. `turn` is held until the stream is dropped.
pub(super) fn events(
    looks: Arc<Looks>,
    view: View,
    turn: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    let now = Instant::now();
    let state = State {
        looks,
        view,
        started: now,
        sent: now,
        pause: Duration::ZERO,
        hash: None,
        _turn: turn,
    };
    unfold(state, |mut state| async move {
        let text = state.next().await?;
        Some((Ok(Frame::data(Bytes::from(text))), state))
    })
}

impl State {
    /// Returns the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<String> {
        while self.started.elapsed() < LIFE {
            tokio::time::sleep(self.pause).await;
            let look = self.looks.look(&self.view).await.ok()?;
            self.pause = look.pause();
            let text = look.json;
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            let hash = Some(hasher.finish());
            if self.hash != hash {
                self.hash = hash;
                self.sent = Instant::now();
                // The browser compares times with this clock, not with its own.
                let now = Timestamp::now().as_millisecond();
                // JSON has no line breaks, which would end the event.
                return Some(format!("id: {now}\ndata: {text}\n\n"));
            }
            if self.sent.elapsed() > HEARTBEAT {
                self.sent = Instant::now();
                return Some(":\n\n".to_owned());
            }
        }
        None
    }
}
