//! Proves the defaults of a new version: asks it twice about every object.

use std::time::Instant;

use super::BUDGET;
use super::compare::MAX_BLAMED;
use operator_host_core::object::NamespacedName;
use operator_host_delivery::candidate_check::Blamed;
use operator_host_engine::reconcile::context::Context;
use operator_host_runtime::{CallError, Plugin};
use operator_host_webhook::defaults::unstable;

/// Returns the first objects for which the candidate's `default` fails or changes its own answer, unless that of the live
/// version does the same. Objects that are not reached within the budget are skipped.
///
/// # Errors
/// When the host cannot call a version now.
pub(super) async fn refused(
    context: &Context,
    live: Option<&Plugin>,
    candidate: &Plugin,
    names: &[NamespacedName],
) -> Result<Vec<Blamed>, CallError> {
    let mut blamed = Vec::new();
    if !candidate.description().defaults {
        return Ok(blamed);
    }
    let start = Instant::now();
    for name in names {
        if blamed.len() >= MAX_BLAMED || start.elapsed() >= BUDGET {
            break;
        }
        let Some(parent) = context.parent(name) else {
            continue;
        };
        // Serialization of a resource cannot fail.
        let object = [serde_json::to_value(&*parent).unwrap_or_default()];
        let rest = BUDGET.saturating_sub(start.elapsed());
        let Some(found) = unstable(candidate, &object, rest).await?.pop() else {
            continue;
        };
        // Only what the new version does worse holds it back. The live one has a budget of its own.
        let is_worse = match live {
            Some(live) => unstable(live, &object, BUDGET).await?.is_empty(),
            None => true,
        };
        if is_worse {
            blamed.push(Blamed::new(name, found.message));
        }
    }
    Ok(blamed)
}
