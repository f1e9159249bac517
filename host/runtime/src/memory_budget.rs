//! Limits the memory that plugin calls may hold in total, and each call's share of it.
//!
//! A call reserves its share before it begins and never waits for more while it holds some, so that calls
//! cannot deadlock. Most need little: [`SMALL`] is part of a turn and needs no further reservation. A plugin
//! whose calls need more reserves what they recently needed. A call that outgrows its share is ended, returns
//! it, and is repeated with the most that it may ever hold; calls have no side effects, so they can be
//! repeated. If every call reserved the most from the start, a small container would have room for two calls
//! only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fair::{Fair, Member, Permit};
use crate::limits::{Limits, MIB};

/// The memory included in a turn: enough for most calls.
const SMALL: usize = 2 * MIB;
/// The fraction of the total for those: 1/`SMALL_PART`.
const SMALL_PART: usize = 4;
/// Mebibytes reserved for each plugin that currently holds no more than its turns; at most half of the total.
const KEPT: usize = 16;
/// Size that an answer may reach without its own share, since a turn ends with the call.
const FREE: usize = 512 << 10;

/// Returns the most that one call may hold, in bytes. The host's representation of its answer, after the
/// guest has ended, must fit into the same.
#[must_use]
pub const fn max_memory_of_call(limits: &Limits) -> usize {
    limits
        .memory
        .saturating_add(limits.request)
        .saturating_add(limits.response)
}

/// Returns the most that one call can have when all calls together may hold `budget` bytes.
#[must_use]
pub const fn max_memory_of_one_call(budget: usize) -> usize {
    budget - budget / SMALL_PART
}

/// The memory of all calls.
#[derive(Debug)]
pub(crate) struct Budget {
    large: Fair,
    turns: u32,
}

impl Budget {
    /// Creates a budget of `bytes` for at most `concurrency` calls at a time.
    pub(crate) fn new(bytes: usize, concurrency: u32) -> Self {
        let turns = u32::try_from(bytes / SMALL_PART / SMALL).unwrap_or(u32::MAX);
        Self {
            large: Fair::new(max_memory_of_one_call(bytes) / MIB, KEPT),
            turns: turns.min(concurrency).max(1),
        }
    }

    /// Returns the maximum number of concurrent calls.
    pub(crate) fn turns(&self) -> u32 {
        self.turns
    }

    pub(crate) fn join(&self) -> Owner {
        Owner {
            large: self.large.join(),
            usual: AtomicUsize::new(0),
        }
    }
}

/// A plugin with shares of the budget.
#[derive(Debug)]
pub(crate) struct Owner {
    large: Member,
    /// Mebibytes that its calls recently needed in addition to [`SMALL`].
    usual: AtomicUsize,
}

impl Owner {
    /// Waits for as much as the plugin's calls usually need.
    pub(crate) async fn usual(&self) -> Share {
        self.share(self.usual.load(Relaxed)).await
    }

    /// Waits for the most that a call with these limits may hold.
    pub(crate) async fn most(&self, limits: &Limits) -> Share {
        self.share(max_memory_of_call(limits).div_ceil(MIB)).await
    }

    async fn share(&self, mebibytes: usize) -> Share {
        let permit = self.large.acquire(mebibytes).await;
        let room = CallMemory::new(permit.amount());
        Share { permit, room }
    }

    /// Records what a call needed. A high value decays after some calls that needed less.
    pub(crate) fn note(&self, share: &Share) {
        let usual = self.usual.load(Relaxed);
        let forgotten = usual - usual.div_ceil(8);
        self.usual.store(share.room.needed().max(forgotten), Relaxed);
    }
}

/// The memory that one call reserved, and afterwards the memory of its answer; must be held as long as the
/// answer.
#[derive(Debug)]
pub struct Share {
    permit: Permit,
    room: CallMemory,
}

impl Share {
    /// Returns the counter of the call.
    pub(crate) fn room(&self) -> CallMemory {
        self.room.clone()
    }

    /// Whether the call ended because it needed more.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.room.is_outgrown()
    }

    /// Returns everything that the answer does not occupy.
    pub(crate) fn keep_for_answer(&mut self) {
        self.permit.shrink(self.room.mebibytes_of_answer());
    }
}

/// The memory that a call may hold, and the memory it holds. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct CallMemory(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    /// Bytes that the call may hold: its request, the guest, and the text of the answer.
    call: usize,
    /// Bytes that the answer may occupy after the guest has ended.
    answer: usize,
    held: AtomicUsize,
    kept: AtomicUsize,
}

impl CallMemory {
    /// Creates room for the most that a call with these limits may hold.
    pub(crate) fn of(limits: &Limits) -> Self {
        Self::new(max_memory_of_call(limits).div_ceil(MIB))
    }

    /// Creates room for `mebibytes` in addition to [`SMALL`].
    fn new(mebibytes: usize) -> Self {
        let bytes = mebibytes.saturating_mul(MIB);
        Self(Arc::new(Counts {
            call: SMALL.saturating_add(bytes),
            answer: FREE.max(bytes),
            held: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
        }))
    }

    /// Counts more bytes held by the call; returns `false` when there is no room for them.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        self.0.held.fetch_add(bytes, Relaxed).saturating_add(bytes) <= self.0.call
    }

    /// Counts more bytes for the parsed answer: once for the answer and once for the objects applied from it.
    /// Returns `false` when there is no room for them.
    pub(crate) fn keep(&self, tree: usize) -> bool {
        let bytes = tree.saturating_mul(2);
        self.0.kept.fetch_add(bytes, Relaxed).saturating_add(bytes) <= self.0.answer
    }

    /// Whether the call ended because it needed more.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.0.held.load(Relaxed) > self.0.call || self.0.kept.load(Relaxed) > self.0.answer
    }

    fn needed(&self) -> usize {
        let call = self.0.held.load(Relaxed).saturating_sub(SMALL);
        call.div_ceil(MIB).max(self.mebibytes_of_answer())
    }

    fn mebibytes_of_answer(&self) -> usize {
        match self.0.kept.load(Relaxed) {
            ..=FREE => 0,
            kept => kept.div_ceil(MIB),
        }
    }
}
#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const LIMITS: Limits = Limits {
        memory: 20 * MIB,
        request: 2 * MIB,
        response: 2 * MIB,
        ..Limits::DEFAULT
    };

    /// 8 turns, and 48 MiB in addition.
    fn budget() -> Budget {
        Budget::new(64 * MIB, 100)
    }

    #[tokio::test]
    async fn who_needs_much_waits_for_the_whole_and_who_needs_little_for_nobody() {
        let budget = budget();
        assert_eq!((budget.turns(), budget.large.capacity()), (8, 48));
        let (one, other) = (budget.join(), budget.join());
        let first = one.share(40).await;
        let mut wait = Box::pin(other.most(&LIMITS));
        assert!(wait.as_mut().now_or_never().is_none());
        let small = one.usual().now_or_never().expect("it needs nothing");
        assert!(small.room.hold(SMALL) && small.room.keep(FREE / 2));
        assert!(!small.is_outgrown());
        drop(first);
        assert!(wait.await.room.hold(24 * MIB));
    }

    #[tokio::test]
    async fn a_call_that_needs_more_is_outgrown_and_the_next_begins_with_as_much() {
        let owner = budget().join();
        let small = owner.usual().await;
        assert!(!small.room.hold(22 * MIB) && small.is_outgrown());
        owner.note(&small);
        let next = owner.usual().await;
        assert_eq!(next.permit.amount(), 20);
        assert!(next.room.hold(22 * MIB));
        let answering = owner.share(0).await;
        assert!(!answering.room.keep(FREE) && answering.is_outgrown());
        drop(next);
        for _ in 0..30 {
            owner.note(&owner.share(0).await);
        }
        assert_eq!(owner.usual().await.permit.amount(), 0, "one is forgotten");
    }

    #[tokio::test]
    async fn what_an_answer_takes_is_held_after_the_call_and_no_more() {
        let owner = budget().join();
        let mut share = owner.most(&LIMITS).await;
        assert!(share.room.hold(20 * MIB) && share.room.keep(5 * MIB / 2));
        share.keep_for_answer();
        assert_eq!(share.permit.amount(), 5);
        assert!(owner.share(43).now_or_never().is_some());
        let mut small = owner.most(&LIMITS).await;
        assert!(small.room.keep(FREE / 2));
        small.keep_for_answer();
        assert_eq!(small.permit.amount(), 0);
    }
}
