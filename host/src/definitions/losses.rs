//! What would be lost if a definition took the place of the installed one. Fields may go that no object has, so the live
//! objects are asked, in each version that is stored or served.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::Value;

use crate::crd::{accepts, pruned, schema};
use crate::object::NamespacedName;
use crate::plugin::candidate_check::Blamed;

/// Objects in one list, which are in memory at a time.
const PAGE: u32 = 50;
/// Time limit for asking all objects in all versions.
const BUDGET: Duration = Duration::from_secs(120);
/// Maximum number of objects that are named.
const MAX_BLAMED: usize = 10;

/// What would be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// What the kind would lose; empty if only objects lose something.
    pub(super) of_kind: Vec<String>,
    /// What objects would lose: the first few.
    pub(super) of_objects: Vec<Blamed>,
}

impl Losses {
    /// Returns the first of them, in words.
    pub(super) fn first(&self) -> Option<String> {
        let of_object = |blamed: &Blamed| format!("{}: {}", blamed.object, blamed.message);
        self.of_kind
            .first()
            .cloned()
            .or_else(|| self.of_objects.first().map(of_object))
    }
}

/// Returns what the kind itself would lose: its identity, and versions. `version` is the one that the controller
/// reconciles.
pub(super) fn of_kind(installed: &Value, wanted: &Value, version: &str) -> Vec<String> {
    let mut lost = Vec::new();
    let text = |crd: &Value, pointer: &str| crd.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    for pointer in [
        "/spec/group",
        "/spec/scope",
        "/spec/names/kind",
        "/spec/names/plural",
    ] {
        let (is, wants) = (text(installed, pointer), text(wanted, pointer));
        if is != wants {
            let path = pointer.trim_start_matches('/').replace('/', ".");
            let shown = |text: Option<String>| text.unwrap_or_else(|| "not set".to_owned());
            lost.push(format!(
                "`{path}` is {}, and the cluster's is {}",
                shown(wants),
                shown(is)
            ));
        }
    }
    for name in ["singular", "listKind"] {
        let pointer = format!("/spec/names/{name}");
        // Without a value, the API server derives it from the kind.
        if let Some(wants) = text(wanted, &pointer)
            && let Some(is) = text(installed, &pointer).filter(|is| *is != wants)
        {
            lost.push(format!(
                "`spec.names.{name}` is {wants}, and the cluster's is {is}"
            ));
        }
    }
    if !find(wanted, version).is_some_and(is_served) {
        lost.push(format!(
            "it does not serve the version {version}, which this controller reconciles"
        ));
    }
    for stored in stored(installed) {
        match find(wanted, stored) {
            None => lost.push(format!(
                "it lacks the version {stored}, in which objects are stored; `operator-host migrate-storage` rewrites them"
            )),
            Some(wants) if !is_served(wants) && find(installed, stored).is_some_and(is_served) => {
                lost.push(format!(
                    "it does not serve the version {stored}, in which objects are stored; `operator-host migrate-storage` \
                     rewrites them"
                ));
            }
            Some(_) => {}
        }
    }
    lost
}

/// Asks all live objects what they would lose.
///
/// # Errors
/// Why they cannot be asked now.
pub(super) async fn of_objects(client: &Client, installed: &Value, wanted: &Value) -> Result<Losses, String> {
    let asked = tokio::time::timeout(BUDGET, ask_all(client, installed, wanted)).await;
    asked.unwrap_or_else(|_| {
        Err(format!(
            "the objects could not all be examined within {} s",
            BUDGET.as_secs()
        ))
    })
}

async fn ask_all(client: &Client, installed: &Value, wanted: &Value) -> Result<Losses, String> {
    let mut losses = Losses::default();
    let stored: BTreeSet<&str> = stored(installed).collect();
    for version in versions(installed) {
        let name = version["name"].as_str().unwrap_or_default();
        let Some(after) = find(wanted, name) else { continue };
        let (before, after) = (schema_of(version), schema_of(after));
        if !(is_served(version) || stored.contains(name)) || accepts::everything(after, before) {
            continue;
        }
        if !is_served(version) {
            losses.of_kind.push(format!(
                "its schema of the version {name} is narrower, and objects that are stored in it cannot be examined, because \
                 the version is not served"
            ));
            continue;
        }
        ask(
            client,
            installed,
            name,
            &|object| objection(object, before, after),
            &mut losses,
        )
        .await?;
    }
    Ok(losses)
}

/// Reads all objects in one version.
async fn ask(
    client: &Client,
    installed: &Value,
    version: &str,
    objection: &(impl Fn(&Value) -> Option<String> + Sync),
    losses: &mut Losses,
) -> Result<(), String> {
    let text = |pointer: &str| {
        installed
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let group = text("/spec/group");
    let resource = ApiResource {
        api_version: format!("{group}/{version}"),
        group,
        version: version.to_owned(),
        kind: text("/spec/names/kind"),
        plural: text("/spec/names/plural"),
    };
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = all.list(&page).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 403 => format!(
                "{}; the host must see all objects of the kind before it changes their definition: give its role the verb list \
                 on {}.{} in all namespaces, as `operator-host rbac` prints it",
                status.message, resource.plural, resource.group
            ),
            error => format!("cannot list the objects in {}: {error}", resource.api_version),
        })?;
        for object in &list.items {
            // Serialization of a resource cannot fail.
            let value = serde_json::to_value(object).unwrap_or_default();
            let object = NamespacedName::of(object).to_string();
            if let Some(message) = objection(&value)
                && losses.of_objects.len() < MAX_BLAMED
                && !losses.of_objects.iter().any(|blamed| blamed.object == object)
            {
                losses.of_objects.push(Blamed {
                    object,
                    message,
                    diff: String::new(),
                });
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if losses.of_objects.len() < MAX_BLAMED => page = page.continue_token(&token),
            _ => return Ok(()),
        }
    }
}

/// Returns what an object would lose.
fn objection(object: &Value, before: &Value, after: &Value) -> Option<String> {
    if let Some(path) = pruned::first(object, after) {
        return Some(format!("the API server would drop its field {path}"));
    }
    let problems = |schema: &Value| -> BTreeSet<String> {
        let problems = schema::validate_resource(object, schema);
        problems.iter().map(ToString::to_string).collect()
    };
    let new = problems(after).difference(&problems(before)).next().cloned();
    new.map(|problem| format!("it would be invalid: {problem}"))
}

pub(super) fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

pub(super) fn find<'a>(crd: &'a Value, name: &str) -> Option<&'a Value> {
    versions(crd).find(|version| version["name"] == name)
}

pub(super) fn is_served(version: &Value) -> bool {
    version["served"] == true
}

pub(super) fn schema_of(version: &Value) -> &Value {
    &version["schema"]["openAPIV3Schema"]
}

fn stored(installed: &Value) -> impl Iterator<Item = &str> {
    let stored = installed["status"]["storedVersions"].as_array();
    stored.into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn version(name: &str, fields: &[&str]) -> Value {
        let fields: serde_json::Map<_, _> = fields
            .iter()
            .map(|field| ((*field).to_owned(), json!({ "type": "string" })))
            .collect();
        json!({ "name": name, "served": true, "storage": name == "v1", "schema": { "openAPIV3Schema": {
            "type": "object", "properties": { "spec": { "type": "object", "properties": fields } },
        } } })
    }

    fn crd(versions: &[Value], stored: &[&str]) -> Value {
        json!({
            "metadata": { "name": "shops.a.dev" },
            "spec": { "group": "a.dev", "scope": "Namespaced", "versions": versions,
                "names": { "kind": "Shop", "plural": "shops", "singular": "shop", "listKind": "ShopList" } },
            "status": { "storedVersions": stored },
        })
    }

    #[test]
    fn the_identity_of_a_kind_and_its_stored_versions_stay() {
        let (v1, v2) = (version("v1", &[]), version("v2", &[]));
        let installed = crd(&[v1.clone(), v2.clone()], &["v1", "v2"]);
        let lost = |change: &dyn Fn(&mut Value)| {
            let mut wanted = installed.clone();
            change(&mut wanted);
            of_kind(&installed, &wanted, "v2")
        };
        assert_eq!(lost(&|_| {}), Vec::<String>::new());
        assert_eq!(
            lost(&|crd| crd["spec"]["names"]["shortNames"] = json!(["sh"])),
            Vec::<String>::new()
        );
        assert_eq!(
            lost(&|crd| drop(crd["spec"]["names"].as_object_mut().unwrap().remove("singular"))),
            Vec::<String>::new()
        );
        for (change, words) in [
            (
                Box::new(|crd: &mut Value| crd["spec"]["scope"] = "Cluster".into())
                    as Box<dyn Fn(&mut Value)>,
                "spec.scope",
            ),
            (
                Box::new(|crd| crd["spec"]["group"] = "b.dev".into()),
                "spec.group",
            ),
            (
                Box::new(|crd| crd["spec"]["names"]["kind"] = "Store".into()),
                "spec.names.kind",
            ),
            (
                Box::new(|crd| crd["spec"]["names"]["singular"] = "store".into()),
                "spec.names.singular",
            ),
            (
                Box::new(|crd| crd["spec"]["versions"] = json!([version("v2", &[])])),
                "it lacks the version v1",
            ),
            (
                Box::new(|crd| crd["spec"]["versions"][0]["served"] = false.into()),
                "it does not serve the version v1",
            ),
            (
                Box::new(|crd| crd["spec"]["versions"][1]["served"] = false.into()),
                "which this controller reconciles",
            ),
        ] {
            let lost = lost(&change);
            assert!(!lost.is_empty() && lost[0].contains(words), "{words}: {lost:?}");
        }
        let migrated = crd(&[v1, v2.clone()], &["v2"]);
        assert_eq!(of_kind(&migrated, &crd(&[v2], &[]), "v2"), Vec::<String>::new());
    }

    #[tokio::test]
    async fn objects_are_asked_in_pages_and_in_each_version_whose_schema_is_narrower() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            seen.lock().unwrap().push(uri.clone());
            let object = |name: &str, field: &str| {
                json!({ "apiVersion": "a.dev/v1", "kind": "Shop",
                    "metadata": { "name": name, "namespace": "n" }, "spec": { field: "x" } })
            };
            let (items, rest) = match uri.contains("continue=more") {
                false => (json!([object("one", "a")]), "more"),
                true => (json!([object("two", "b")]), ""),
            };
            let list = json!({ "apiVersion": "a.dev/v1", "kind": "ShopList", "metadata": { "continue": rest }, "items": items });
            async move { Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))) }
        });
        let client = Client::new(service, "default");
        let installed = crd(&[version("v1", &["a", "b"]), version("v2", &["a"])], &["v1"]);
        let narrower = crd(&[version("v1", &["a"]), version("v2", &["a", "b"])], &["v1"]);
        let losses = of_objects(&client, &installed, &narrower).await.unwrap();
        assert_eq!(
            losses.first().unwrap(),
            "n/two: the API server would drop its field spec.b"
        );
        let uris = std::mem::take(&mut *asked.lock().unwrap());
        assert_eq!(uris.len(), 2, "{uris:?}");
        assert!(
            uris.iter()
                .all(|uri| uri.contains("/apis/a.dev/v1/shops?&limit=50")),
            "{uris:?}"
        );

        let wider = crd(&[version("v1", &["a", "b", "c"]), version("v2", &["a"])], &["v1"]);
        assert_eq!(
            of_objects(&client, &installed, &wider).await,
            Ok(Losses::default())
        );
        assert!(asked.lock().unwrap().is_empty(), "nothing can be lost");

        let mut hidden = installed.clone();
        hidden["spec"]["versions"][0]["served"] = false.into();
        let losses = of_objects(&client, &hidden, &narrower).await.unwrap();
        assert!(
            losses.of_kind[0].contains("the version is not served"),
            "{losses:?}"
        );
    }

    #[test]
    fn an_object_that_would_become_invalid_is_a_loss_and_one_that_is_invalid_already_is_not() {
        let schema = |max: u64| {
            json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
                "a": { "type": "string", "maxLength": max },
            } } } })
        };
        let object = json!({ "spec": { "a": "four" } });
        let found = objection(&object, &schema(9), &schema(3)).unwrap();
        assert!(found.contains("it would be invalid: spec.a"), "{found}");
        assert_eq!(objection(&object, &schema(3), &schema(3)), None);
    }
}
