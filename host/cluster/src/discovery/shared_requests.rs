//! Answers that several tasks share, also while their request is under way.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::time::Instant;

use operator_host_core::sync::lock;

/// Requests by what they ask for, with their answers.
pub(super) struct SharedRequests<T: Clone>(Mutex<HashMap<String, Asked<T>>>);

struct Asked<T: Clone> {
    answer: Shared<BoxFuture<'static, T>>,
    since: Instant,
}

impl<T: Clone> Default for SharedRequests<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SharedRequests<T> {
    /// Returns the known answer if it is recent enough. Otherwise waits for a request under way, or sends a new one.
    pub(super) async fn get<F>(
        &self,
        key: &str,
        is_enough: impl Fn(&T, Duration) -> bool,
        ask: impl FnOnce() -> F,
    ) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let answer = {
            let mut all = lock(&self.0);
            let usable = |asked: &&Asked<T>| match asked.answer.peek() {
                Some(answer) => is_enough(answer, asked.since.elapsed()),
                None => true,
            };
            if let Some(asked) = all.get(key).filter(usable) {
                asked.answer.clone()
            } else {
                let (answer, since) = (ask().boxed().shared(), Instant::now());
                // It ends even if nobody waits for it any more: a request that is not polled holds up its connection.
                tokio::spawn(answer.clone());
                let asked = Asked {
                    answer: answer.clone(),
                    since,
                };
                all.insert(key.to_owned(), asked);
                answer
            }
        };
        answer.await
    }

    /// Returns the answers that are there.
    pub(super) fn known(&self) -> Vec<(String, T)> {
        let all = lock(&self.0);
        let known = all
            .iter()
            .filter_map(|(key, asked)| Some((key.clone(), asked.answer.peek()?.clone())));
        known.collect()
    }

    /// Forgets the answers to these requests, and that they are under way.
    pub(super) fn forget(&self, mut which: impl FnMut(&str) -> bool) {
        lock(&self.0).retain(|key, _| !which(key));
    }

    /// Forgets an answer that was asked for at least this long ago.
    pub(super) fn forget_older(&self, key: &str, age: Duration) {
        let mut all = lock(&self.0);
        let is_old = |asked: &Asked<T>| asked.answer.peek().is_some() && asked.since.elapsed() >= age;
        if all.get(key).is_some_and(is_old) {
            all.remove(key);
        }
    }
}
