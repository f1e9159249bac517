//! Limits what callers of the webhook can make the host hold, since anyone who can reach the port can call it.

use std::net::IpAddr;
use std::sync::Arc;

use operator_host_runtime::fair::{Fair, Member, Permit};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What addresses share. One address gets at most three quarters of it, so that its slow requests leave some to others:
/// often all requests of the API servers come from one address.
#[derive(Debug)]
pub(super) struct Parts {
    all: Fair,
    /// Never has any, so that a quarter is always reserved for an address that has none.
    _nobody: Member,
}

/// A part while it is held.
#[derive(Debug)]
pub(super) struct Part {
    _own: Permit,
    _of: Arc<Member>,
}

impl Parts {
    pub(super) fn new(amount: usize) -> Self {
        let all = Fair::new(amount, amount.div_ceil(4));
        Self {
            _nobody: all.join(),
            all,
        }
    }

    /// Waits until an address may have this much. If that is more than its part, it gets its whole part.
    pub(super) async fn take(&self, peer: IpAddr, amount: usize) -> Part {
        let address = self.all.named(&peer.to_string());
        Part {
            _own: address.acquire(amount.min(self.all.capacity() * 3 / 4)).await,
            _of: address,
        }
    }
}

/// Room for bytes of requests. Small ones have room of their own, so that large ones do not delay them.
#[derive(Debug)]
pub(super) struct Room {
    /// The most bytes of a small one.
    most: usize,
    small: Parts,
    large: Parts,
}

impl Room {
    fn new(most: usize, small: usize, large: usize) -> Self {
        Self {
            most,
            small: Parts::new(small / KIB),
            large: Parts::new(large / KIB),
        }
    }

    /// Waits until there is room for this many bytes of an address.
    pub(super) async fn take(&self, peer: IpAddr, bytes: usize) -> Part {
        let room = match bytes <= self.most {
            true => &self.small,
            false => &self.large,
        };
        room.take(peer, bytes.div_ceil(KIB)).await
    }
}

/// The room of all callers. A request takes it in this order, and keeps it until its answer is sent.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) sizes: Sizes,
    /// For bodies, while they arrive and are worked on.
    pub(super) bodies: Room,
    /// For what is made of them: objects under review in memory, and converted objects.
    pub(super) work: Room,
}

impl Rooms {
    /// Creates the room for callers who may make the host hold `memory` bytes.
    pub(super) fn new(memory: usize) -> Self {
        let sizes = Sizes::within(memory);
        Self {
            sizes,
            bodies: Room::new(sizes.small, sizes.small_bodies, sizes.large_bodies),
            work: Room::new(2 * sizes.small, sizes.small_work, sizes.large_work),
        }
    }
}

/// Who asks, and the room that it shares with others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) peer: IpAddr,
    pub(super) rooms: &'a Rooms,
}

/// The sizes of the room, and of what one request may take of it, in bytes. In a process with little memory, they are
/// smaller in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Maximum size of the body of a review: two versions of an object, each limited to 1.5 MiB by etcd. The API server
    /// limits requests to itself to 3 MiB.
    pub(super) review: usize,
    /// Maximum size of the body of one conversion. A list in another version is converted as a whole: this is a list of
    /// 10,000 objects of 2.4 KiB.
    pub(super) conversion: usize,
    /// Maximum memory of one object under review, with the one that it replaces.
    pub(super) object: usize,
    /// Maximum size of a small body. What is made of it is small up to twice this size.
    pub(super) small: usize,
    small_bodies: usize,
    large_bodies: usize,
    small_work: usize,
    large_work: usize,
}

impl Sizes {
    /// The sizes in a process with enough memory.
    pub(super) const FULL: Self = Self {
        review: 3 * MIB,
        conversion: 24 * MIB,
        object: 64 * MIB,
        small: MIB,
        small_bodies: 32 * MIB,
        large_bodies: 48 * MIB,
        small_work: 32 * MIB,
        large_work: 96 * MIB,
    };

    /// Returns the sizes for callers who may make the host hold `memory` bytes.
    fn within(memory: usize) -> Self {
        let full = Self::FULL;
        let part = |size: usize| match memory / KIB {
            room if room < full.total() / KIB => size / KIB * room / (full.total() / KIB) * KIB,
            _ => size,
        };
        let (large_bodies, large_work) = (part(full.large_bodies), part(full.large_work));
        let small_work = part(full.small_work);
        Self {
            review: full.review.min(large_bodies / 2),
            conversion: full.conversion.min(large_bodies / 2),
            object: full.object.min(large_work / 3 * 2),
            small: full.small.min(small_work / 4),
            small_bodies: part(full.small_bodies),
            large_bodies,
            small_work,
            large_work,
        }
    }

    /// Returns the bytes that the converted objects of a request with a body of this size may have: twice as much, since
    /// a conversion may add fields, and at least as much as a small body.
    pub(super) fn converted(&self, body: usize) -> usize {
        (2 * body).max(self.small)
    }

    /// Returns the bytes of all that callers can make the host hold.
    const fn total(&self) -> usize {
        self.small_bodies + self.large_bodies + self.small_work + self.large_work
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const REVIEW: usize = Sizes::FULL.review;
    const CONVERSION: usize = Sizes::FULL.conversion;
    const SMALL: usize = Sizes::FULL.small;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// Returns the part, unless an address has to wait for it.
    fn at_once<T>(room: impl Future<Output = T>) -> Option<T> {
        room.now_or_never()
    }

    #[tokio::test]
    async fn one_address_leaves_a_quarter_to_others() {
        let parts = Parts::new(4);
        let take = |n: u8| at_once(parts.take(peer(n), 1));
        let one = [take(1), take(1), take(1)];
        assert!(one.iter().all(Option::is_some) && take(1).is_none());
        let other = take(2);
        assert!(other.is_some());
        assert!(take(3).is_none(), "all are taken");
        drop(one);
        assert!(take(3).is_some() && take(1).is_some());
    }

    #[test]
    fn all_rooms_together_fit_the_memory_and_one_request_fits_each_room() {
        for memory in [1, 3, 16, 31, 64, 100, 128, 207, 208, 500].map(|mebibytes| mebibytes * MIB) {
            let sizes = Sizes::within(memory);
            assert!(sizes.total() <= memory.min(Sizes::FULL.total()), "{sizes:?}");
            assert!(
                sizes.total() > memory.min(Sizes::FULL.total()) / 10 * 9,
                "{sizes:?}"
            );
            // The part of one address.
            let part = |size: usize| size / KIB * 3 / 4 * KIB;
            assert!(
                sizes.review.max(sizes.conversion) <= part(sizes.large_bodies),
                "{sizes:?}"
            );
            assert!(sizes.small <= part(sizes.small_bodies), "{sizes:?}");
            assert!(
                sizes.converted(sizes.small) <= part(sizes.small_work),
                "{sizes:?}"
            );
            assert!(
                sizes.converted(sizes.conversion) <= part(sizes.large_work),
                "{sizes:?}"
            );
            assert!(sizes.object <= part(sizes.large_work), "{sizes:?}");
        }
        assert_eq!(Sizes::within(usize::MAX), Sizes::FULL);
        assert_eq!(Sizes::within(Sizes::FULL.total()), Sizes::FULL);
        // With the 512 MiB of manifests/deploy, the largest review is as large as everywhere.
        assert_eq!(Sizes::within(128 * MIB).review, REVIEW);
    }

    /// Regression: the rooms were 248 MiB in a container of any size.
    #[tokio::test]
    async fn in_a_small_process_callers_get_less_and_the_largest_request_of_each_still_fits() {
        let rooms = Rooms::new(32 << 20);
        let sizes = rooms.sizes;
        assert!(sizes.conversion < CONVERSION);
        for one in [1, 2] {
            assert!(at_once(rooms.bodies.take(peer(one), sizes.review)).is_some());
            assert!(at_once(rooms.bodies.take(peer(one), sizes.conversion)).is_some());
            assert!(at_once(rooms.work.take(peer(one), sizes.object)).is_some());
            assert!(at_once(rooms.work.take(peer(one), sizes.converted(sizes.conversion))).is_some());
        }
    }

    #[tokio::test]
    async fn large_requests_delay_neither_small_ones_nor_those_of_others() {
        let rooms = Rooms::new(usize::MAX);
        let bodies = |n: u8, bytes| at_once(rooms.bodies.take(peer(n), bytes));
        let held = [bodies(1, CONVERSION), bodies(1, CONVERSION / 2)];
        assert!(held.iter().all(Option::is_some));
        assert!(bodies(1, REVIEW).is_none(), "it has its part");
        assert!(bodies(1, SMALL).is_some() && bodies(2, REVIEW).is_some());
        drop(held);
        assert!(bodies(1, REVIEW).is_some());

        let work = |n: u8, bytes| at_once(rooms.work.take(peer(n), bytes));
        let held = work(1, Sizes::FULL.object);
        assert!(held.is_some());
        assert!(work(1, Sizes::FULL.object).is_none());
        assert!(work(1, 2 * SMALL).is_some() && work(2, 32 * MIB).is_some());
    }

    #[test]
    fn what_is_larger_than_a_part_does_not_wait_for_ever() {
        let parts = Parts::new(4);
        let all = at_once(parts.take(peer(1), 5));
        assert!(all.is_some() && at_once(parts.take(peer(1), 1)).is_none());
    }
}
