//! Reports where a live plugin disagrees with what is around it: kinds that it makes or reads and the configuration does
//! not allow, and fields of its definition that the cluster's definition lacks. Otherwise such a disagreement shows only
//! when the plugin needs the kind or the field, which can be months later, in a cleanup. So does a right that the host
//! lacks to release a resource whose namespace is deleted.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tracing::{debug, warn};

use crate::supervisor::Shared;
use operator_host_cluster::cache::Reflector;
use operator_host_config::{ControllerConfig, DefinitionsMode};
use operator_host_contract::Description;
use operator_host_core::crd::definition::{self, is_served, versions};
use operator_host_core::object::{NamespacedName, first_few};
use operator_host_delivery::changes::sleep_or_never;
use operator_host_delivery::registry::Live;
use operator_host_rollout::definitions::installed;
use operator_host_runtime::fair::Member;
use operator_host_schema::pruned;

/// When to read the definition again after that failed.
const RETRY: Duration = Duration::from_secs(10);
/// The number of fields that a message lists.
const SHOWN: usize = 5;

/// Compares each live version with the configuration, and with the definition whenever that changes. The API server reviews a right
/// once while it is there; tenants take turns with that, by `reviews`.
pub(super) async fn follow(
    config: Arc<ControllerConfig>,
    mut live: watch::Receiver<Live>,
    shared: Shared,
    reviews: Arc<Member>,
    definitions: Arc<Reflector>,
    mut troubles: [watch::Receiver<Option<Arc<str>>>; 2],
) {
    let changed = Arc::new(Notify::new());
    let hint = Arc::clone(&changed);
    let suffix = format!(".{}", config.parent.group());
    let _subscription = definitions.subscribe(Arc::new(move |_, change| {
        let definition = change.object().map(|object| NamespacedName::of(object));
        if definition.is_some_and(|definition| definition.name.ends_with(&suffix)) {
            hint.notify_one();
        }
    }));
    let mut logged = Vec::new();
    let mut may_release = false;
    loop {
        let plugin = live.borrow_and_update().plugin().cloned();
        let description = plugin.map(|plugin| plugin.description().clone());
        let (mut found, mut retry) = match &description {
            Some(description) => disagreements(&config, description, &shared.client).await,
            None => (Vec::new(), None),
        };
        if !may_release && description.is_some_and(|description| description.finalizer) {
            let _turn = reviews.acquire(1).await;
            match can_release(&config, &shared).await {
                Some(Ok(())) => may_release = true,
                Some(Err(lack)) => {
                    found.push(lack);
                    retry = Some(RETRY);
                }
                None => {}
            }
        }
        loop {
            let mut all = found.clone();
            for trouble in &mut troubles {
                all.extend(trouble.borrow_and_update().as_deref().map(str::to_owned));
            }
            shared.instruments.health.disagrees(&config.id, all.clone());
            for news in all.iter().filter(|message| !logged.contains(*message)) {
                warn!(controller = config.name, "{news}");
            }
            logged = all;
            let [installer, record] = &mut troubles;
            tokio::select! {
                () = changed.notified() => break,
                () = sleep_or_never(retry) => break,
                // The definition need not be read again.
                Ok(()) = installer.changed() => {}
                Ok(()) = record.changed() => {}
                changed = live.changed() => if changed.is_err() { return } else { break },
            }
        }
    }
}

/// Returns the disagreements, and when to look again because the definition could not be read.
async fn disagreements(
    config: &ControllerConfig,
    description: &Description,
    client: &Client,
) -> (Vec<String>, Option<Duration>) {
    let mut found = config.disallows(description);
    let carried = description.definition();
    let Some(carried) = carried.filter(|_| config.definitions == DefinitionsMode::Check) else {
        return (found, None);
    };
    let name = carried["metadata"]["name"].as_str().unwrap_or_default();
    match installed(client, name, &config.name).await {
        Ok(installed) => {
            let installed = installed.into_iter();
            found.extend(installed.flat_map(|installed| outdated(&installed, &carried, name, description)));
            (found, None)
        }
        Err(error) => {
            debug!(
                controller = config.name,
                "cannot read the definition {name}: {error}"
            );
            (found, Some(RETRY))
        }
    }
}

/// Returns whether the host could remove its finalizer in a namespace that is being deleted, which takes along the RoleBindings in
/// it, or why not; `None` without an answer.
async fn can_release(config: &ControllerConfig, shared: &Shared) -> Option<Result<(), String>> {
    let resource = shared.kinds.resolve(&config.parent).await.ok()?;
    let plural = &resource.api.plural;
    let attributes = ResourceAttributes {
        group: Some(resource.api.group.clone()),
        resource: Some(plural.clone()),
        verb: Some("patch".into()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(shared.client.clone());
    // Every user may ask. Without an answer there is nothing to say.
    let answer = reviews.create(&PostParams::default(), &review).await.ok()?;
    if !resource.namespaced || answer.status.is_none_or(|status| status.allowed) {
        return Some(Ok(()));
    }
    Some(Err(format!(
        "the host may not patch {plural} in every namespace: a namespace that is deleted takes along its RoleBindings, and the \
         {plural} in it then keep the host's finalizer and the namespace; apply the ClusterRole that `operator-host rbac` prints"
    )))
}

/// Returns what the installed definition lacks.
fn outdated(installed: &Value, carried: &Value, name: &str, description: &Description) -> Vec<String> {
    let advice = "apply the plugin's definition, which `operator-host crd` prints";
    let mut found = Vec::new();
    for served in versions(carried).filter(|version| is_served(version)) {
        let version = served["name"].as_str().unwrap_or_default();
        // One that is there and not served is somebody's choice: `operator-host crd` prints it so where nothing converts.
        if definition::version(installed, version).is_none() {
            found.push(format!(
                "the cluster's definition {name} does not have the version {version}, which the plugin's serves; {advice}"
            ));
        }
    }
    let serves = versions(installed).filter(|version| is_served(version)).count();
    if description.converts() && serves > 1 && !definition::converts(installed) {
        found.push(format!(
            "the cluster's definition {name} serves several versions and names no webhook that converts them: the API server \
             drops what a version does not know; apply what `operator-host crd --service` prints"
        ));
    }
    let schema = |crd| definition::schema(crd, &description.parent);
    let both = schema(installed).zip(schema(carried));
    let lacks = |(one, other)| first_few(pruned::fields(one, other), SHOWN, ", ");
    let fields = both.map_or_else(String::new, lacks);
    let more = both.map_or_else(String::new, |(installed, carried)| lacks((carried, installed)));
    if !fields.is_empty() {
        let drops = format!("lacks {fields}: the API server drops these fields");
        found.push(match more.is_empty() {
            true => format!("the cluster's definition {name} is older than the plugin's and {drops}; {advice}"),
            // Which of the two is newer, only their author knows.
            false => format!(
                "the cluster's definition {name} is another one than the plugin's. It has {more}, which the plugin's has not, \
                 and {drops}. If the plugin is newer, {advice}; otherwise build the plugin again, with that definition"
            ),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use operator_host_contract::Kind;
    use operator_host_delivery::testing::describing;

    #[test]
    fn a_definition_without_the_plugins_new_fields_is_outdated() {
        let crd = |fields: &[&str]| {
            let properties: Value = fields
                .iter()
                .map(|field| ((*field).to_owned(), json!({ "type": "string" })))
                .collect::<serde_json::Map<_, _>>()
                .into();
            json!({ "spec": { "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": {
                "type": "object", "properties": { "spec": { "type": "object", "properties": properties } },
            } } }] } })
        };
        let mut description = describing("shop", "1", Kind::new("example.com/v1", "Shop"));
        let of_one = description.clone();
        let said = |installed, carried| outdated(&installed, &carried, "shops.example.com", &of_one);
        assert_eq!(said(crd(&["a", "b"]), crd(&["a"])), Vec::<String>::new());
        let one = said(crd(&["a"]), crd(&["a", "b"])).concat();
        assert!(
            one.contains("shops.example.com is older") && one.contains("lacks spec.b:"),
            "{one}"
        );
        // Regression: the author of a newer definition was told to install the older one of the plugin.
        let newer = said(crd(&["a", "c"]), crd(&["a", "b"])).concat();
        assert!(
            newer.contains("build the plugin again") && !newer.contains("is older"),
            "{newer}"
        );
        let many = said(crd(&[]), crd(&["a", "b", "c", "d", "e", "f", "g"])).concat();
        assert!(many.contains("spec.e, and 2 more:"), "{many}");

        let served = |names: &[&str]| {
            let versions: Vec<Value> = names
                .iter()
                .map(|name| json!({ "name": name, "served": true }))
                .collect();
            json!({ "spec": { "versions": versions } })
        };
        let lacks = said(served(&["v1"]), served(&["v1", "v2"])).concat();
        assert!(lacks.contains("does not have the version v2"), "{lacks}");
        description.versions = vec!["v1".into(), "v2".into()];
        let both = served(&["v1", "v2"]);
        let unconverted = outdated(&both, &both, "shops.example.com", &description).concat();
        assert!(unconverted.contains("names no webhook"), "{unconverted}");
    }
}
