//! The requests for one plugin that are answered at the same time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests that are answered at the same time, in total and from one address.
const TURNS: usize = 4;
const TURNS_OF_ONE: usize = TURNS - 1;

/// The turns of one controller. They are separate from its reconciles, so that neither delays the other. One address gets
/// all but one of them, because often all requests of the API servers come from one: its slow requests leave a turn to others.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// The turns of each address that has or wants one.
    peers: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(TURNS)),
            peers: Mutex::default(),
        }
    }
}

/// A turn while it is held.
#[derive(Debug)]
pub(super) struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _any: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits for the turn of an address.
    pub(super) async fn take(&self, peer: IpAddr) -> Turn {
        // Neither is ever closed.
        Turn {
            _own: self.of(peer).acquire_owned().await.ok(),
            _any: Arc::clone(&self.all).acquire_owned().await.ok(),
        }
    }

    fn of(&self, peer: IpAddr) -> Arc<Semaphore> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = peers.get(&peer).and_then(Weak::upgrade) {
            return own;
        }
        peers.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(TURNS_OF_ONE));
        peers.insert(peer, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_address_leaves_turns_to_others() {
        let turns = Turns::default();
        let take = |n: u8| turns.take(IpAddr::from([10, 0, 0, n])).now_or_never();
        let one = [take(1), take(1), take(1)];
        assert!(one.iter().all(Option::is_some) && take(1).is_none());
        let other = [take(2)];
        assert!(other.iter().all(Option::is_some));
        assert!(take(3).is_none(), "all are taken");
        drop(one);
        assert!(take(3).is_some() && take(1).is_some());
        drop(other);
        assert!(take(4).is_some());
        assert_eq!(turns.peers.lock().unwrap().len(), 1, "nothing stays");
    }
}
