//! Limits the resources that callers of the webhook can use at a time, since anyone who can reach the port can call
//! it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of connections, in total and per address: an API server opens one per waiting review.
const CONNECTIONS: usize = 256;
const CONNECTIONS_OF_ONE: usize = 64;
/// Maximum total size of received bodies, in bytes.
const BODIES: usize = 48 << 20;
/// Maximum total size of converted objects and of the responses with them, in bytes.
const RESULTS: usize = 48 << 20;
/// Maximum total memory of objects under review, in bytes.
const OBJECTS: usize = 96 << 20;
/// Maximum memory of one object under review, in bytes.
pub(super) const OBJECT: usize = 64 << 20;
/// Bytes per semaphore permit, since the number of permits is limited.
const UNIT: usize = 1 << 10;

/// The limits of the webhook.
#[derive(Debug)]
pub(super) struct Bounds {
    peers: Mutex<HashMap<IpAddr, usize>>,
    bodies: Arc<Semaphore>,
    objects: Arc<Semaphore>,
    results: Arc<Semaphore>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            peers: Mutex::default(),
            bodies: Arc::new(Semaphore::new(BODIES / UNIT)),
            objects: Arc::new(Semaphore::new(OBJECTS / UNIT)),
            results: Arc::new(Semaphore::new(RESULTS / UNIT)),
        }
    }
}

/// Counts one connection while it is held.
#[derive(Debug)]
pub(super) struct Admitted {
    bounds: Arc<Bounds>,
    peer: IpAddr,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut peers = self.bounds.peers();
        if let Some(count) = peers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

impl Bounds {
    /// Admits a connection, unless there are too many.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Admitted> {
        let mut peers = self.peers();
        let all: usize = peers.values().sum();
        let own = peers.get(&peer).copied().unwrap_or_default();
        if all >= CONNECTIONS || own >= CONNECTIONS_OF_ONE {
            return None;
        }
        peers.insert(peer, own + 1);
        Some(Admitted {
            bounds: Arc::clone(self),
            peer,
        })
    }

    /// Reserves room for a part of a body. Does not wait, since those who hold the room may be waiting for more.
    pub(super) fn body(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.bodies)
            .try_acquire_many_owned(units(bytes)?)
            .ok()
    }

    /// Waits for room for an object. An object no larger than [`OBJECT`] always gets it eventually.
    pub(super) async fn object(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.objects)
            .acquire_many_owned(units(bytes)?)
            .await
            .ok()
    }

    /// Waits for room for the results of a conversion. Up to [`RESULTS`] always gets it eventually.
    pub(super) async fn results(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.results)
            .acquire_many_owned(units(bytes.min(RESULTS))?)
            .await
            .ok()
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn units(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT)).ok()
}

#[cfg(test)]
mod tests {
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
        let held = bounds.body(BODIES).unwrap();
        assert!(bounds.body(1).is_none());
        drop(held);
        assert!(bounds.body(1).is_some());
        let held = bounds.object(OBJECT).await.unwrap();
        let (second, ()) = tokio::join!(bounds.object(OBJECT), async { drop(held) });
        assert!(second.is_some());
    }
}
