//! The accept loop of the HTTP servers. It bounds what anyone who reaches a port can make the host hold.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;
use tracing::{debug, warn};

use operator_host_core::sync::lock;

/// How long a client may take for its handshake, and for the head of each request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last answer of a connection may take. It is longer than the API server waits for an answer.
const LAST_ANSWER: Duration = Duration::from_secs(60);

/// An HTTP/1.1 server.
pub struct Server {
    /// What it serves, for the log.
    pub what: &'static str,
    /// Answers the requests. Their extensions contain a [`Caller`].
    pub router: Router,
    /// Maximum number of connections. One address gets three quarters of them.
    pub connections: usize,
    /// Maximum size of the head of a request in bytes.
    pub head: usize,
    /// How long a connection lasts. After it, a client has a minute to read the answer to its last request.
    pub life: Duration,
    /// The TLS configuration for the next connection; without one it is closed.
    pub tls: Option<watch::Receiver<Option<Arc<ServerConfig>>>>,
    /// When it is cancelled, each connection is for one more request only.
    pub stop: CancellationToken,
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The address to which its share of anything belongs.
    pub peer: IpAddr,
    /// Whether it has shown a certificate that the TLS configuration accepts.
    pub is_verified: bool,
    seat: Arc<Seat>,
}

impl Caller {
    /// Keeps the place of the connection while the result is held.
    #[must_use]
    pub fn keep_place(&self) -> InUse {
        *lock(&self.seat.idle) = None;
        InUse(Arc::clone(&self.seat))
    }
}

/// Keeps the place of a connection.
#[derive(Debug)]
pub struct InUse(Arc<Seat>);

impl Drop for InUse {
    fn drop(&mut self) {
        *lock(&self.0.idle) = Some(Instant::now());
    }
}

impl Server {
    /// Serves until the process ends.
    pub async fn serve(self, listener: TcpListener) {
        let server = Arc::new(self);
        let seats = Arc::new(Seats::new(server.connections));
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // For example, too many open files; other connections end meanwhile.
                    warn!(%error, "cannot accept a connection for {}", server.what);
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Some(seat) = seats.enter(share_of(peer.ip())) else {
                debug!(%peer, "too many connections for {}: closing this one", server.what);
                continue;
            };
            let (server, seats) = (Arc::clone(&server), Arc::clone(&seats));
            tokio::spawn(async move {
                tokio::select! {
                    () = server.connect(stream, &seat) => {}
                    () = seat.taken.cancelled() => {
                        debug!(%peer, "too many connections for {}: closing this one, which is idle", server.what);
                    }
                }
                seats.leave(&seat);
            });
        }
    }

    async fn connect(&self, stream: TcpStream, seat: &Arc<Seat>) {
        let mut caller = Caller {
            peer: seat.peer,
            is_verified: false,
            seat: Arc::clone(seat),
        };
        let Some(tls) = &self.tls else {
            return self.answer(stream, caller).await;
        };
        let Some(tls) = tls.borrow().clone() else {
            return debug!("closing a connection for {}: there is no certificate", self.what);
        };
        match timeout(CLIENT_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await {
            Ok(Ok(stream)) => {
                // The handshake has verified it.
                caller.is_verified = stream.get_ref().1.peer_certificates().is_some();
                self.answer(stream, caller).await;
            }
            Ok(Err(error)) => debug!(%error, "the handshake of a connection for {} failed", self.what),
            Err(_elapsed) => debug!("a connection for {} did not finish its handshake", self.what),
        }
    }

    /// Answers requests until the client closes the connection, or the host has said that an answer is the last one: when it
    /// stops, or when the connection has had its life. A host that just closes the connection may do so while a request is on
    /// its way, and the API server does not send that again.
    async fn answer(&self, stream: impl AsyncRead + AsyncWrite + Unpin, caller: Caller) {
        let opened = Instant::now();
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(caller.clone());
            let answered = self.router.clone().call(request);
            async move {
                let mut response = answered.await?;
                if self.stop.is_cancelled() || opened.elapsed() >= self.life {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(CLIENT_TIMEOUT)
            .max_buf_size(self.head)
            .serve_connection(TokioIo::new(stream), service);
        match timeout(self.life + LAST_ANSWER, connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "a connection for {} ended early", self.what),
            Err(_elapsed) => debug!(
                "closing a connection for {}: its last answer is not read",
                self.what
            ),
        }
    }
}

/// The open connections.
#[derive(Debug)]
struct Seats {
    limit: usize,
    open: Mutex<Vec<Arc<Seat>>>,
}

/// The place of one connection.
#[derive(Debug)]
struct Seat {
    peer: IpAddr,
    /// Since when it has been idle; `None` while it is in use.
    idle: Mutex<Option<Instant>>,
    /// Cancelled when another connection takes the place.
    taken: CancellationToken,
}

impl Seats {
    const fn new(limit: usize) -> Self {
        Self {
            limit,
            open: Mutex::new(Vec::new()),
        }
    }

    /// Takes a place for a connection from this address. When there is none for it, the address with the most connections
    /// loses the one that has been idle the longest; an address that has its three quarters loses one of its own. Returns
    /// `None` when they are all in use.
    ///
    /// Otherwise a caller who opens enough connections could keep all others away.
    fn enter(&self, peer: IpAddr) -> Option<Arc<Seat>> {
        let mut open = lock(&self.open);
        let mut counts = HashMap::<IpAddr, usize>::new();
        for seat in open.iter() {
            *counts.entry(seat.peer).or_default() += 1;
        }
        let count = |peer: IpAddr| counts.get(&peer).copied().unwrap_or_default();
        let has_its_part = count(peer) >= self.limit * 3 / 4;
        if has_its_part || open.len() >= self.limit {
            let idle = open.iter().enumerate().filter_map(|(place, seat)| {
                let may = !has_its_part || seat.peer == peer;
                Some((count(seat.peer), Reverse((*lock(&seat.idle))?), place)).filter(|_| may)
            });
            let (.., place) = idle.max()?;
            open.remove(place).taken.cancel();
        }
        let seat = Arc::new(Seat {
            peer,
            idle: Mutex::new(Some(Instant::now())),
            taken: CancellationToken::new(),
        });
        open.push(Arc::clone(&seat));
        Some(seat)
    }

    /// Frees a place.
    fn leave(&self, seat: &Arc<Seat>) {
        lock(&self.open).retain(|other| !Arc::ptr_eq(other, seat));
    }
}

/// Returns the address to which a caller's share belongs: a machine often has a whole network of IPv6 addresses.
fn share_of(peer: IpAddr) -> IpAddr {
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
    use axum::routing::MethodRouter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn enter(seats: &Seats, n: u8) -> Option<Caller> {
        let seat = seats.enter(peer(n))?;
        Some(Caller {
            peer: seat.peer,
            is_verified: false,
            seat,
        })
    }

    fn is_taken(caller: &Caller) -> bool {
        caller.seat.taken.is_cancelled()
    }

    #[test]
    fn connections_in_use_stay_and_the_oldest_of_the_others_makes_room() {
        let seats = Seats::new(4);
        let [first, second, third] = [(); 3].map(|()| enter(&seats, 1).unwrap());
        let _used = first.keep_place();
        let fourth = enter(&seats, 1).unwrap();
        assert!(is_taken(&second));
        assert!(!is_taken(&first) && !is_taken(&third));
        let _all = [third.keep_place(), fourth.keep_place()];
        assert!(enter(&seats, 1).is_none());
        seats.leave(&third.seat);
        // It has left already.
        seats.leave(&second.seat);
        let fifth = enter(&seats, 1).unwrap();
        assert!(!is_taken(&first) && !is_taken(&fifth));
    }

    #[test]
    fn the_one_that_has_been_idle_the_longest_makes_room() {
        let seats = Seats::new(3);
        let [first, second, third] = [1, 2, 3].map(|n| enter(&seats, n).unwrap());
        drop(first.keep_place());
        let fourth = enter(&seats, 4).unwrap();
        assert!(is_taken(&second) && !is_taken(&first));
        enter(&seats, 5).unwrap();
        assert!(is_taken(&third) && !is_taken(&first));
        enter(&seats, 6).unwrap();
        assert!(is_taken(&first) && !is_taken(&fourth));
    }

    #[test]
    fn one_address_gets_three_quarters_of_the_places_and_then_its_own_ones() {
        let seats = Seats::new(8);
        let one: Vec<_> = (0..6).map(|_| enter(&seats, 1).unwrap()).collect();
        assert!(!one.iter().any(is_taken));
        let seventh = enter(&seats, 1).unwrap();
        assert!(is_taken(&one[0]));
        let callers = one[1..].iter().chain([&seventh]);
        let mut used: Vec<_> = callers.map(Caller::keep_place).collect();
        assert!(enter(&seats, 1).is_none());
        let others = [2, 3].map(|n| enter(&seats, n).unwrap());
        // No place is free: the address with the most connections loses one.
        drop(used.pop());
        enter(&seats, 4).unwrap();
        assert!(is_taken(&seventh) && !others.iter().any(is_taken));
        enter(&seats, 5).unwrap();
        assert!(is_taken(&others[0]));
    }

    /// Connects to a server whose root answers so.
    async fn connected(root: MethodRouter, life: Duration, stop: CancellationToken) -> TcpStream {
        let server = Server {
            what: "a test",
            router: Router::new().route("/", root),
            connections: 4,
            head: 16 << 10,
            life,
            tls: None,
            stop,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server.serve(listener));
        TcpStream::connect(address).await.unwrap()
    }

    #[tokio::test]
    async fn a_connection_ends_with_the_answer_to_its_last_request() {
        let life = Duration::from_millis(50);
        let slow = axum::routing::get(async move || {
            sleep(4 * life).await;
            "done"
        });
        let mut stream = connected(slow, life, CancellationToken::new()).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        let ended = timeout(CLIENT_TIMEOUT / 2, stream.read_to_string(&mut answer)).await;
        ended.expect("it is not kept for another request").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("done"), "{answer}");
    }

    #[tokio::test]
    async fn a_connection_that_is_open_when_the_host_stops_is_good_for_one_more_request() {
        let stop = CancellationToken::new();
        let yes = axum::routing::get(async || "yes");
        let mut caller = connected(yes, CLIENT_TIMEOUT, stop.clone()).await;
        let request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        caller.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"yes") {
            assert_ne!(caller.read_buf(&mut answer).await.unwrap(), 0, "{answer:?}");
        }
        assert!(!String::from_utf8(answer).unwrap().contains("close"));
        stop.cancel();
        // The host may do what it does then.
        tokio::task::yield_now().await;
        caller.write_all(request).await.unwrap();
        let mut last = String::new();
        caller.read_to_string(&mut last).await.unwrap();
        assert!(last.starts_with("HTTP/1.1 200 OK\r\n"), "{last:?}");
        assert!(last.contains("connection: close\r\n"), "{last:?}");
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
