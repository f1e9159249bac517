//! How much memory plugin calls may hold in all, and each call's share of it.
//!
//! A call reserves its share before it begins and never waits for more while it has some, so that calls cannot wait for
//! each other for ever. Most need little: [`SMALL`] goes with their turn, and is never waited for beside that. A plugin
//! whose calls need more reserves what they needed lately. A call that outgrows its share is ended, gives it back, and is
//! made again with the most that it may ever hold: calls change nothing, so they can be made again. To reserve the most for
//! each from the start would leave room for two calls in a small container.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::fair::{Fair, Key, Member, Permit};
use crate::limits::{Limits, MIB};

/// What goes with a turn: the memory of most calls.
const SMALL: usize = 2 * MIB;
/// The part of all that is for those.
const SMALL_PART: usize = 4;
/// Mebibytes that are kept for each plugin that has no more than those at the time, of one half.
const KEPT: usize = 16;
/// What an answer may become without a share of its own, since a turn ends with the call.
const FREE: usize = 512 << 10;

/// The most that one call may hold, in bytes. What its answer becomes in the host, after the guest is gone, must fit into
/// the same.
#[must_use]
pub const fn most(limits: &Limits) -> usize {
    limits
        .memory
        .saturating_add(limits.request)
        .saturating_add(limits.response)
}

/// The most that one call can have where all calls together may hold `budget` bytes.
#[must_use]
pub const fn room_for_one(budget: usize) -> usize {
    budget - budget / SMALL_PART
}

/// The memory of all calls.
#[derive(Debug)]
pub(crate) struct Budget {
    large: Fair,
    turns: u32,
}

impl Budget {
    /// So many bytes, for no more than `concurrency` calls at a time.
    pub(crate) fn new(bytes: usize, concurrency: u32) -> Self {
        let turns = u32::try_from(bytes / SMALL_PART / SMALL).unwrap_or(u32::MAX);
        Self {
            large: Fair::new(room_for_one(bytes) / MIB, KEPT),
            turns: turns.min(concurrency).max(1),
        }
    }

    /// How many calls may be under way at the same time.
    pub(crate) fn turns(&self) -> u32 {
        self.turns
    }

    pub(crate) fn join(&self, key: Key) -> Owner {
        Owner {
            large: self.large.join(key),
            usual: AtomicUsize::new(0),
        }
    }
}

/// A plugin that has shares of it.
#[derive(Debug)]
pub(crate) struct Owner {
    large: Member,
    /// Mebibytes that its calls came to need lately, beside [`SMALL`].
    usual: AtomicUsize,
}

impl Owner {
    /// Waits for as much as the plugin's calls usually need.
    pub(crate) async fn usual(&self) -> Share {
        self.share(self.usual.load(Relaxed)).await
    }

    /// Waits for enough for whatever a call with these limits may hold.
    pub(crate) async fn most(&self, limits: &Limits) -> Share {
        self.share(most(limits).div_ceil(MIB)).await
    }

    async fn share(&self, mebibytes: usize) -> Share {
        let permit = self.large.acquire(mebibytes).await;
        let room = Room::new(permit.amount());
        Share { permit, room }
    }

    /// Remembers what a call came to need. One that needed much is forgotten after some that did not.
    pub(crate) fn note(&self, share: &Share) {
        let usual = self.usual.load(Relaxed);
        let forgotten = usual - usual.div_ceil(8);
        self.usual.store(share.room.needed().max(forgotten), Relaxed);
    }
}

/// What one call reserved, and then what its answer takes: to be kept as long as the answer is.
#[derive(Debug)]
pub struct Share {
    permit: Permit,
    room: Room,
}

impl Share {
    /// Where the call counts.
    pub(crate) fn room(&self) -> Room {
        self.room.clone()
    }

    /// Whether the call ended because it needed more.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.room.is_outgrown()
    }

    /// Gives back what the answer does not take.
    pub(crate) fn keep_for_answer(&mut self) {
        self.permit.shrink(self.room.mebibytes_of_answer());
    }
}

/// What a call may hold, and what it holds. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    /// Bytes that the call may hold: its request, the guest, and the answer's text.
    call: usize,
    /// Bytes that the answer may become when the guest is gone.
    answer: usize,
    held: AtomicUsize,
    kept: AtomicUsize,
}

impl Room {
    /// Enough for whatever a call with these limits may hold.
    pub(crate) fn of(limits: &Limits) -> Self {
        Self::new(most(limits).div_ceil(MIB))
    }

    /// Of so many mebibytes beside [`SMALL`].
    fn new(mebibytes: usize) -> Self {
        let bytes = mebibytes.saturating_mul(MIB);
        Self(Arc::new(Counts {
            call: SMALL.saturating_add(bytes),
            answer: FREE.max(bytes),
            held: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
        }))
    }

    /// Counts so many bytes more that the call holds; `false` when there is no room for them.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        self.0.held.fetch_add(bytes, Relaxed).saturating_add(bytes) <= self.0.call
    }

    /// Counts so many bytes more that its answer becomes, once as the answer and once as what is applied of it; `false`
    /// when there is no room for them.
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

    /// 8 turns, and 48 MiB beside them.
    fn budget() -> Budget {
        Budget::new(64 * MIB, 100)
    }

    #[tokio::test]
    async fn who_needs_much_waits_for_the_whole_and_who_needs_little_for_nobody() {
        let budget = budget();
        assert_eq!((budget.turns(), budget.large.capacity()), (8, 48));
        let (one, other) = (budget.join(1), budget.join(2));
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
        let owner = budget().join(1);
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
        let owner = budget().join(1);
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
