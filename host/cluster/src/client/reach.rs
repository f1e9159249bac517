//! Whether the API server can be reached, for all requests together. Reports at most once a minute that it cannot.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::{Response, StatusCode};
use tracing::warn;

use super::fence;
use operator_host_core::sync::lock;

/// The shortest time between two reports.
const PERIOD: Duration = Duration::from_secs(60);

/// What the last requests said. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Reach(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    reported: Option<Instant>,
    /// When it last answered, whatever it said.
    heard: Option<Instant>,
    failing: Option<Unreached>,
}

/// The API server does nothing for this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// Since when no request has succeeded.
    pub since: Instant,
    /// What the last request ended with.
    pub why: String,
    /// Whether it answers, but with errors of its own: a new process gets the same.
    pub is_answered: bool,
}

impl Reach {
    /// Observes the result of every request.
    pub(super) fn listen<B, E: Error + 'static>(
        &self,
    ) -> impl FnOnce(Result<Response<B>, E>) -> Result<Response<B>, E> + Clone + use<B, E> {
        let reach = self.clone();
        move |outcome| {
            match &outcome {
                Ok(response) => reach.answered(response.status()),
                Err(error) => reach.failed(error),
            }
            outcome
        }
    }

    /// Returns since when no request has succeeded; `None` when the last one has.
    pub(super) fn unreached(&self) -> Option<Unreached> {
        lock(&self.0).failing.clone()
    }

    /// Reports whether it has answered nothing for this time.
    pub(super) fn is_quiet_for(&self, time: Duration) -> bool {
        lock(&self.0).heard.is_none_or(|heard| heard.elapsed() >= time)
    }

    fn answered(&self, status: StatusCode) {
        let does_nothing = status.is_server_error() || status == StatusCode::UNAUTHORIZED;
        let mut state = lock(&self.0);
        state.heard = Some(Instant::now());
        if does_nothing {
            state.fail(format!("it answers {status}"), status.is_server_error());
        } else {
            state.failing = None;
        }
    }

    fn failed(&self, error: &(dyn Error + 'static)) {
        // A write that this process held back proves nothing about the server.
        if fence::is_deposed(error) {
            return;
        }
        self.silent(chain(error));
    }

    /// Notes that a request got no answer.
    pub(super) fn silent(&self, why: String) {
        let mut state = lock(&self.0);
        if state.reported.is_none_or(|at| at.elapsed() >= PERIOD) {
            state.reported = Some(Instant::now());
            warn!("the API server cannot be reached: {why}; retrying until it answers");
        }
        state.fail(why, false);
    }
}

impl State {
    fn fail(&mut self, why: String, is_answered: bool) {
        let since = self
            .failing
            .as_ref()
            .map_or_else(Instant::now, |failing| failing.since);
        self.failing = Some(Unreached {
            since,
            why,
            is_answered,
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_is_of_use_counts_as_reached() {
        let reach = Reach::default();
        let answer = |status: u16| {
            let response = Response::builder().status(status).body(()).unwrap();
            let _ = reach.listen::<_, std::io::Error>()(Ok(response));
            reach.unreached()
        };
        assert_eq!(answer(200), None);
        let refused = answer(401).unwrap();
        assert!(refused.why.contains("401") && !refused.is_answered, "{refused:?}");
        assert!(answer(503).unwrap().is_answered);
        assert_eq!(answer(403), None, "it knows this host");
        let _ = reach.listen::<(), _>()(Err(std::io::Error::other(fence::Deposed)));
        assert_eq!(reach.unreached(), None, "this host held the request back");
        let _ = reach.listen::<(), _>()(Err(std::io::Error::other("reset")));
        assert_eq!(reach.unreached().unwrap().why, "reset");
        let first = reach.unreached().unwrap().since;
        assert_eq!(answer(500).unwrap().since, first, "it has failed since then");
    }
}
