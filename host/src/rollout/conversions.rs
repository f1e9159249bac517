//! Proves the conversions of a new version: converts every object to each other version of its kind and back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::BUDGET;
use super::compare::MAX_BLAMED;
use operator_host_core::object::NamespacedName;
use operator_host_delivery::candidate_check::Blamed;
use operator_host_engine::reconcile::context::Context;
use operator_host_runtime::Plugin;
use operator_host_webhook::conversion::{ConversionError, Lost, there_and_back};

/// Objects that are converted, and held, at a time.
const BATCH: usize = 50;

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
///
/// # Errors
/// When the host cannot call a version now.
pub(super) async fn lossy(
    context: &Context,
    live: Option<&Plugin>,
    candidate: &Plugin,
    names: &[NamespacedName],
) -> Result<Vec<Blamed>, ConversionError> {
    let mut blamed = Vec::new();
    if !candidate.description().converts() {
        return Ok(blamed);
    }
    let start = Instant::now();
    for names in names.chunks(BATCH) {
        if blamed.len() >= MAX_BLAMED || start.elapsed() >= BUDGET {
            break;
        }
        let objects = names.iter().filter_map(|name| context.parent(name));
        // Serialization of a resource cannot fail.
        let objects: Vec<Value> = objects
            .map(|parent| serde_json::to_value(&*parent).unwrap_or_default())
            .collect();
        let rest = BUDGET.saturating_sub(start.elapsed());
        blamed.extend(losses_of(live, candidate, &objects, rest).await?);
    }
    blamed.truncate(MAX_BLAMED);
    Ok(blamed)
}

/// The same about these objects.
async fn losses_of(
    live: Option<&Plugin>,
    candidate: &Plugin,
    objects: &[Value],
    budget: Duration,
) -> Result<Vec<Blamed>, ConversionError> {
    let base = &candidate.description().parent;
    let lost = there_and_back(candidate, base, objects, budget).await?;
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    // The live version is asked only about these. It has a budget of its own, so that the candidate is not blamed
    // because it used up the other.
    let indexes: BTreeSet<usize> = lost.iter().map(|lost| lost.index).collect();
    let indexes: Vec<usize> = indexes.into_iter().collect();
    let asked: Vec<Value> = indexes.iter().map(|index| objects[*index].clone()).collect();
    let known = match live.filter(|live| live.description().converts()) {
        Some(live) => there_and_back(live, base, &asked, BUDGET).await?,
        None => Vec::new(),
    };
    let known: BTreeSet<Lost> = known
        .into_iter()
        .map(|lost| Lost {
            index: indexes[lost.index],
            ..lost
        })
        .collect();
    let new = lost.into_iter().filter(|lost| !known.contains(lost));
    let blamed = new.map(|lost| {
        let metadata = &objects[lost.index]["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let object = match metadata["namespace"].as_str() {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
        Blamed::new(&object, lost.message)
    });
    Ok(blamed.collect())
}
