//! What a test sees of objects as they change.

use std::time::Instant;

use futures::StreamExt as _;
use kube::api::{Api, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::{mpsc, oneshot};

/// States of objects, each with the time at which it was received.
pub type Changes = mpsc::UnboundedReceiver<(Instant, DynamicObject)>;

/// Returns every later state of the objects of an API, as soon as the objects that exist now are known.
pub async fn observe(api: Api<DynamicObject>) -> Result<Changes, oneshot::error::RecvError> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (ready, is_ready) = oneshot::channel();
    tokio::spawn(async move {
        let mut ready = Some(ready);
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::InitDone) => drop(ready.take().map(|ready| ready.send(()))),
                // `InitApply` after the first list: a list again, after a lost watch.
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) if ready.is_none() => {
                    let Ok(()) = sender.send((Instant::now(), object)) else {
                        return;
                    };
                }
                _ => {}
            }
        }
    });
    is_ready.await?;
    Ok(receiver)
}
