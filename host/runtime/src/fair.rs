//! A semaphore that one member cannot monopolize: waiting members are served in turn, and part of the
//! capacity is reserved for members that hold nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::oneshot;

/// Identifies a member.
type Key = u64;

/// A fair semaphore; see the module. Clones share it.
#[derive(Clone, Debug)]
pub struct Fair(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capacity: usize,
    /// Capacity reserved for each member that holds nothing; at most half of the total.
    kept: usize,
    state: Mutex<State>,
    /// The members that have a name.
    named: Mutex<HashMap<String, Weak<Member>>>,
}

#[derive(Debug)]
struct State {
    /// The key of the next member.
    next: Key,
    free: usize,
    members: HashMap<Key, Holding>,
    /// Members that wait, next one first.
    order: VecDeque<Key>,
    /// How many of `members` hold nothing.
    idle: usize,
}

#[derive(Debug, Default)]
struct Holding {
    held: usize,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    wanted: usize,
    grant: oneshot::Sender<Permit>,
}

/// An amount of a [`Fair`], held until it is dropped.
#[derive(Debug)]
pub struct Permit {
    of: Fair,
    key: Key,
    amount: usize,
}

/// A member of a [`Fair`], until it is dropped.
#[derive(Debug)]
pub struct Member {
    of: Fair,
    key: Key,
}

impl Fair {
    /// Creates a semaphore. Of its capacity, `kept` is reserved for each member that holds nothing; at most half in all.
    #[must_use]
    pub fn new(capacity: usize, kept: usize) -> Self {
        Self(Arc::new(Shared {
            capacity,
            kept,
            state: Mutex::new(State {
                next: 0,
                free: capacity,
                members: HashMap::new(),
                order: VecDeque::new(),
                idle: 0,
            }),
            named: Mutex::default(),
        }))
    }

    /// Returns the total capacity.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Adds a member.
    #[must_use]
    pub fn join(&self) -> Member {
        let mut state = self.state();
        let key = state.next;
        state.next += 1;
        state.members.insert(key, Holding::default());
        state.idle += 1;
        Member {
            of: self.clone(),
            key,
        }
    }

    /// Returns the member of this name, which all who ask for it share as long as one of them holds it.
    #[must_use]
    pub fn named(&self, name: &str) -> Arc<Member> {
        // No code panics while it holds the lock.
        let mut named = self.0.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = named.get(name).and_then(Weak::upgrade) {
            return member;
        }
        named.retain(|_, member| member.strong_count() > 0);
        let member = Arc::new(self.join());
        named.insert(name.to_owned(), Arc::downgrade(&member));
        member
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants those that wait what is available. The permits are sent after the lock is released, because a
    /// permit whose receiver was dropped is returned at once.
    fn serve(&self, mut state: MutexGuard<'_, State>) {
        let mut granted = Vec::new();
        let mut passed_over = 0;
        while passed_over < state.order.len() {
            let Some(key) = state.order.pop_front() else { break };
            let (kept, free) = (self.kept(&state), state.free);
            let Some(member) = state.members.get_mut(&key) else {
                continue;
            };
            while member
                .waiting
                .front()
                .is_some_and(|waiter| waiter.grant.is_closed())
            {
                member.waiting.pop_front();
            }
            let Some(wanted) = member.waiting.front().map(|waiter| waiter.wanted) else {
                continue;
            };
            let is_first = member.held == 0;
            if wanted > free && is_first {
                // A later member would otherwise take what this one waits for.
                state.order.push_front(key);
                break;
            }
            if !is_first && wanted.saturating_add(kept) > free {
                state.order.push_back(key);
                passed_over += 1;
                continue;
            }
            passed_over = 0;
            if let Some(waiter) = member.waiting.pop_front() {
                let more = !member.waiting.is_empty();
                granted.push((waiter.grant, self.grant(&mut state, key, wanted)));
                if more {
                    state.order.push_back(key);
                }
            }
        }
        drop(state);
        for (waiter, permit) in granted {
            let _ = waiter.send(permit);
        }
    }

    /// Returns the capacity that a member which already holds some must leave free.
    fn kept(&self, state: &State) -> usize {
        state.idle.saturating_mul(self.0.kept).min(self.0.capacity / 2)
    }

    fn grant(&self, state: &mut State, key: Key, amount: usize) -> Permit {
        state.free -= amount;
        if let Some(member) = state.members.get_mut(&key) {
            if member.held == 0 {
                state.idle -= 1;
            }
            member.held += amount;
        }
        Permit {
            of: self.clone(),
            key,
            amount,
        }
    }

    fn give_back(&self, key: Key, amount: usize) {
        if amount == 0 {
            return;
        }
        let mut state = self.state();
        state.free += amount;
        if let Some(member) = state.members.get_mut(&key) {
            member.held -= amount;
            if member.held == 0 {
                state.idle += 1;
            }
        }
        self.serve(state);
    }
}

impl Member {
    /// Waits for `amount`, limited to the capacity; 0 is granted at once. Dropping the future leaves the queue.
    pub async fn acquire(&self, amount: usize) -> Permit {
        let amount = amount.min(self.of.capacity());
        if amount == 0 {
            return self.nothing();
        }
        let wait = {
            let mut state = self.of.state();
            let (grant, wait) = oneshot::channel();
            let waiter = Waiter {
                wanted: amount,
                grant,
            };
            if let Some(member) = state.members.get_mut(&self.key) {
                member.waiting.push_back(waiter);
                if member.waiting.len() == 1 {
                    state.order.push_back(self.key);
                }
            }
            self.of.serve(state);
            wait
        };
        match wait.await {
            Ok(permit) => permit,
            // Happens only when this member was dropped, and its owner does not drop it while it waits.
            Err(_) => self.nothing(),
        }
    }

    fn nothing(&self) -> Permit {
        Permit {
            of: self.of.clone(),
            key: self.key,
            amount: 0,
        }
    }
}

impl Permit {
    /// Returns the amount held.
    #[must_use]
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Returns everything above `amount`.
    pub fn shrink(&mut self, amount: usize) {
        let rest = self.amount.saturating_sub(amount);
        self.amount -= rest;
        self.of.give_back(self.key, rest);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.of.give_back(self.key, self.amount);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.of.state();
        if state
            .members
            .remove(&self.key)
            .is_some_and(|member| member.held == 0)
        {
            state.idle -= 1;
        }
        self.of.serve(state);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    /// Acquires the whole amount at once, or nothing.
    fn now(member: &Member, amount: usize) -> Option<Permit> {
        member.acquire(amount).now_or_never()
    }

    #[tokio::test]
    async fn members_are_served_by_turns_however_many_of_one_wait() {
        let fair = Fair::new(1, 0);
        let (hog, quiet) = (fair.join(), fair.join());
        let first = hog.acquire(1).await;
        let order = Mutex::new(Vec::new());
        let note = async |name: &'static str, member: &Member| {
            let permit = member.acquire(1).await;
            order.lock().unwrap().push(name);
            drop(permit);
        };
        let waits: Vec<_> = ["hog", "hog", "hog", "quiet", "quiet"]
            .map(|name| note(name, if name == "hog" { &hog } else { &quiet }))
            .into();
        let mut all = Box::pin(join_all(waits));
        assert!(all.as_mut().now_or_never().is_none());
        drop(first);
        all.await;
        assert_eq!(*order.lock().unwrap(), ["quiet", "hog", "quiet", "hog", "hog"]);
        assert_eq!(fair.state().free, 1);
    }

    #[tokio::test]
    async fn something_is_kept_for_a_member_that_has_nothing() {
        let fair = Fair::new(8, 1);
        let members: Vec<_> = (0..4).map(|_| fair.join()).collect();
        let held: Vec<_> = std::iter::from_fn(|| now(&members[0], 1)).collect();
        assert_eq!(held.len(), 5, "one is left for each of the other three");
        let others: Vec<_> = members[1..].iter().map(|member| now(member, 1)).collect();
        assert!(others.iter().all(Option::is_some));
        // However many members there are, one may have half.
        let many = Fair::new(8, 1);
        let _crowd: Vec<_> = (1..100).map(|_| many.join()).collect();
        let one = many.join();
        assert_eq!(std::iter::from_fn(|| now(&one, 1)).collect::<Vec<_>>().len(), 4);
    }

    #[tokio::test]
    async fn who_stops_waiting_leaves_the_line_and_nothing_is_lost() {
        let fair = Fair::new(4, 0);
        let (a, b) = (fair.join(), fair.join());
        let all = a.acquire(4).await;
        let mut gone = Box::pin(b.acquire(3));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(gone);
        assert!(now(&b, 1).is_none());
        drop(all);
        let permit = b.acquire(99).await;
        assert_eq!(permit.amount, 4, "no more than there is");
        drop(permit);
        assert_eq!(fair.state().free, 4);
    }

    #[tokio::test]
    async fn a_large_share_is_not_passed_by_small_ones_for_ever() {
        let fair = Fair::new(4, 0);
        let (small, large) = (fair.join(), fair.join());
        let held = small.acquire(1).await;
        let mut wait = Box::pin(large.acquire(4));
        assert!(wait.as_mut().now_or_never().is_none());
        assert!(now(&small, 1).is_none(), "another waits");
        drop(held);
        assert_eq!(wait.await.amount, 4);
    }

    #[tokio::test]
    async fn those_of_one_name_share_their_turns_and_leave_one_to_each_other_name() {
        let fair = Fair::new(2, 1);
        let (one, same, other) = (fair.named("a"), fair.named("a"), fair.named("b"));
        let first = one.acquire(1).now_or_never().expect("it is free");
        assert!(same.acquire(1).now_or_never().is_none(), "it is reserved");
        let second = other.acquire(1).now_or_never().expect("it is reserved for it");
        drop((first, second, other));
        // Nobody has the other name any more.
        let _first = one.acquire(1).now_or_never().expect("it is free");
        assert!(same.acquire(1).now_or_never().is_some());
    }
}
