//! How many writes a controller may send: per second, at the same time, and with answers that take long.

use std::sync::Mutex;
use std::time::Duration;

use operator_host_core::sync::lock;
use operator_host_runtime::fair::{Fair, Member, Permit};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tracing::debug;

use super::Pace;

/// The most writes of all controllers at the same time. Each has a connection, which takes some 50 KB here, and more
/// than 200 writes of all its clients are too many for an API server by default.
const OF_ALL: usize = 128;
/// The most writes of one controller at the same time, so that one whose writes hang leaves half to the others.
const OF_ONE: usize = OF_ALL / 2;
/// The most writes of one controller whose answers take long. The rest of its writes stays for the others.
const SLOW_OF_ONE: usize = OF_ONE / 4;
/// How many writes are reserved for each controller that has none; at most half in all.
const RESERVED: usize = 1;
/// Most answers of an API server without load come sooner.
const SOON: Duration = Duration::from_millis(10);
/// No shorter wait for an answer is slow. A longer wait before a write is logged, because it explains a delay.
const SLOW: Duration = Duration::from_millis(100);
/// Every longer wait is slow.
const SLOW_AT_MOST: Duration = Duration::from_secs(1);
/// How many times its usual time an answer takes that is slow. Under load all take longer: if a reconcile gave up its turn then,
/// the next one would add to the load.
const SLOW_TIMES: u32 = 8;
/// The usual time before the first answer.
const FIRST: Duration = Duration::from_millis(50);

/// Creates the limit for the writes of all controllers.
pub(super) fn of_all() -> Fair {
    Fair::new(OF_ALL, RESERVED)
}

/// The limits for the writes of one controller.
#[derive(Debug)]
pub struct WriteLimits {
    pace: Pace,
    own: Semaphore,
    slow: Semaphore,
    of_all: Member,
    /// A moving average of the time until an answer.
    usual: Mutex<Duration>,
}

/// The permission to send one write. Must be held until its answer is there.
#[derive(Debug)]
pub struct WritePermit<'a> {
    _own: Option<SemaphorePermit<'a>>,
    _of_all: Permit,
}

impl WriteLimits {
    pub(crate) fn new(pace: Pace, of_all: Member) -> Self {
        Self {
            pace,
            own: Semaphore::new(OF_ONE),
            slow: Semaphore::new(SLOW_OF_ONE),
            of_all,
            usual: Mutex::new(FIRST),
        }
    }

    /// Waits until the controller may send one more write.
    pub async fn permit(&self) -> WritePermit<'_> {
        let waited = self.pace.wait().await;
        if waited > SLOW {
            debug!(
                ?waited,
                "delayed a write: the controller has reached its limit `writes` in the configuration"
            );
        }
        self.slot().await
    }

    /// Waits until the controller may have one more write whose answer takes long. The result must be held until the answer is
    /// there.
    pub(crate) async fn slow(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.slow.acquire().await.ok()
    }

    /// Notes how long an answer took.
    pub(crate) fn answered(&self, after: Duration) {
        let mut usual = lock(&self.usual);
        *usual = (*usual * 7 + after.min(SLOW_AT_MOST)) / 8;
    }

    /// Returns the time by which most answers are there, as things are, and that after which an answer is slow.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        let usual = *lock(&self.usual);
        let slow = (usual * SLOW_TIMES).clamp(SLOW, SLOW_AT_MOST);
        ((usual * 2).clamp(SOON, slow), slow)
    }

    /// Reports whether the controller waits for as many answers that take long as it may.
    pub(crate) fn is_crowded(&self) -> bool {
        self.slow.available_permits() == 0
    }

    /// Waits until the controller may have one more write that waits for an answer. Ignores the rate: Events have a
    /// rate of their own.
    pub async fn slot(&self) -> WritePermit<'_> {
        let start = Instant::now();
        let permit = WritePermit {
            // It is never closed.
            _own: self.own.acquire().await.ok(),
            _of_all: self.of_all.acquire(1).await,
        };
        let waited = start.elapsed();
        if waited > SLOW {
            debug!(
                ?waited,
                "delayed a write: the API server has not answered {OF_ONE} of this controller's writes, or {OF_ALL} of all \
                 controllers"
            );
        }
        permit
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Takes as many permits as there are.
    fn all_of(limits: &WriteLimits) -> Vec<WritePermit<'_>> {
        std::iter::from_fn(|| limits.permit().now_or_never()).collect()
    }

    #[test]
    fn an_answer_is_slow_when_it_takes_much_longer_than_the_others() {
        let limits = WriteLimits::new(Pace::new(1, 1), of_all().join());
        let after = |milliseconds| {
            (0..50).for_each(|_| limits.answered(Duration::from_millis(milliseconds)));
            limits.times().1
        };
        assert_eq!(after(5), SLOW);
        let loaded = after(80);
        assert!((6 * 80..=8 * 80).contains(&loaded.as_millis()), "{loaded:?}");
        assert_eq!(after(30_000), SLOW_AT_MOST);
        // One that hangs for long does not make the others slow for long.
        after(5);
        limits.answered(Duration::from_secs(30));
        (0..20).for_each(|_| limits.answered(Duration::from_millis(5)));
        assert!(limits.times().1 < 2 * SLOW);
    }

    // Not a task of tokio, which lets one take no more than 128 permits without a pause.
    #[test]
    fn a_controller_whose_writes_hang_leaves_half_and_two_of_them_leave_some() {
        let of_all = of_all();
        let controller = || WriteLimits::new(Pace::new(1_000_000, 1_000_000), of_all.join());
        let (one, two, three) = (controller(), controller(), controller());
        let hang = all_of(&one);
        assert_eq!(hang.len(), OF_ONE);
        let hang_too = all_of(&two);
        assert_eq!(hang_too.len(), OF_ALL - OF_ONE - RESERVED);
        assert_eq!(all_of(&three).len(), RESERVED);
        drop(hang);
        assert_eq!(all_of(&three).len(), OF_ONE);
    }
}
