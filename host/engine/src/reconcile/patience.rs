//! Writes of children that the API server does not answer, for example because of a webhook. Such a write backs off alone: what
//! else the parent needs does not wait for it.

use tokio::time::Instant;

use super::context::pace::{Cause, Pace};
use super::run::Run;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_core::object::ChildRef;

/// Sends a write of a child, unless the last one was not answered a moment ago: then its error is returned again.
pub(super) async fn unless_silent<T>(
    run: &Run<'_>,
    child: &ChildRef,
    write: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let key = child.identity();
    let held = run.memory(|memory| {
        let (pace, error) = memory.silences.get(&key)?;
        pace.wait(Instant::now()).map(|_wait| error.clone())
    });
    if let Some(error) = held {
        return Err(error);
    }
    let answer = write.await;
    run.memory(|memory| match &answer {
        Err(error) if error.is_unanswered() => {
            let now = Instant::now();
            let known = memory.silences.remove(&key);
            let mut pace = known.map_or_else(|| Pace::new(now), |(pace, _)| pace);
            let is_held = error.fault == Fault::Unanswered;
            pace.wrote(if is_held { Cause::Silence } else { Cause::Crowd }, now);
            memory.silences.insert(key, (pace, error.clone()));
        }
        _ => drop(memory.silences.remove(&key)),
    });
    answer
}
