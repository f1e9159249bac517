//! Limits the resources that callers of the webhook can use at a time, since anyone who can reach the port can call
//! it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of connections, in total and per address: an API server opens one per waiting review.
const CONNECTIONS: usize = 256;
const CONNECTIONS_OF_ONE: usize = 64;
/// Maximum total size of the received bodies of reviews, in bytes.
const REVIEWS: usize = 24 << 20;
/// Maximum total size of the received bodies of conversions, in bytes.
const CONVERSIONS: usize = 48 << 20;
/// Maximum size of the body of one conversion, in bytes. A list in another version is converted as a whole: this is a
/// list of 10,000 objects of 2.4 KiB.
pub(super) const CONVERSION: usize = 24 << 20;
/// Maximum size of the body of a small conversion, in bytes. Large ones do not delay small ones.
const SMALL: usize = 1 << 20;
/// Maximum total size of converted objects that wait until they are sent, in bytes: of small conversions and of large
/// ones.
const SMALL_RESULTS: usize = 16 << 20;
const LARGE_RESULTS: usize = 48 << 20;
/// Maximum total memory of objects under review, in bytes.
const OBJECTS: usize = 96 << 20;
/// Maximum memory of one object under review, in bytes.
pub(super) const OBJECT: usize = 64 << 20;
/// Bytes per semaphore permit, since the number of permits is limited.
const UNIT: usize = 1 << 10;

/// The limits of the webhook.
#[derive(Debug)]
pub(super) struct Bounds {
    peers: Mutex<HashMap<IpAddr, Peer>>,
    reviews: Arc<Semaphore>,
    conversions: Arc<Semaphore>,
    objects: Arc<Semaphore>,
    small_results: Arc<Semaphore>,
    large_results: Arc<Semaphore>,
}

/// What one address uses.
#[derive(Debug)]
struct Peer {
    connections: usize,
    /// Bytes of large conversions: an address gets half of the room for them.
    large: Arc<Semaphore>,
    /// Bytes of the results of small conversions: an address gets half of the room for them.
    small_results: Arc<Semaphore>,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            connections: 0,
            large: Arc::new(Semaphore::new(CONVERSION / UNIT)),
            small_results: Arc::new(Semaphore::new(SMALL_RESULTS / 2 / UNIT)),
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            peers: Mutex::default(),
            reviews: Arc::new(Semaphore::new(REVIEWS / UNIT)),
            conversions: Arc::new(Semaphore::new(CONVERSIONS / UNIT)),
            objects: Arc::new(Semaphore::new(OBJECTS / UNIT)),
            small_results: Arc::new(Semaphore::new(SMALL_RESULTS / UNIT)),
            large_results: Arc::new(Semaphore::new(LARGE_RESULTS / UNIT)),
        }
    }
}

/// Counts one connection while it is held.
#[derive(Debug)]
pub(super) struct Admitted {
    bounds: Arc<Bounds>,
    peer: IpAddr,
    large: Arc<Semaphore>,
    small_results: Arc<Semaphore>,
}

impl Admitted {
    /// Waits until this address may send a conversion of this size; of an unknown size, the largest.
    pub(super) async fn conversion(&self, length: Option<usize>) -> Option<OwnedSemaphorePermit> {
        let bytes = length.unwrap_or(CONVERSION).min(CONVERSION);
        if bytes <= SMALL {
            return None;
        }
        wait(&self.large, bytes).await
    }

    /// Waits for room for the converted objects of a request with a body of this size: twice as much as the body, since
    /// a conversion may add fields, and at least 1 MiB.
    pub(super) async fn results(&self, body: usize) -> Room {
        let bytes = body.saturating_mul(2).clamp(SMALL, LARGE_RESULTS);
        let held = if body <= SMALL {
            let own = wait(&self.small_results, bytes).await;
            [own, wait(&self.bounds.small_results, bytes).await]
        } else {
            [wait(&self.bounds.large_results, bytes).await, None]
        };
        let held = held.into_iter().flatten().collect();
        Room { bytes, held }
    }
}

/// Room for the converted objects of one request.
#[derive(Debug)]
pub(super) struct Room {
    /// Its size.
    pub(super) bytes: usize,
    held: Vec<OwnedSemaphorePermit>,
}

impl Room {
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
    /// Admits a connection, unless there are too many.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Admitted> {
        let mut peers = self.peers();
        let all: usize = peers.values().map(|peer| peer.connections).sum();
        let own = peers.get(&peer).map_or(0, |peer| peer.connections);
        if all >= CONNECTIONS || own >= CONNECTIONS_OF_ONE {
            return None;
        }
        let entry = peers.entry(peer).or_default();
        entry.connections += 1;
        Some(Admitted {
            bounds: Arc::clone(self),
            peer,
            large: Arc::clone(&entry.large),
            small_results: Arc::clone(&entry.small_results),
        })
    }

    /// Reserves room for a part of the body of a review. Does not wait, since those who hold the room may be waiting for
    /// more.
    pub(super) fn review(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.reviews)
            .try_acquire_many_owned(units(bytes)?)
            .ok()
    }

    /// Reserves room for a part of the body of a conversion. Does not wait, either.
    pub(super) fn conversion(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.conversions)
            .try_acquire_many_owned(units(bytes)?)
            .ok()
    }

    /// Waits for room for an object. An object no larger than [`OBJECT`] always gets it eventually.
    pub(super) async fn object(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        wait(&self.objects, bytes).await
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

    #[test]
    fn one_address_has_room_for_some_connections_and_leaves_room_for_others() {
        let bounds = Arc::<Bounds>::default();
        let peer = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut held: Vec<_> = std::iter::from_fn(|| bounds.admit(peer(1))).collect();
        assert_eq!(held.len(), CONNECTIONS_OF_ONE);
        assert!(bounds.admit(peer(2)).is_some());
        held.pop();
        assert!(bounds.admit(peer(1)).is_some(), "one has ended");
        let others = (2..100).flat_map(|n| std::iter::from_fn(move || Some(n)).take(10));
        held.extend(others.filter_map(|n| bounds.admit(peer(n))));
        assert_eq!(held.len(), CONNECTIONS);
        drop(held);
        assert!(bounds.peers().is_empty(), "nothing stays");
    }

    #[tokio::test]
    async fn bodies_do_not_wait_for_room_and_objects_do() {
        let bounds = Bounds::default();
        let held = bounds.review(REVIEWS).unwrap();
        assert!(bounds.review(1).is_none());
        assert!(
            bounds.conversion(1).is_some(),
            "conversions have room of their own"
        );
        drop(held);
        assert!(bounds.review(1).is_some());
        let held = bounds.object(OBJECT).await.unwrap();
        let (second, ()) = tokio::join!(bounds.object(OBJECT), async { drop(held) });
        assert!(second.is_some());
    }

    #[tokio::test]
    async fn large_conversions_delay_neither_small_ones_nor_those_of_others() {
        let bounds = Arc::<Bounds>::default();
        let of = |n: u8| bounds.admit(IpAddr::from([10, 0, 0, n])).unwrap();
        let (one, same, other) = (of(1), of(1), of(2));
        let waits = |peer: &Admitted, length| peer.conversion(length).now_or_never().is_none();
        let held = one.conversion(Some(CONVERSION - (2 << 20))).await.unwrap();
        assert!(waits(&same, Some(3 << 20)));
        assert!(waits(&same, None), "it may be large");
        assert!(!waits(&same, Some(2 << 20)) && !waits(&same, Some(SMALL)));
        assert!(!waits(&other, Some(CONVERSION)));
        drop(held);
        assert!(!waits(&same, None));

        let waits = |peer: &Admitted, body| peer.results(body).now_or_never().is_none();
        let large = one.results(CONVERSION).await;
        assert_eq!(large.bytes, 2 * CONVERSION);
        assert!(waits(&other, SMALL + 1));
        let held = large.keep(10 << 20);
        assert!(!waits(&other, 10 << 20), "the rest is free again");
        let small: Vec<_> = std::iter::from_fn(|| one.results(10).now_or_never()).collect();
        assert_eq!((small.len(), small[0].bytes), (8, 1 << 20));
        assert!(waits(&same, 10) && !waits(&other, SMALL));
        drop(held);
    }
}
