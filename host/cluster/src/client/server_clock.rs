//! The API server's clock, which wrote the times in the objects. That of this machine may be hours away from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use hyper::Response;
use hyper::header::DATE;
use jiff::{SignedDuration, Timestamp};

/// How far the API server's clock is ahead of this machine's, according to its last response. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ServerClock(Arc<AtomicI64>);

impl ServerClock {
    /// Returns the API server's time; before its first response, that of this machine.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_secs(self.0.load(Ordering::Relaxed));
        let now = Timestamp::now();
        now.checked_add(ahead).unwrap_or(now)
    }

    /// Observes every response.
    pub(super) fn listen<B>(&self) -> impl FnOnce(Response<B>) -> Response<B> + Clone + use<B> {
        let clock = self.clone();
        move |response| {
            let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()) {
                clock.set(date.timestamp(), Timestamp::now());
            }
            response
        }
    }

    fn set(&self, server: Timestamp, here: Timestamp) {
        let ahead = server.duration_since(here).as_secs();
        self.0.store(ahead, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_follows_the_last_response() {
        let clock = ServerClock::default();
        let hour = SignedDuration::from_hours(1);
        let response = |date: Timestamp| {
            let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&date);
            Response::builder().header(DATE, date.unwrap()).body(()).unwrap()
        };
        for ahead in [hour, -hour, SignedDuration::ZERO] {
            let server = Timestamp::now() + ahead;
            clock.listen()(response(server));
            let off = clock.now().duration_since(server).abs();
            assert!(off < SignedDuration::from_secs(5), "{ahead:?}: {off:?}");
        }
        clock.listen()(Response::builder().header(DATE, "yesterday").body(()).unwrap());
        assert!(clock.now().duration_since(Timestamp::now()).abs() < SignedDuration::from_secs(5));
    }
}
