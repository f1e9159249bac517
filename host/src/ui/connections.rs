//! The connections to the page at one time. Those that were let in keep their place; the others make room.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// The open connections, the oldest first.
pub(super) struct Connections {
    limit: usize,
    open: Mutex<Vec<Arc<Seat>>>,
}

/// The place of one connection, until [`Connections::leave`].
#[derive(Default)]
pub(super) struct Seat {
    is_known: AtomicBool,
    /// Cancelled when another connection takes the place.
    pub(super) taken: CancellationToken,
}

impl Seat {
    /// Notes that a request of this connection was let in.
    pub(super) fn know(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }
}

impl Connections {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Mutex::new(Vec::new()),
        }
    }

    /// Takes a place. When there is none, the connection that has waited longest without being let in loses its own.
    /// Returns `None` when everyone was let in.
    ///
    /// Otherwise a caller without a token who opens enough connections could keep all others away.
    pub(super) fn enter(&self) -> Option<Arc<Seat>> {
        let mut open = self.open();
        if open.len() >= self.limit {
            let stranger = open
                .iter()
                .position(|seat| !seat.is_known.load(Ordering::Relaxed))?;
            open.remove(stranger).taken.cancel();
        }
        let seat = Arc::new(Seat::default());
        open.push(Arc::clone(&seat));
        Some(seat)
    }

    /// Frees a place.
    pub(super) fn leave(&self, seat: &Arc<Seat>) {
        self.open().retain(|other| !Arc::ptr_eq(other, seat));
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Seat>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_who_were_let_in_stay_and_the_oldest_of_the_others_makes_room() {
        let connections = Connections::new(3);
        let [first, second, third] = [(); 3].map(|()| connections.enter().unwrap());
        first.know();
        let fourth = connections.enter().unwrap();
        assert!(second.taken.is_cancelled());
        assert!(!first.taken.is_cancelled() && !third.taken.is_cancelled());
        third.know();
        fourth.know();
        assert!(connections.enter().is_none());
        connections.leave(&third);
        // It has left already.
        connections.leave(&second);
        let fifth = connections.enter().unwrap();
        assert!(!first.taken.is_cancelled() && !fifth.taken.is_cancelled());
    }
}
