//! Conversions for which another replica may have what this one lacks.
//!
//! The replicas get a new version of a plugin one after the other: the kubelets update the files of a ConfigMap within
//! minutes. The definition with the versions that it adds may be installed as soon as the first replica has it.
//! Meanwhile the others answer with an error and `Retry-After`, after which the client library of the API server sends
//! the request again, up to ten times, and with a new connection, for which the Service selects any replica.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the API server is asked to try again: for as long as a new version takes to reach all replicas.
const ROLLOUT: Duration = Duration::from_secs(180);
/// After this time without a request that lacks something, the next one may belong to another rollout.
const QUIET: Duration = Duration::from_secs(600);

/// What this replica lacks, by controller.
#[derive(Debug, Default)]
pub(super) struct Elsewhere(Mutex<BTreeMap<String, Lack>>);

#[derive(Debug)]
struct Lack {
    what: String,
    since: Instant,
    last: Instant,
}

impl Elsewhere {
    /// Reports whether the API server should try again, because this replica lacks something only since a moment ago.
    /// Later it is told at once.
    pub(super) fn is_worth_a_try(&self, controller: &str, what: &str, now: Instant) -> bool {
        let mut lacks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |lack: &Lack| lack.what == what && now.duration_since(lack.last) < QUIET;
        let since = lacks
            .get(controller)
            .filter(|lack| is_same(lack))
            .map_or(now, |lack| lack.since);
        let lack = Lack {
            what: what.to_owned(),
            since,
            last: now,
        };
        lacks.insert(controller.to_owned(), lack);
        now.duration_since(since) < ROLLOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_for_minutes_is_told_at_once_until_it_is_something_else() {
        let elsewhere = Elsewhere::default();
        let start = Instant::now();
        let at = |what, seconds| elsewhere.is_worth_a_try("shop", what, start + Duration::from_secs(seconds));
        assert!(at("v2", 0) && at("v2", 100) && at("v2", 179));
        assert!(!at("v2", 180) && !at("v2", 700) && !at("v2", 1200));
        assert!(at("v2", 1800), "another rollout");
        assert!(at("v2", 1900) && !at("v2", 1980));
        assert!(at("v3", 1981), "another version");
        assert!(elsewhere.is_worth_a_try("other", "v2", start));
    }
}
