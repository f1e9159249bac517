//! Reports whether the API server is reachable, for all requests together: logs once when it becomes unreachable
//! and once when it is back.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::fence;

/// The API server counts as back when no request has failed for this long. A server that shuts down still serves
/// its open connections but accepts no new ones.
const SETTLED: Duration = Duration::from_millis(1000);

/// A period in which the API server is unreachable.
struct Away {
    since: Instant,
    last_failure: Instant,
    /// The first response after the last failure.
    answered: Option<Instant>,
}

/// The shared state. Clones refer to the same state.
#[derive(Clone, Default)]
pub(super) struct Reach(Arc<Mutex<Option<Away>>>);

impl Reach {
    /// Observes the result of every request. Must run within a tokio runtime.
    pub(super) fn listen<T, E: Error + 'static>(
        &self,
    ) -> impl FnOnce(Result<T, E>) -> Result<T, E> + Clone + use<T, E> {
        let reach = self.clone();
        move |outcome| {
            let failure = outcome.as_ref().err();
            // A write that this process held back proves nothing about the server.
            if !failure.is_some_and(|error| fence::is_deposed(error)) {
                observe(&reach, failure);
            }
            outcome
        }
    }
}

fn observe<E: Error>(reach: &Reach, failure: Option<&E>) {
    let mut away = reach.0.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    match (failure, away.as_mut()) {
        (None, None) => {}
        (None, Some(away)) => {
            away.answered.get_or_insert(now);
        }
        (Some(_), Some(away)) => {
            away.last_failure = now;
            away.answered = None;
        }
        (Some(error), None) => {
            *away = Some(Away {
                since: now,
                last_failure: now,
                answered: None,
            });
            drop(away);
            warn!(
                "the API server cannot be reached: {}; retrying until it answers",
                chain(error)
            );
            tokio::spawn(log_recovery(reach.clone()));
        }
    }
}

async fn log_recovery(reach: Reach) {
    loop {
        tokio::time::sleep(SETTLED / 4).await;
        let mut state = reach.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(away) = state.as_ref() else { return };
        if let Some(answered) = away.answered
            && away.last_failure.elapsed() >= SETTLED
        {
            let away_ms = u64::try_from((answered - away.since).as_millis()).unwrap_or(u64::MAX);
            *state = None;
            info!(away_ms, "the API server answers again");
            return;
        }
    }
}

/// Returns the API server's message, or why there is none.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("the API server answers {}", status.code)
        }
        kube::Error::Api(status) => status.message.clone(),
        other => chain(other),
    }
}

/// Formats an error with its causes; the outermost error often omits the important one.
pub fn chain(error: &dyn Error) -> String {
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
