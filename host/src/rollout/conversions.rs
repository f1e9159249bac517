//! Proves the conversions of a new version: converts every object to each other version of its kind and back.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::Value;

use super::BUDGET;
use super::compare::MAX_BLAMED;
use crate::conversion::{Lost, there_and_back};
use crate::object::NamespacedName;
use crate::plugin::Plugin;
use crate::plugin::candidate_check::Blamed;
use crate::reconcile::context::Context;

/// Objects that are converted, and held, at a time.
const BATCH: usize = 200;

/// Returns the versions that the live version converts and the candidate does not.
pub(super) fn dropped(live: &Plugin, candidate: &Plugin) -> Vec<String> {
    let (before, after) = (&live.description().versions, &candidate.description().versions);
    before
        .iter()
        .filter(|version| !after.contains(version))
        .cloned()
        .collect()
}

/// Returns the first objects that the candidate does not convert without a loss, unless the live version loses the same.
/// Objects that are not reached within the budget are skipped.
pub(super) async fn lossy(
    context: &Context,
    live: &Plugin,
    candidate: &Plugin,
    names: &[NamespacedName],
) -> Vec<Blamed> {
    let mut blamed = Vec::new();
    if !candidate.description().converts() {
        return blamed;
    }
    let start = Instant::now();
    for names in names.chunks(BATCH) {
        if blamed.len() >= MAX_BLAMED || start.elapsed() > BUDGET {
            break;
        }
        let parents = names.iter().filter_map(|name| context.parent(name));
        // Serialization of a resource cannot fail.
        let objects: Vec<Value> = parents
            .map(|parent| serde_json::to_value(&*parent).unwrap_or_default())
            .collect();
        let lost = there_and_back(candidate, &objects).await;
        if lost.is_empty() {
            continue;
        }
        let known: BTreeSet<Lost> = match live.description().converts() {
            true => there_and_back(live, &objects).await.into_iter().collect(),
            false => BTreeSet::new(),
        };
        blamed.extend(lost.into_iter().filter(|lost| !known.contains(lost)).map(|lost| {
            let metadata = &objects[lost.index]["metadata"];
            let name = metadata["name"].as_str().unwrap_or_default();
            Blamed {
                object: match metadata["namespace"].as_str() {
                    Some(namespace) => format!("{namespace}/{name}"),
                    None => name.to_owned(),
                },
                message: lost.message,
                diff: String::new(),
            }
        }));
    }
    blamed.truncate(MAX_BLAMED);
    blamed
}
