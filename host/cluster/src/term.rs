//! The right to write, which ends by itself: a process that was stopped or disconnected determines its end
//! from its own monotonic clock, without any message.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use operator_host_core::sync::lock;

/// The right to write. Clones share the same term.
#[derive(Clone, Debug)]
pub struct Term(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    /// From when on nothing is sent, and when another replica may begin; `None` when the term is not held.
    ends: Mutex<Option<(Instant, Instant)>>,
    /// Whether this replica leads, as far as is known.
    leads: watch::Sender<bool>,
    /// Shared with each controller that works in this term.
    stays: Arc<()>,
}

impl Inner {
    /// Returns how long a write may still be sent, and how long it is until another replica may begin.
    fn left(&self) -> Option<(Duration, Duration)> {
        let (until, expiry) = (*lock(&self.ends))?;
        let now = Instant::now();
        let left = until.checked_duration_since(now).filter(|left| !left.is_zero())?;
        Some((left, expiry.saturating_duration_since(now)))
    }
}

impl Term {
    /// Creates the term of a host that does not share the cluster with other hosts: it never ends.
    pub const fn endless() -> Self {
        Self(None)
    }

    /// Creates a term that is not held yet.
    pub fn elected() -> Self {
        Self(Some(Arc::new(Inner {
            ends: Mutex::default(),
            leads: watch::Sender::new(false),
            stays: Arc::default(),
        })))
    }

    /// Whether this term is subject to leader election.
    pub const fn is_elected(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a write may be sent now.
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| inner.left().is_some())
    }

    /// Returns how long a write that is sent now may take until another replica may begin; `None` when
    /// nothing may be sent.
    pub fn allowance(&self) -> Option<Duration> {
        match &self.0 {
            None => Some(Duration::MAX),
            Some(inner) => inner.left().map(|(_, until_expiry)| until_expiry),
        }
    }

    /// Records that the lease was taken or renewed: nothing is sent after `until`, and another replica may
    /// begin at `expiry`.
    pub fn extend(&self, until: Instant, expiry: Instant) {
        let Some(inner) = &self.0 else { return };
        *lock(&inner.ends) = Some((until, expiry));
        // Waiters are always notified: the old deadline may have passed before the renewal was answered, and
        // they have stopped because of it.
        inner.leads.send_replace(true);
    }

    /// Ends the term: nothing more is sent.
    pub fn end(&self) {
        let Some(inner) = &self.0 else { return };
        *lock(&inner.ends) = None;
        inner.leads.send_if_modified(std::mem::take);
    }

    /// Reports whether this replica leads and may write.
    pub fn leads(&self) -> bool {
        self.0.as_ref().is_none_or(|inner| *inner.leads.borrow()) && self.holds()
    }

    /// Waits until the term has begun.
    pub async fn begun(&self) {
        let Some(inner) = &self.0 else { return };
        let mut leads = inner.leads.subscribe();
        while !(*leads.borrow_and_update() && self.holds()) {
            // The sender is in `inner`.
            let _ = leads.changed().await;
        }
    }

    /// Waits until the term ends: the lease is lost, or was not renewed in time.
    pub async fn ended(&self) {
        let Some(inner) = &self.0 else {
            return std::future::pending().await;
        };
        let mut leads = inner.leads.subscribe();
        loop {
            if !*leads.borrow_and_update() {
                return;
            }
            let Some((left, _)) = inner.left() else {
                return;
            };
            tokio::select! {
                _ = leads.changed() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Registers a controller that works in this term while it holds the returned value.
    #[must_use]
    pub fn stay(&self) -> Stay {
        let stays = self.0.as_ref().map(|inner| Arc::clone(&inner.stays));
        Stay { _stays: stays }
    }

    /// Whether no controller works in this term.
    pub fn is_idle(&self) -> bool {
        let own = |inner: &Arc<Inner>| Arc::strong_count(&inner.stays) == 1;
        self.0.as_ref().is_none_or(own)
    }
}

/// A controller that works in a term; see [`Term::stay`].
#[derive(Debug)]
pub struct Stay {
    _stays: Option<Arc<()>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_term_that_nobody_renews_ends_by_itself() {
        let term = Term::elected();
        assert!(!term.holds());
        let now = Instant::now();
        term.extend(now + 60 * MS, now + 90 * MS);
        term.begun().await;
        assert!(term.holds() && term.allowance().unwrap() <= 90 * MS);
        term.ended().await;
        assert!(now.elapsed() >= 60 * MS, "it ends at its deadline");
        assert!(!term.holds());
        assert_eq!(term.allowance(), None, "though nobody else may begin yet");
    }

    #[tokio::test]
    async fn a_term_that_is_renewed_goes_on() {
        let term = Term::elected();
        let now = Instant::now();
        term.extend(now + 20 * MS, now + 30 * MS);
        term.extend(now + 5000 * MS, now + 6000 * MS);
        let wait = tokio::time::timeout(60 * MS, term.ended()).await;
        assert!(wait.is_err(), "it was renewed");
        let stay = term.stay();
        term.end();
        term.ended().await;
        assert!(!term.holds() && !term.leads());
        assert!(!term.is_idle(), "a reconcile has not ended");
        drop(stay);
        assert!(term.is_idle());
    }

    #[tokio::test]
    async fn a_term_that_is_renewed_after_its_deadline_begins_again() {
        let term = Term::elected();
        let now = Instant::now();
        term.extend(now + 20 * MS, now + 30 * MS);
        term.ended().await;
        let begun = term.begun();
        let mut begun = std::pin::pin!(begun);
        let wait = tokio::time::timeout(10 * MS, &mut begun).await;
        assert!(wait.is_err(), "its deadline is over");
        // A late answer to a renewal; no other replica has led in the meantime.
        let now = Instant::now();
        term.extend(now + 5000 * MS, now + 6000 * MS);
        tokio::time::timeout(1000 * MS, begun)
            .await
            .expect("waiters are notified that the term holds again");
    }

    #[tokio::test]
    async fn an_endless_term_holds() {
        let term = Term::endless();
        term.begun().await;
        assert!(term.holds() && term.leads() && !term.is_elected());
        assert!(tokio::time::timeout(10 * MS, term.ended()).await.is_err());
    }
}
