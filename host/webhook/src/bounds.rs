//! Limits the resources that callers of the webhook can use at a time, since anyone who can reach the port can call
//! it. One address gets at most half of each room that many requests share, so that it cannot take it all, and three
//! quarters while it is the only one: behind a proxy all callers have one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::sizes::Sizes;
use operator_host_core::connections::{Connections, Seat};

/// Maximum number of connections: an API server opens one per waiting review. When there are more, those without a request
/// make room for the next.
const CONNECTIONS: usize = 256;
/// The connections that one address leaves to others.
const LEFT_BY_ONE: usize = 64;
/// How long a part of a body waits for room that others use. Those who hold the room may be waiting for more.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes per semaphore permit, since the number of permits is limited.
const UNIT: usize = 1 << 10;

/// The limits of the webhook.
#[derive(Debug)]
pub(super) struct Bounds {
    sizes: Sizes,
    connections: Connections,
    peers: Mutex<HashMap<IpAddr, Peer>>,
    /// What all addresses use together.
    all: Rooms,
    large_results: Arc<Semaphore>,
}

/// What one address uses.
#[derive(Debug)]
struct Peer {
    connections: usize,
    /// At most.
    alone: Rooms,
    /// While there are others.
    half: Rooms,
}

/// Rooms in bytes, of all addresses or of one.
#[derive(Clone, Debug)]
struct Rooms {
    reviews: Arc<Semaphore>,
    small_conversions: Arc<Semaphore>,
    large_conversions: Arc<Semaphore>,
    small_results: Arc<Semaphore>,
    objects: Arc<Semaphore>,
}

impl Rooms {
    /// Returns this many quarters of the rooms of all addresses. There is room for one object at least.
    fn new(sizes: &Sizes, quarters: usize) -> Self {
        let room = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT));
        Self {
            reviews: room(sizes.reviews / 4 * quarters),
            small_conversions: room(sizes.small_conversions / 4 * quarters),
            large_conversions: room(sizes.large_conversions / 4 * quarters),
            small_results: room(sizes.small_results / 4 * quarters),
            objects: room((sizes.objects / 4 * quarters).max(sizes.object)),
        }
    }
}

impl Peer {
    fn new(sizes: &Sizes) -> Self {
        Self {
            connections: 0,
            alone: Rooms::new(sizes, 3),
            half: Rooms::new(sizes, 2),
        }
    }
}

/// Counts one connection while it is held.
#[derive(Debug)]
pub(super) struct Admitted {
    bounds: Arc<Bounds>,
    seat: Arc<Seat>,
    peer: IpAddr,
    alone: Rooms,
    half: Rooms,
}

/// Keeps the place of a connection while it is held.
#[derive(Debug)]
pub(super) struct InUse(Arc<Bounds>, Arc<Seat>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.connections.release(&self.1);
    }
}

impl Admitted {
    /// Returns the maximum sizes of a request.
    pub(super) fn sizes(&self) -> &Sizes {
        &self.bounds.sizes
    }

    /// Returns the address.
    pub(super) const fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Waits until another connection takes the place of this one.
    pub(super) async fn taken(&self) {
        self.seat.taken.cancelled().await;
    }

    /// Keeps the place during a request.
    pub(super) fn in_use(&self) -> InUse {
        self.seat.keep();
        InUse(Arc::clone(&self.bounds), Arc::clone(&self.seat))
    }

    /// Waits until this address may send a review of this size; of an unknown size, the largest.
    pub(super) async fn review(&self, length: Option<usize>) -> BodyRoom {
        let most = self.sizes().review;
        let bytes = length.unwrap_or(most).min(most);
        self.body(|rooms| &rooms.reviews, bytes).await
    }

    /// Waits until this address may send a conversion of this size; of an unknown size, the largest.
    pub(super) async fn conversion(&self, length: Option<usize>) -> BodyRoom {
        let most = self.sizes().conversion;
        let bytes = length.unwrap_or(most).min(most);
        if bytes <= self.sizes().small {
            self.body(|rooms| &rooms.small_conversions, bytes).await
        } else {
            self.body(|rooms| &rooms.large_conversions, bytes).await
        }
    }

    async fn body(&self, room: fn(&Rooms) -> &Arc<Semaphore>, bytes: usize) -> BodyRoom {
        BodyRoom {
            own: self.own(room, bytes).await,
            all: Arc::clone(room(&self.bounds.all)),
            arrived: None,
        }
    }

    /// Waits for the room of this address.
    async fn own(&self, room: fn(&Rooms) -> &Arc<Semaphore>, bytes: usize) -> Vec<OwnedSemaphorePermit> {
        let mut own = Vec::with_capacity(2);
        own.extend(wait(room(&self.alone), bytes).await);
        if self.bounds.peers().len() > 1 {
            own.extend(wait(room(&self.half), bytes).await);
        }
        own
    }

    /// Waits for the room of this address, and for that of all.
    async fn both(&self, room: fn(&Rooms) -> &Arc<Semaphore>, bytes: usize) -> Vec<OwnedSemaphorePermit> {
        let mut held = self.own(room, bytes).await;
        held.extend(wait(room(&self.bounds.all), bytes).await);
        held
    }

    /// Waits for room for the converted objects of a request with a body of this size: twice as much as the body, since
    /// a conversion may add fields, and at least as much as a small body.
    pub(super) async fn results(&self, body: usize) -> ResultRoom {
        let sizes = self.sizes();
        let bytes = body.saturating_mul(2).clamp(sizes.small, sizes.large_results);
        let held = if body <= sizes.small {
            self.both(|rooms| &rooms.small_results, bytes).await
        } else {
            let large = wait(&self.bounds.large_results, bytes).await;
            large.into_iter().collect()
        };
        ResultRoom { bytes, held }
    }

    /// Waits for room for an object. An object no larger than [`Sizes::object`] always gets it eventually.
    pub(super) async fn object(&self, bytes: usize) -> Vec<OwnedSemaphorePermit> {
        self.both(|rooms| &rooms.objects, bytes).await
    }
}

/// Room for the body of one request.
#[derive(Debug)]
pub(super) struct BodyRoom {
    /// The room of the address, for the whole body: reserved before it arrives.
    own: Vec<OwnedSemaphorePermit>,
    all: Arc<Semaphore>,
    /// The room of all addresses, for what has arrived.
    arrived: Option<OwnedSemaphorePermit>,
}

impl BodyRoom {
    /// Waits a moment for room for a part of the body. Returns whether there is some.
    pub(super) async fn arrive(&mut self, bytes: usize) -> bool {
        let Ok(Some(more)) = timeout(PATIENCE, wait(&self.all, bytes)).await else {
            return false;
        };
        match &mut self.arrived {
            None => self.arrived = Some(more),
            Some(arrived) => arrived.merge(more),
        }
        true
    }

    /// Returns the reservation of the address: the body itself is gone, but the answer may be as large.
    pub(super) fn into_own(self) -> Vec<OwnedSemaphorePermit> {
        self.own
    }

    /// Returns both reservations.
    pub(super) fn held(self) -> impl Iterator<Item = OwnedSemaphorePermit> {
        self.own.into_iter().chain(self.arrived)
    }
}

/// Room for the converted objects of one request.
#[derive(Debug)]
pub(super) struct ResultRoom {
    /// Its size.
    pub(super) bytes: usize,
    held: Vec<OwnedSemaphorePermit>,
}

impl ResultRoom {
    /// Returns the room beyond these bytes, and keeps the rest.
    pub(super) fn keep(mut self, bytes: usize) -> Vec<OwnedSemaphorePermit> {
        for held in &mut self.held {
            let surplus = held.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(held.split(surplus));
        }
        self.held
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.bounds.connections.leave(&self.seat);
        let mut peers = self.bounds.peers();
        if let Some(peer) = peers.get_mut(&self.peer) {
            peer.connections -= 1;
            if peer.connections == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

impl Bounds {
    /// Creates the limits for callers who may hold `memory` bytes in total.
    pub(super) fn new(memory: usize) -> Self {
        let sizes = Sizes::within(memory);
        Self {
            connections: Connections::new(CONNECTIONS, LEFT_BY_ONE),
            peers: Mutex::default(),
            all: Rooms::new(&sizes, 4),
            large_results: Arc::new(Semaphore::new(sizes.large_results / UNIT)),
            sizes,
        }
    }

    /// Admits a connection, unless there are too many with a request.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Admitted> {
        let seat = self.connections.enter(peer)?;
        let mut peers = self.peers();
        let entry = peers.entry(peer).or_insert_with(|| Peer::new(&self.sizes));
        entry.connections += 1;
        Some(Admitted {
            bounds: Arc::clone(self),
            seat,
            peer,
            alone: entry.alone.clone(),
            half: entry.half.clone(),
        })
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<IpAddr, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn wait(room: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    Arc::clone(room).acquire_many_owned(units(bytes)?).await.ok()
}

fn units(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT)).ok()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const REVIEW: usize = Sizes::FULL.review;
    const REVIEWS: usize = Sizes::FULL.reviews;
    const CONVERSION: usize = Sizes::FULL.conversion;
    const SMALL: usize = Sizes::FULL.small;
    const SMALL_CONVERSIONS: usize = Sizes::FULL.small_conversions;
    const OBJECT: usize = Sizes::FULL.object;
    const OBJECTS: usize = Sizes::FULL.objects;

    fn bounds() -> Arc<Bounds> {
        Arc::new(Bounds::new(usize::MAX))
    }

    /// Regression: the rooms were 248 MiB in a container of any size.
    #[tokio::test]
    async fn in_a_small_process_callers_get_less_and_the_largest_request_of_each_still_fits() {
        let bounds = Arc::new(Bounds::new(32 << 20));
        let (one, other) = (of(&bounds, 1), of(&bounds, 2));
        let sizes = *one.sizes();
        assert!(sizes.total() <= 32 << 20 && sizes.review < REVIEW);
        for caller in [&one, &other] {
            let mut room = caller.review(Some(REVIEW)).now_or_never().expect("room");
            assert!(room.arrive(sizes.review).now_or_never() == Some(true));
            assert!(!waits(caller.conversion(None)) && !waits(caller.conversion(Some(sizes.small))));
            assert!(!waits(caller.object(sizes.object)));
            for body in [sizes.small, sizes.conversion] {
                let results = caller.results(body).now_or_never().expect("room");
                assert_eq!(results.bytes, 2 * body);
            }
        }
    }

    #[tokio::test]
    async fn a_connection_without_a_request_makes_room_for_another() {
        let bounds = bounds();
        let one: Vec<_> = (0..CONNECTIONS - LEFT_BY_ONE).map(|_| of(&bounds, 1)).collect();
        let used = one[0].in_use();
        let more = of(&bounds, 1);
        assert!(waits(one[0].taken()) && !waits(one[1].taken()) && waits(one[2].taken()));
        drop(used);
        let used: Vec<_> = one.iter().chain([&more]).map(Admitted::in_use).collect();
        assert!(bounds.admit(IpAddr::from([10, 0, 0, 1])).is_none());
        let others: Vec<_> = (0..LEFT_BY_ONE).map(|_| of(&bounds, 2)).collect();
        assert!(others.iter().all(|other| waits(other.taken())));
        drop((used, one, more, others));
        assert!(bounds.peers().is_empty(), "nothing stays");
    }

    #[tokio::test]
    async fn the_only_address_gets_three_quarters_of_the_room() {
        let bounds = bounds();
        let one = of(&bounds, 1);
        let mut held = Vec::new();
        for _ in 0..REVIEWS / 4 * 3 / REVIEW {
            let mut room = one.review(None).now_or_never().expect("room");
            assert!(room.arrive(REVIEW).await);
            held.push(room);
        }
        assert!(waits(one.review(Some(10))));
        let other = of(&bounds, 2);
        for _ in 0..REVIEWS / 4 / REVIEW {
            let mut room = other.review(None).now_or_never().expect("room");
            assert!(room.arrive(REVIEW).await);
            held.push(room);
        }
    }

    fn of(bounds: &Arc<Bounds>, n: u8) -> Admitted {
        bounds.admit(IpAddr::from([10, 0, 0, n])).unwrap()
    }

    /// Whether a request for room has to wait.
    fn waits<T>(room: impl Future<Output = T>) -> bool {
        room.now_or_never().is_none()
    }

    #[tokio::test]
    async fn one_address_gets_half_of_the_room_for_bodies_and_leaves_the_rest_to_others() {
        let bounds = bounds();
        let (one, same, other) = (of(&bounds, 1), of(&bounds, 1), of(&bounds, 2));
        let mut reviews = Vec::new();
        let mut small = Vec::new();
        for _ in 0..REVIEWS / 2 / REVIEW {
            reviews.push(one.review(None).await);
        }
        for _ in 0..SMALL_CONVERSIONS / 2 / SMALL {
            small.push(one.conversion(Some(SMALL)).await);
        }
        assert!(waits(same.review(Some(10))) && waits(same.conversion(Some(10))));
        assert!(
            !waits(same.conversion(Some(SMALL + 1))),
            "large ones have room of their own"
        );
        assert!(!waits(other.review(Some(REVIEW))) && !waits(other.conversion(Some(SMALL))));
        reviews.pop();
        assert!(!waits(same.review(Some(REVIEW))), "one has ended");
    }

    #[tokio::test]
    async fn a_body_waits_a_moment_for_the_room_of_others() {
        let bounds = bounds();
        let (one, other, third) = (of(&bounds, 1), of(&bounds, 2), of(&bounds, 3));
        let mut held = Vec::new();
        for peer in [&one, &other] {
            for _ in 0..REVIEWS / 2 / REVIEW {
                let mut room = peer.review(None).await;
                assert!(room.arrive(REVIEW).await);
                held.push(room);
            }
        }
        let mut room = third.review(Some(10)).await;
        assert!(!room.arrive(10).await, "nobody ends");
        let (has_room, ()) = tokio::join!(room.arrive(10), async { drop(held) });
        assert!(has_room);
        assert_eq!(room.held().count(), 3);
    }

    #[tokio::test]
    async fn objects_of_one_address_leave_room_for_others() {
        let bounds = bounds();
        let (one, other) = (of(&bounds, 1), of(&bounds, 2));
        let held = one.object(OBJECT).await;
        assert!(waits(one.object(1)) && !waits(other.object(OBJECTS - OBJECT)));
        let (second, ()) = tokio::join!(other.object(OBJECT), async { drop(held) });
        assert_eq!(second.len(), 3);
    }

    #[tokio::test]
    async fn large_conversions_delay_neither_small_ones_nor_those_of_others() {
        let bounds = bounds();
        let (one, same, other) = (of(&bounds, 1), of(&bounds, 1), of(&bounds, 2));
        let held = one.conversion(Some(CONVERSION - (2 << 20))).await;
        assert!(waits(same.conversion(Some(3 << 20))));
        assert!(waits(same.conversion(None)), "it may be large");
        assert!(!waits(same.conversion(Some(2 << 20))) && !waits(same.conversion(Some(SMALL))));
        assert!(!waits(other.conversion(Some(CONVERSION))));
        drop(held);
        assert!(!waits(same.conversion(None)));

        let large = one.results(CONVERSION).await;
        assert_eq!(large.bytes, 2 * CONVERSION);
        assert!(waits(other.results(SMALL + 1)));
        let held = large.keep(10 << 20);
        assert!(!waits(other.results(10 << 20)), "the rest is free again");
        let small: Vec<_> = std::iter::from_fn(|| one.results(10).now_or_never()).collect();
        assert_eq!((small.len(), small[0].bytes), (8, 1 << 20));
        assert!(waits(same.results(10)) && !waits(other.results(SMALL)));
        drop(held);
    }
}
