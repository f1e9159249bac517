//! Lets a candidate convert what the live version of the plugin cannot, when that stops the controller's lists.
//!
//! A proof needs these lists, so a candidate that repairs the conversion could never be proved. But in the version in
//! which they are stored, resources can be read without a conversion. If the candidate loses nothing of them, it
//! converts from then on where the live version fails. Then the lists succeed, and the proof begins.

use std::time::{Duration, Instant};

use kube::api::ListParams;
use kube::core::ApiResource;
use serde_json::Value;

use super::conversions::{dropped, losses_of};
use super::{BUDGET, installed};
use operator_host_cluster::cache::{Reflector, WatchState};
use operator_host_cluster::objects::Objects;
use operator_host_contract::Kind;
use operator_host_core::crd::definition::{is_served, versions};
use operator_host_core::object::{NamespacedName, is_unreadable, next_page, unreadable};
use operator_host_engine::reconcile::context::Context;
use operator_host_instruments::health::needs_conversion;
use operator_host_runtime::Plugin;

/// Resources in one page of a list. One page is in memory at a time.
const PAGE: u32 = 50;
/// The wait before they are read again.
pub(super) const RETRY: Duration = Duration::from_secs(5);

/// Returns why a list of the parents fails, if that is because nothing converts them.
pub(super) fn stopped_by_conversion(context: &Context) -> Option<String> {
    let reason = |watch: &Reflector| match watch.state_now() {
        WatchState::Failing(message) => Some(message),
        WatchState::Starting | WatchState::Synced => watch.list_error().borrow().clone(),
    };
    let mut reasons = context
        .parents
        .all()
        .into_iter()
        .filter_map(|watch| reason(&watch));
    reasons.find(|reason| needs_conversion(reason))
}

/// Checks that a candidate converts all resources, as they are stored, to each other version and back without a loss, unless
/// the live version loses the same. Resources that are not reached within the budget are skipped.
///
/// # Errors
/// Why the candidate must not convert.
pub(super) async fn check(
    context: &Context,
    live: Option<&Plugin>,
    candidate: &Plugin,
) -> Result<(), String> {
    if !candidate.description().converts() {
        return Err("it does not convert".to_owned());
    }
    if let Some(version) = live.and_then(|live| dropped(live, candidate).into_iter().next()) {
        return Err(format!(
            "it does not convert {version}, which the live version converts"
        ));
    }
    let (resource, controller) = (&context.resource, &context.config.name);
    let definition = installed(&context.client, &resource.definition_name(), controller).await?;
    let definition = definition.ok_or("the definition of the kind cannot be read")?;
    let stored = versions(&definition).find(|version| version["storage"] == true && is_served(version));
    let stored = stored.and_then(|version| version["name"].as_str());
    let stored = stored.ok_or("the version in which resources are stored is not served")?;
    if stored == context.config.parent.version() {
        return Err(format!(
            "resources are stored in {stored}, which the controller uses"
        ));
    }
    let group = context.config.parent.group();
    let base = Kind {
        api_version: format!("{group}/{stored}"),
        kind: context.config.parent.kind.clone(),
    };
    let api = ApiResource {
        version: stored.to_owned(),
        api_version: base.api_version.clone(),
        ..resource.api.clone()
    };
    let start = Instant::now();
    for watch in context.parents.all() {
        let all = Objects::new(context.client.clone(), &api, watch.namespace());
        let mut page = ListParams::default().limit(PAGE);
        while start.elapsed() < BUDGET {
            let list = tokio::time::timeout(BUDGET, all.list(&page)).await;
            let list = list.map_err(|_| format!("no answer within {BUDGET:?}"))?;
            let list = list.map_err(|error| format!("cannot list the resources in {stored}: {error}"))?;
            if let Some(object) = list.items.iter().find(|object| is_unreadable(object)) {
                return Err(unreadable(&NamespacedName::of(object).to_string()));
            }
            // Serialization of a resource cannot fail.
            let objects = list
                .items
                .iter()
                .map(|object| serde_json::to_value(object).unwrap_or_default());
            let objects: Vec<Value> = objects.collect();
            let rest = BUDGET.saturating_sub(start.elapsed());
            let lost = losses_of(live, candidate, &base, &objects, rest).await;
            if let Some(first) = lost.map_err(|error| error.to_string())?.first() {
                return Err(format!("{}: {}", first.object, first.message));
            }
            match next_page(&list.metadata) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
    }
    Ok(())
}
