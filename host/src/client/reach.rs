//! Whether requests come through to the API server, said in one place for all of them: once when it goes away and
//! once when it is back.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::{info, warn};

/// Listens to the outcome of every request.
pub(super) fn listen<T, E: Error>() -> impl FnOnce(Result<T, E>) -> Result<T, E> + Clone {
    let away_since: Arc<Mutex<Option<Instant>>> = Arc::default();
    move |outcome| {
        let mut away_since = away_since.lock().unwrap_or_else(PoisonError::into_inner);
        match &outcome {
            Ok(_) => {
                if let Some(since) = away_since.take() {
                    let away_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                    info!(away_ms, "the API server answers again");
                }
            }
            Err(error) if away_since.is_none() => {
                *away_since = Some(Instant::now());
                warn!(
                    "the API server cannot be reached: {}; everything is tried again until it answers",
                    chain(error)
                );
            }
            Err(_) => {}
        }
        drop(away_since);
        outcome
    }
}

/// An error with its causes; the outermost often leaves out the one that tells.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
