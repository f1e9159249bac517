//! The problems while a version is live: of the plugin's file, of the registry that it comes from, and of a pin.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Publishes the problems as one text.
#[derive(Default)]
pub(super) struct Trouble {
    parts: Mutex<[Option<Arc<str>>; 3]>,
    text: watch::Sender<Option<Arc<str>>>,
}

impl Trouble {
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.text.subscribe()
    }

    /// Sets the problem of the file.
    pub(super) fn of_file(&self, problem: Option<Arc<str>>) {
        self.set(0, problem);
    }

    /// Sets the problem of the registry.
    pub(super) fn of_registry(&self, problem: Option<Arc<str>>) {
        self.set(1, problem);
    }

    /// Sets the problem of the pin. Returns whether it is another one.
    pub(super) fn of_pin(&self, problem: Option<Arc<str>>) -> bool {
        self.set(2, problem)
    }

    fn set(&self, part: usize, problem: Option<Arc<str>>) -> bool {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = parts[part] != problem;
        parts[part] = problem;
        let texts: Vec<&str> = parts.iter().flatten().map(AsRef::as_ref).collect();
        let text = (!texts.is_empty()).then(|| texts.join("; ").into());
        self.text.send_replace(text);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_problem_does_not_hide_the_other() {
        let trouble = Trouble::default();
        let text = trouble.subscribe();
        let text = || text.borrow().as_deref().map(str::to_owned);
        trouble.of_file(Some("held back".into()));
        trouble.of_registry(Some("away".into()));
        assert_eq!(text(), Some("held back; away".to_owned()));
        trouble.of_registry(None);
        assert_eq!(text(), Some("held back".to_owned()));
        trouble.of_file(None);
        assert_eq!(text(), None);
    }
}
