//! The bodies of answers. A caller that does not read its answer holds only its own share of the memory, and not for
//! long.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::bounds::InUse;

/// Bytes that are given to the connection at a time.
const FRAME: usize = 64 << 10;

/// A body in pieces, with the reservation of its memory, which ends when the last piece is being sent.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pieces: VecDeque<Bytes>,
    left: usize,
    held: Vec<OwnedSemaphorePermit>,
    _in_use: Option<InUse>,
}

impl Answer {
    pub(super) fn new(pieces: Vec<Bytes>) -> Self {
        Self {
            left: pieces.iter().map(Bytes::len).sum(),
            pieces: pieces.into_iter().filter(|piece| !piece.is_empty()).collect(),
            held: Vec::new(),
            _in_use: None,
        }
    }

    /// Keeps the place of the connection until the body is sent.
    pub(super) fn during(self, in_use: InUse) -> Self {
        Self {
            _in_use: Some(in_use),
            ..self
        }
    }

    /// Holds reservations until the body is sent.
    pub(super) fn holding(mut self, held: impl IntoIterator<Item = OwnedSemaphorePermit>) -> Self {
        self.held.extend(held);
        self
    }

    pub(super) fn len(&self) -> usize {
        self.left
    }

    /// Returns the next bytes: a part of a large piece, or several small ones.
    fn next(&mut self) -> Option<Bytes> {
        let first = self.pieces.front_mut()?;
        if first.len() > FRAME {
            return Some(first.split_to(FRAME));
        }
        let mut together = BytesMut::new();
        while let Some(piece) = self
            .pieces
            .pop_front_if(|piece| together.len() + piece.len() <= FRAME)
        {
            together.extend_from_slice(&piece);
        }
        Some(together.freeze())
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.next();
        self.left -= next.as_ref().map_or(0, Bytes::len);
        if self.left == 0 {
            self.held.clear();
        }
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// Waits until the current time limit of a connection has passed.
pub(super) async fn overdue(mut limit: watch::Receiver<Option<Instant>>) {
    loop {
        let until = *limit.borrow_and_update();
        let passed = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = passed => return,
            Ok(()) = limit.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_sent_in_parts_and_holds_its_room_until_the_last() {
        let text: Vec<u8> = (0..3 * FRAME + 5).map(|index| index.to_le_bytes()[0]).collect();
        let (small, large) = text.split_at(10);
        let pieces = small.chunks(4).map(Bytes::copy_from_slice);
        let pieces = pieces.chain([Bytes::new(), Bytes::copy_from_slice(large)]);
        let room = Arc::new(Semaphore::new(1));
        let held = Arc::clone(&room).try_acquire_owned().unwrap();
        let mut answer = Answer::new(pieces.collect()).holding([held]);
        assert_eq!(answer.size_hint().exact(), Some(text.len() as u64));
        let mut sent = Vec::new();
        while !answer.is_end_stream() {
            assert_eq!(room.available_permits(), 0);
            let frame = answer.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(!frame.is_empty() && frame.len() <= FRAME);
            sent.extend_from_slice(&frame);
        }
        assert_eq!(room.available_permits(), 1);
        assert!(answer.frame().await.is_none());
        assert_eq!(sent, text);
    }

    #[tokio::test]
    async fn a_limit_that_moves_is_not_overdue() {
        let short = std::time::Duration::from_millis(20);
        let start = Instant::now();
        let (limit, following) = watch::channel(Some(start + short));
        let mut waiting = tokio::spawn(overdue(following));
        limit.send_replace(None);
        let early = tokio::time::timeout(3 * short, &mut waiting).await;
        assert!(early.is_err(), "there is no limit");
        limit.send_replace(Some(start + 5 * short));
        waiting.await.unwrap();
        assert!(start.elapsed() >= 5 * short);
    }
}
