//! Reports that the API server cannot be reached, for all requests together: at most once a minute.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::warn;

use super::fence;
use operator_host_core::sync::lock;

/// The shortest time between two reports.
const PERIOD: Duration = Duration::from_secs(60);

/// When it was last reported. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Reach(Arc<Mutex<Option<Instant>>>);

impl Reach {
    /// Observes the result of every request.
    pub(super) fn listen<T, E: Error + 'static>(
        &self,
    ) -> impl FnOnce(Result<T, E>) -> Result<T, E> + Clone + use<T, E> {
        let reach = self.clone();
        move |outcome| {
            if let Err(error) = &outcome {
                reach.failed(error);
            }
            outcome
        }
    }

    fn failed(&self, error: &(dyn Error + 'static)) {
        let mut reported = lock(&self.0);
        // A write that this process held back proves nothing about the server.
        if !fence::is_deposed(error) && reported.is_none_or(|at| at.elapsed() >= PERIOD) {
            *reported = Some(Instant::now());
            warn!(
                "the API server cannot be reached: {}; retrying until it answers",
                chain(error)
            );
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
