//! Sends a view again whenever it changes, as server-sent events.
//!
//! The view is computed again from time to time, and sent when it differs. So a stream holds no subscription: when the
//! browser goes away, the connection ends, and dropping the stream frees all that it had.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream::{Stream, StreamExt, unfold};
use jiff::Timestamp;
use tokio::time::sleep;

use super::looks::Looks;
use super::view::View;

/// The longest time without a byte. A browser that is gone is noticed when something is sent.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a stream lasts. The browser then opens another one, for which its permissions are checked again.
const LIFE: Duration = Duration::from_secs(300);

/// Streams one view. `held` is held until the stream is dropped.
pub(super) fn stream(
    looks: Arc<Looks>,
    view: View,
    held: impl Send + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let first = (Duration::ZERO, Arc::<str>::default());
    let events = unfold(first, move |(mut pause, sent)| {
        let (looks, view) = (Arc::clone(&looks), view.clone());
        async move {
            loop {
                sleep(pause).await;
                let look = looks.look(&view).await.ok()?;
                pause = look.pause();
                if look.json != sent {
                    // The browser compares times with this clock, not with its own.
                    let now = Timestamp::now().as_millisecond().to_string();
                    let event = Event::default().id(now).data(&look.json);
                    return Some((Ok(event), (pause, look.json)));
                }
            }
        }
    });
    let events = events.take_until(sleep(LIFE)).inspect(move |_| {
        let _ = &held;
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT))
}
