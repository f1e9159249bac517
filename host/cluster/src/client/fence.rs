//! Prevents writes after the term is over, including those that were ready when the process was suspended: the
//! clock is checked right before the bytes are passed to the kernel.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::http::uri::PathAndQuery;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use thiserror::Error as ThisError;
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

use crate::term::Term;

/// A write was not sent because this replica is no longer the leader.
#[derive(Clone, Copy, Debug, ThisError)]
#[error("this replica is no longer the leader, so it writes nothing")]
pub struct Deposed;

/// Reports whether [`Deposed`] is among the causes of an error.
pub fn is_deposed(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        // An `io::Error` exposes its inner error, but not as its source.
        let held = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .is_some_and(|held| held.is::<Deposed>());
        if held || error.is::<Deposed>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// Asks the API server to abandon a write at the time when another replica may begin to write.
pub(super) fn bound<B>(mut request: Request<B>, term: &Term) -> Request<B> {
    let Some(left) = term.allowance().filter(|left| *left < Duration::MAX) else {
        return request;
    };
    let uri = request.uri();
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{separator}timeout={}ms", left.as_millis().max(1));
    let mut parts = uri.clone().into_parts();
    if let Ok(path) = PathAndQuery::try_from(path) {
        parts.path_and_query = Some(path);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// A connector that creates fenced connections.
pub(super) type Fencing = BoxCloneSyncService<Uri, Fenced<TokioIo<TcpStream>>, BoxError>;

/// Fences the connections of a connector.
pub(super) fn fencing(connector: HttpConnector, term: Term) -> Fencing {
    let fenced = move |stream| Fenced::new(stream, term);
    BoxCloneSyncService::new(connector.map_response(fenced).map_err(BoxError::from))
}

/// A connection that sends nothing while its term is not held.
pub struct Fenced<S> {
    stream: S,
    term: Term,
}

impl<S> Fenced<S> {
    /// Fences a connection.
    pub const fn new(stream: S, term: Term) -> Self {
        Self { stream, term }
    }

    fn check(&self) -> io::Result<()> {
        if self.term.holds() {
            return Ok(());
        }
        Err(io::Error::other(Deposed))
    }
}

impl<S: Connection> Connection for Fenced<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl<S: Read + Unpin> Read for Fenced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Fenced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_write_is_bounded_by_the_time_at_which_another_may_begin() {
        let of = |term: &Term| {
            let request = Request::get("/api/v1/pods/a?force=true").body(()).unwrap();
            bound(request, term).uri().to_string()
        };
        assert_eq!(of(&Term::endless()), "/api/v1/pods/a?force=true");
        let term = Term::elected();
        let now = Instant::now();
        term.extend(now + Duration::from_secs(10), now + Duration::from_secs(15));
        let bounded = of(&term);
        let (_, timeout) = bounded.split_once("?force=true&timeout=").unwrap();
        let timeout: u64 = timeout.trim_end_matches("ms").parse().unwrap();
        assert!((14_000..=15_000).contains(&timeout), "{bounded}");
    }

    #[test]
    fn what_was_held_back_is_known_among_the_causes_of_an_error() {
        #[derive(Debug, ThisError)]
        #[error("outer")]
        struct Outer(#[source] io::Error);
        assert!(is_deposed(&Outer(io::Error::other(Deposed))));
        assert!(!is_deposed(&Outer(io::Error::other("reset"))));
    }
}
