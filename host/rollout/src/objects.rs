//! Proves what a new version does with the live objects outside of reconciles: converts every object to each other version of
//! its kind and back, and asks twice for its defaults.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::core::DynamicObject;
use serde_json::Value;

use super::BUDGET;
use super::compare::MAX_BLAMED;
use operator_host_core::object::NamespacedName;
use operator_host_delivery::candidate_check::Blamed;
use operator_host_engine::reconcile::context::Context;
use operator_host_runtime::Plugin;
use operator_host_webhook::conversion::{Lost, there_and_back};
use operator_host_webhook::defaults::unstable;

/// Objects that a version is asked about, and that are held, at a time.
const BATCH: usize = 50;

/// What a version is asked about every object.
#[derive(Clone, Copy)]
pub(super) enum Question {
    /// Whether a conversion loses something.
    Conversion,
    /// Whether `default` fails, or changes its own answer.
    Defaults,
}

impl Question {
    fn concerns(self, plugin: &Plugin) -> bool {
        match self {
            Self::Conversion => plugin.description().converts(),
            Self::Defaults => plugin.description().defaults,
        }
    }

    /// Returns what is wrong. Objects that are not reached within the budget are skipped.
    async fn ask(self, plugin: &Plugin, objects: &[Value], budget: Duration) -> Result<Vec<Lost>, String> {
        match self {
            Self::Conversion => {
                let lost = there_and_back(plugin, objects, budget).await;
                lost.map_err(|error| error.to_string())
            }
            Self::Defaults => {
                let found = unstable(plugin, objects, budget).await;
                found.map_err(|error| error.to_string())
            }
        }
    }
}

/// Returns the versions that the live version converts and the candidate does not.
pub(super) fn dropped(live: &Plugin, candidate: &Plugin) -> Vec<String> {
    let (before, after) = (&live.description().versions, &candidate.description().versions);
    let dropped = before.iter().filter(|version| !after.contains(version));
    dropped.cloned().collect()
}

/// Returns the first objects for which the candidate does something wrong, unless the live version does the same. Objects that
/// are not reached within the budget are skipped.
pub(super) async fn worse(
    question: Question,
    context: &Context,
    live: Option<&Plugin>,
    candidate: &Plugin,
    names: &[NamespacedName],
) -> Result<Vec<Blamed>, String> {
    let mut blamed = Vec::new();
    if !question.concerns(candidate) {
        return Ok(blamed);
    }
    let start = Instant::now();
    for names in names.chunks(BATCH) {
        if blamed.len() >= MAX_BLAMED || start.elapsed() >= BUDGET {
            break;
        }
        let parents = names.iter().filter_map(|name| context.caches.parent(name));
        let parents: Vec<_> = parents.collect();
        // Serialization of a resource cannot fail.
        let value = |parent: &Arc<DynamicObject>| serde_json::to_value(&**parent).unwrap_or_default();
        let objects: Vec<Value> = parents.iter().map(value).collect();
        let rest = BUDGET.saturating_sub(start.elapsed());
        let lost = question.ask(candidate, &objects, rest).await?;
        // The live version is asked only about these. It has a budget of its own, so that the candidate is not blamed
        // because it used up the other.
        let indexes: BTreeSet<usize> = lost.iter().map(|lost| lost.index).collect();
        let indexes: Vec<usize> = indexes.into_iter().collect();
        let asked: Vec<Value> = indexes.iter().map(|index| objects[*index].clone()).collect();
        let known = match live.filter(|live| question.concerns(live) && !asked.is_empty()) {
            Some(live) => question.ask(live, &asked, BUDGET).await?,
            None => Vec::new(),
        };
        // A conversion may lose several fields of an object; the words about defaults are the plugin's.
        let which = |index: usize, message: &str| match question {
            Question::Conversion => (index, message.to_owned()),
            Question::Defaults => (index, String::new()),
        };
        let known = known.iter().map(|lost| which(indexes[lost.index], &lost.message));
        let known: BTreeSet<_> = known.collect();
        let is_new = |lost: &Lost| !known.contains(&which(lost.index, &lost.message));
        let new = lost.into_iter().filter(is_new);
        blamed.extend(new.map(|lost| Blamed::new(&NamespacedName::of(&parents[lost.index]), lost.message)));
    }
    blamed.truncate(MAX_BLAMED);
    Ok(blamed)
}
