//! The API server's clock, which wrote the times in the objects. That of this machine may be hours away from it, and may be set
//! at any time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Response;
use hyper::header::DATE;
use jiff::Timestamp;

use operator_host_core::clock::{since_boot, whole_seconds};
use operator_host_core::sync::lock;

/// The API server's time of its last response, and how long this machine had run then. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ServerClock(Arc<Mutex<Option<(Timestamp, Duration)>>>);

impl ServerClock {
    /// Returns the API server's time in whole seconds, as in its objects; before its first response, that of this machine.
    pub fn now(&self) -> Timestamp {
        whole_seconds(self.at(since_boot()))
    }

    fn at(&self, since_boot: Duration) -> Timestamp {
        let Some((server, then)) = *lock(&self.0) else {
            return Timestamp::now();
        };
        let passed = since_boot.saturating_sub(then);
        server.checked_add(passed).unwrap_or(server)
    }

    /// Observes every response.
    pub(super) fn listen<B>(&self) -> impl FnOnce(Response<B>) -> Response<B> + Clone + use<B> {
        let clock = self.clone();
        move |response| {
            let date = response.headers().get(DATE).and_then(|date| date.to_str().ok());
            if let Some(date) = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()) {
                *lock(&clock.0) = Some((date.timestamp(), since_boot()));
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    #[test]
    fn the_time_follows_the_last_response_and_what_has_passed_since() {
        let clock = ServerClock::default();
        assert!(clock.now().duration_since(Timestamp::now()).abs() < SignedDuration::from_secs(5));
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
            // This machine's clock is no part of it, so it does not matter when that one is set.
            let later = clock.at(since_boot() + Duration::from_secs(700));
            let off = later.duration_since(server) - SignedDuration::from_secs(700);
            assert!(off.abs() < SignedDuration::from_secs(5), "{ahead:?}: {off:?}");
        }
        clock.listen()(Response::builder().header(DATE, "yesterday").body(()).unwrap());
        assert!(clock.now().duration_since(Timestamp::now()).abs() < SignedDuration::from_secs(5));
    }
}
