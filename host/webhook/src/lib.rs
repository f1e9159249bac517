//! Admission and conversion webhook: calls the plugin for a custom resource before it is written, to convert it, to set
//! defaults, and to deny what the plugin calls invalid. Nothing is written, so dry runs work, too.
//!
//! Every replica serves it, leader or not: the plugins are the same. A plugin that fails or does not answer in time
//! does not decide about the resource: the API server gets an error, and the webhook's `failurePolicy` decides.
//!
//! Anyone who can reach the port can send reviews. So the memory that a caller can make the host use is limited
//! (`bounds`), an object stays text until the plugin is called (`review`), and a caller without a verified
//! certificate gets the decision but no other output of the plugin.

mod bounds;
pub mod certificates;
pub mod conversion;
mod conversion_review;
mod deciding;
pub mod defaults;
pub mod fuzzing;
mod review;
mod server;
mod target;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use self::bounds::{Asker, Part};
use self::conversion_review::ConversionReview;
use self::review::Review;
use self::server::Ask;
use operator_host_contract::Kind;
use operator_host_core::sync::lock;
use operator_host_core::text::shorten;
use operator_host_runtime::CallError;
use operator_host_runtime::estimate::estimate;

pub use self::server::{CONVERT_PATH, DEFAULT_PATH, PATH, ServerError, start};
pub use self::target::PluginTarget;

/// Longest message of a plugin in a decision, and longest reason for having none, in bytes.
const MESSAGE: usize = 2048;

/// Longest text of an answer without a decision, in bytes. No memory is reserved for it, although a caller may take
/// long to read it.
const WORDS: usize = 4 << 10;

/// Longest UID of a request, in bytes: no room is held for the answer that repeats it. Those of the API server have 36.
const LONGEST_UID: usize = 253;

/// The shortest time between two logged reasons of one controller.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What it means that objects are not converted.
const NOT_CONVERTED: &str = "objects are not converted, so reading them in that version fails";

/// What it means that this replica lacks what a conversion needs.
const ASKED_AGAIN: &str = "this replica cannot convert objects, and the API server is asked to try again, which may reach another replica";

/// What it means that nobody validates.
const NOT_VALIDATED: &str = "the webhook makes no decision; its failurePolicy applies";

/// Why there is no decision, for callers that may not see the plugin's output.
const NO_ANSWER: &str = "the plugin gave no answer: the host's log says why";

/// What it means that a plugin sets no defaults.
const NO_DEFAULTS: &str = "no defaults are set; the webhook's failurePolicy applies";

/// The plugins that can be asked.
#[derive(Default)]
pub struct WebhookTargets {
    plugins: Mutex<Vec<Weak<PluginTarget>>>,
    /// When a reason for having no answer was last logged, by controller and what it means.
    last_logged: Mutex<BTreeMap<(String, &'static str), Option<Instant>>>,
}

/// The decision for the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Allowed,
    /// With the plugin's message.
    Denied(String),
    /// With another spec, as JSON text.
    Patched(String),
}

/// Why there is no decision; the webhook's `failurePolicy` decides.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NoDecision {
    /// Without any output of a plugin, for all callers.
    public: String,
    /// With all details, for the log and for verified callers.
    detail: String,
    /// Whether the caller should try again, because another replica may answer: the replicas get a new version of a plugin
    /// one after the other, and its definition may be installed as soon as the first has it.
    try_again: bool,
}

impl NoDecision {
    /// The reason may quote the request, so it is cut: it goes into the answer and into the log.
    fn new(public: impl Into<String>) -> Self {
        let public: String = public.into();
        let public = shorten(&public, MESSAGE);
        Self {
            detail: public.clone(),
            public,
            try_again: false,
        }
    }

    /// A call of a plugin has failed.
    fn of_call(error: &CallError) -> Self {
        Self {
            detail: error.to_string(),
            ..Self::new(NO_ANSWER)
        }
    }

    /// This replica lacks something that another one may have.
    fn elsewhere(public: impl Into<String>) -> Self {
        Self {
            try_again: true,
            ..Self::new(public)
        }
    }
}

impl WebhookTargets {
    /// Validates, converts and defaults objects of a controller's kind as long as the result is held.
    pub fn add_plugin(&self, target: PluginTarget) -> Arc<PluginTarget> {
        let target = Arc::new(target);
        let mut plugins = lock(&self.plugins);
        plugins.retain(|target| target.strong_count() > 0);
        plugins.push(Arc::downgrade(&target));
        target
    }

    /// Converts the objects of a review with a body of this size, whose caller waits until a time. Returns them with
    /// their part of the room, and the name of the controller.
    async fn convert(
        &self,
        review: &ConversionReview<'_>,
        body: usize,
        asker: Asker<'_>,
        until: tokio::time::Instant,
    ) -> (String, Result<(Vec<String>, Option<Part>), NoDecision>) {
        let kind = match review.kind() {
            None => return (String::new(), Ok((Vec::new(), None))),
            Some(Err(why)) => {
                let why = format!("objects[0] of the request: {why}");
                return (String::new(), Err(NoDecision::new(why)));
            }
            Some(Ok(kind)) => kind,
        };
        let Some(target) = self.plugin_of(&kind) else {
            let kind = shorten(&kind.kind, 63);
            let error = NoDecision::elsewhere(format!("no controller for {kind} runs here yet"));
            return (String::new(), Err(error));
        };
        let name = target.config.name.clone();
        let converted = target
            .convert(&review.to, &review.objects, body, asker, until)
            .await;
        let what = match &converted {
            Err(error) if error.try_again => ASKED_AGAIN,
            _ => NOT_CONVERTED,
        };
        self.log(&name, what, converted.as_ref().err());
        (name, converted.map(|(objects, part)| (objects, Some(part))))
    }

    /// Sets the defaults of a resource that is about to be written, or decides whether it may be. Also returns the name of
    /// the controller.
    async fn decide(
        &self,
        review: &Review<'_>,
        ask: Ask,
        asker: Asker<'_>,
    ) -> (String, Result<Decision, NoDecision>) {
        let kind = Kind::new(format!("{}/", review.group), review.kind.clone());
        let target = self.plugin_of(&kind);
        let name = target
            .as_ref()
            .map_or_else(String::new, |target| target.config.name.clone());
        // Deletions are allowed even without a controller.
        let Some(object) = review.asked_about() else {
            return (name, Ok(Decision::Allowed));
        };
        let decision = match target {
            None => {
                let kind = shorten(&review.kind, 63);
                Err(NoDecision::new(format!("no controller for {kind} runs here yet")))
            }
            Some(target) => target.decide(ask, review, object, asker).await,
        };
        let no_decision = match ask {
            Ask::Default => NO_DEFAULTS,
            _ => NOT_VALIDATED,
        };
        self.log(&name, no_decision, decision.as_ref().err());
        (name, decision)
    }

    fn plugin_of(&self, kind: &Kind) -> Option<Arc<PluginTarget>> {
        let plugins = lock(&self.plugins);
        // The newest first: while the configuration changes, a kind may have two.
        let mut plugins = plugins.iter().rev().filter_map(Weak::upgrade);
        plugins.find(|target| target.is_for(kind))
    }

    /// Logs an error with what it means, of a controller's errors one in a minute.
    fn log(&self, controller: &str, what: &'static str, error: Option<&NoDecision>) {
        let Some(NoDecision { detail, .. }) = error else {
            return;
        };
        match self.is_due(controller, what, Instant::now()) {
            true => warn!(controller, "{what}: {detail}"),
            false => debug!(controller, "{what}: {detail}"),
        }
    }

    fn is_due(&self, controller: &str, what: &'static str, now: Instant) -> bool {
        let mut last_logged = lock(&self.last_logged);
        let last = last_logged.entry((controller.to_owned(), what)).or_default();
        let is_due = last.is_none_or(|last| now.duration_since(last) >= LOG_INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

/// Returns the number of bytes that an object and the one that it replaces may take in memory, unless they are more than
/// `most`.
fn memory_of(objects: [Option<&str>; 2], most: usize) -> Result<usize, NoDecision> {
    let objects = objects.iter().flatten();
    let memory: usize = objects.map(|object| estimate(object).bytes).sum();
    if memory > most {
        return Err(NoDecision::new(format!(
            "the object would take {} MiB of memory; the limit is {} MiB",
            memory >> 20,
            most >> 20
        )));
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_reasons_one_in_a_minute_is_logged() {
        let targets = <WebhookTargets as Default>::default();
        let start = Instant::now();
        let is_due = |controller, seconds| {
            targets.is_due(controller, NOT_CONVERTED, start + Duration::from_secs(seconds))
        };
        assert!(is_due("a", 0) && !is_due("a", 59) && is_due("a", 60) && !is_due("a", 61));
        assert!(is_due("b", 0), "another controller");
    }
}
