//! The connections to a server at one time. Those that are in use keep their place; the others make room.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The open connections, those that have been out of use the longest first.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    share: usize,
    open: Mutex<Vec<Arc<Seat>>>,
}

/// The place of one connection, until [`Connections::leave`].
#[derive(Debug)]
pub struct Seat {
    peer: IpAddr,
    is_used: AtomicBool,
    /// Cancelled when another connection takes the place.
    pub taken: CancellationToken,
}

impl Seat {
    /// Keeps the place, until [`Connections::release`].
    pub fn keep(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    fn is_free(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed)
    }
}

impl Connections {
    /// Creates the places. One address gets at most `limit - share` of them, so that `share` are left to others.
    pub const fn new(limit: usize, share: usize) -> Self {
        Self {
            limit,
            share,
            open: Mutex::new(Vec::new()),
        }
    }

    /// Takes a place for a connection from this address. When there is none for it, the connection that has been out of use
    /// the longest loses its own: one of the same address if that has more than its share, otherwise one of another address
    /// that has. Returns `None` when all of them are in use.
    ///
    /// Otherwise a caller who opens enough connections could keep all others away.
    pub fn enter(&self, peer: IpAddr) -> Option<Arc<Seat>> {
        let mut open = self.open();
        let count = |peer: IpAddr| open.iter().filter(|seat| seat.peer == peer).count();
        let has_more = count(peer) >= self.share;
        let room = if has_more {
            self.limit - self.share
        } else {
            self.limit
        };
        if open.len() >= room {
            let free =
                |may: &dyn Fn(IpAddr) -> bool| open.iter().position(|seat| seat.is_free() && may(seat.peer));
            let place = match has_more {
                true => free(&|other| other == peer),
                false => free(&|other| count(other) > self.share).or_else(|| free(&|_| true)),
            };
            open.remove(place?).taken.cancel();
        }
        let seat = Arc::new(Seat {
            peer,
            is_used: AtomicBool::new(false),
            taken: CancellationToken::new(),
        });
        open.push(Arc::clone(&seat));
        Some(seat)
    }

    /// Notes that a connection is no longer in use.
    pub fn release(&self, seat: &Arc<Seat>) {
        let mut open = self.open();
        if let Some(place) = open.iter().position(|other| Arc::ptr_eq(other, seat)) {
            let seat = open.remove(place);
            seat.is_used.store(false, Ordering::Relaxed);
            open.push(seat);
        }
    }

    /// Frees a place.
    pub fn leave(&self, seat: &Arc<Seat>) {
        self.open().retain(|other| !Arc::ptr_eq(other, seat));
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address to which a caller's share belongs: a machine often has a whole network of IPv6 addresses.
pub fn share_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn connections_in_use_stay_and_the_oldest_of_the_others_makes_room() {
        let connections = Connections::new(3, 3);
        let [first, second, third] = [(); 3].map(|()| connections.enter(peer(1)).unwrap());
        first.keep();
        let fourth = connections.enter(peer(1)).unwrap();
        assert!(second.taken.is_cancelled());
        assert!(!first.taken.is_cancelled() && !third.taken.is_cancelled());
        third.keep();
        fourth.keep();
        assert!(connections.enter(peer(1)).is_none());
        connections.leave(&third);
        // It has left already.
        connections.leave(&second);
        let fifth = connections.enter(peer(1)).unwrap();
        assert!(!first.taken.is_cancelled() && !fifth.taken.is_cancelled());
    }

    #[test]
    fn the_one_that_has_been_out_of_use_the_longest_makes_room() {
        let connections = Connections::new(3, 3);
        let [first, second, third] = [1, 2, 3].map(|n| connections.enter(peer(n)).unwrap());
        first.keep();
        connections.release(&first);
        let fourth = connections.enter(peer(4)).unwrap();
        assert!(second.taken.is_cancelled() && !first.taken.is_cancelled());
        connections.enter(peer(4)).unwrap();
        assert!(third.taken.is_cancelled() && !first.taken.is_cancelled());
        connections.enter(peer(4)).unwrap();
        assert!(first.taken.is_cancelled() && !fourth.taken.is_cancelled());
    }

    #[test]
    fn one_address_gets_all_places_but_a_share_and_then_its_own_ones() {
        let connections = Connections::new(8, 2);
        let one: Vec<_> = (0..6).map(|_| connections.enter(peer(1)).unwrap()).collect();
        assert!(one.iter().all(|seat| !seat.taken.is_cancelled()));
        let seventh = connections.enter(peer(1)).unwrap();
        assert!(one[0].taken.is_cancelled());
        one.iter().for_each(|seat| seat.keep());
        seventh.keep();
        assert!(connections.enter(peer(1)).is_none());
        let others = [2, 3].map(|n| connections.enter(peer(n)).unwrap());
        // Full: those of the address with more than its share make room first.
        connections.release(&one[3]);
        connections.enter(peer(4)).unwrap();
        assert!(one[3].taken.is_cancelled());
        assert!(others.iter().all(|seat| !seat.taken.is_cancelled()));
        connections.enter(peer(4)).unwrap();
        assert!(others[0].taken.is_cancelled());
    }

    #[test]
    fn a_network_of_ipv6_addresses_has_one_share() {
        let of = |text: &str| share_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::5"), of("2001:db8:1:2:ffff::6"));
        assert_ne!(of("2001:db8:1:2::5"), of("2001:db8:1:3::5"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
