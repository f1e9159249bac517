//! Small tools for loops that react to changes.

use std::time::Duration;

use tokio::sync::watch;

/// Sends a value, unless it is the one that was sent last.
pub fn send_if_new<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|last| {
        let is_new = *last != value;
        *last = value;
        is_new
    });
}

/// Waits for so long; without a duration for ever.
pub async fn sleep_or_never(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
