//! Validation at the door: an admission webhook that asks the plugin, before a custom resource is written, what it would
//! make of it, and denies what the plugin calls invalid. Nothing is written, so a dry run is as good as any.
//!
//! Every replica serves it, whoever leads: caches and plugins are the same. A plugin that fails, or has no answer in
//! time, is no verdict on the resource: the API server gets an error, and the webhook's `failurePolicy` decides.
//!
//! Whoever reaches the port can ask. So what a caller can make the host hold is bounded (`bounds`), an object is text until
//! the plugin is asked (`review`), and who did not show a certificate learns the verdict and nothing else of the plugin.

mod bounds;
mod certificates;
pub mod fuzzing;
mod review;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Semaphore;
use tracing::{debug, warn};

use self::bounds::{Bounds, OBJECT};
use self::review::Review;
use crate::object::shorten;
use crate::plugin::weigh;
use crate::reconcile::context::Context;
use crate::reconcile::{Admission, admit};

pub use self::server::{PATH, ServerError, start};

/// Reviews of one controller at a time. They have turns of their own: a controller's passes take none of these, and leave
/// none to its reviews.
const TURNS: usize = 4;
/// Characters of a plugin's message in a verdict.
const MESSAGE: usize = 2048;

/// The controllers that could be asked now.
#[derive(Default)]
pub struct Door {
    controllers: Mutex<BTreeMap<String, Entry>>,
    /// Why there was no verdict last, by controller: it is said once.
    said: Mutex<BTreeMap<String, String>>,
}

#[derive(Clone)]
struct Entry {
    context: Weak<Context>,
    turns: Arc<Semaphore>,
}

/// What the API server gets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// In the plugin's words.
    Denied(String),
}

/// Why there is no verdict; the webhook's `failurePolicy` decides.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NoVerdict {
    /// Without any word of a plugin: for whoever asks.
    public: String,
    /// With all that is known: for the log, and for callers that are verified.
    detail: String,
}

impl NoVerdict {
    fn new(public: impl Into<String>) -> Self {
        let public = public.into();
        Self {
            detail: public.clone(),
            public,
        }
    }
}

impl Door {
    /// A controller runs from now on.
    pub fn open(&self, context: &Arc<Context>) {
        let entry = Entry {
            context: Arc::downgrade(context),
            turns: Arc::new(Semaphore::new(TURNS)),
        };
        lock(&self.controllers).insert(context.config.name.clone(), entry);
    }

    /// The controller of a kind, whatever its version: with `matchPolicy: Equivalent` the resource comes in the one that
    /// the webhook's rules name.
    fn controller_of(&self, review: &Review<'_>) -> Option<(Arc<Context>, Arc<Semaphore>)> {
        let controllers = lock(&self.controllers);
        controllers.values().find_map(|entry| {
            let context = entry.context.upgrade()?;
            let parent = &context.config.parent;
            let is_it = parent.group() == review.group && parent.kind == review.kind;
            is_it.then(|| (context, Arc::clone(&entry.turns)))
        })
    }

    /// What the plugin says of a resource that is about to be written, and the name of its controller.
    async fn verdict(&self, review: &Review<'_>, bounds: &Bounds) -> (String, Result<Verdict, NoVerdict>) {
        let found = self.controller_of(review);
        let name = found.as_ref().map(|(context, _)| context.config.name.clone());
        let name = name.unwrap_or_default();
        // Whether or not there is a controller: a resource that goes must be able to.
        let Some(object) = review.asked_about() else {
            return (name, Ok(Verdict::Allowed));
        };
        let verdict = match found {
            None => Err(NoVerdict::new(format!(
                "no controller for {} runs here yet",
                shorten(&review.kind, 63)
            ))),
            Some((context, turns)) => ask(&context, &turns, object, bounds).await,
        };
        self.say(&name, verdict.as_ref().err());
        (name, verdict)
    }

    fn say(&self, controller: &str, error: Option<&NoVerdict>) {
        let mut said = lock(&self.said);
        let Some(NoVerdict { detail, .. }) = error else {
            said.remove(controller);
            return;
        };
        let before = said.insert(controller.to_owned(), detail.clone());
        if before.as_ref() == Some(detail) {
            debug!(controller, "no verdict: {detail}");
        } else {
            warn!(
                controller,
                "the webhook gives no verdict, its failurePolicy decides: {detail}"
            );
        }
    }
}

async fn ask(
    context: &Context,
    turns: &Semaphore,
    object: &str,
    bounds: &Bounds,
) -> Result<Verdict, NoVerdict> {
    let weight = weigh(object)?;
    let stopping = |_| NoVerdict::new("the host is stopping");
    let _turn = turns.acquire().await.map_err(stopping)?;
    let _room = bounds.object(weight).await;
    let object =
        review::object(object).map_err(|error| NoVerdict::new(format!("this is no object: {error}")))?;
    match admit(context, object).await {
        Ok(Admission::Fine) => Ok(Verdict::Allowed),
        Ok(Admission::Invalid(message)) => Ok(Verdict::Denied(shorten(&message, MESSAGE))),
        Err(error) => Err(NoVerdict {
            public: error.without_the_plugins_words().to_owned(),
            detail: error.to_string(),
        }),
    }
}

/// The bytes that an object may take in memory.
fn weigh(object: &str) -> Result<usize, NoVerdict> {
    let weight = weigh::weigh(object).bytes;
    if weight > OBJECT {
        return Err(NoVerdict::new(format!(
            "the object would take {} MiB of memory; at most {} MiB are possible",
            weight >> 20,
            OBJECT >> 20
        )));
    }
    Ok(weight)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
