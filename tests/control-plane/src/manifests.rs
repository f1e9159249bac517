//! Applies manifests from files in a working order: definitions, namespaces, then the rest.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, GroupVersionKind, Patch, PatchParams},
    discovery::{self, Scope},
    runtime::wait::{await_condition, conditions::is_crd_established},
};

use crate::component::POLL;

/// The field manager of these applies.
const MANAGER: &str = "control-plane";
/// The field of a schema with CEL rules.
const RULES: &str = "x-kubernetes-validations";
/// How long a definition may take to be served.
const LIMIT: Duration = Duration::from_secs(30);

/// Reads every object in a YAML file, or in the `.yaml` and `.yml` files of a folder, ordered by file name.
pub fn read(path: &Path) -> anyhow::Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for file in files(path)? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let fault = || format!("{} is not a manifest", file.display());
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).with_context(fault)?;
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            let object: DynamicObject = serde_json::from_value(document).with_context(fault)?;
            let is_named = object.types.is_some() && object.metadata.name.is_some();
            ensure!(
                is_named,
                "{}: an object lacks apiVersion, kind or metadata.name",
                fault()
            );
            objects.push(object);
        }
    }
    Ok(objects)
}

fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let problem = || format!("read the manifests in {}", path.display());
    if !std::fs::metadata(path).with_context(problem)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(problem)? {
        let file = entry.with_context(problem)?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml")
        {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Applies `objects` with server-side apply and returns when every definition among them is served. The default
/// namespace of namespaced objects is `default`. Definitions lose their CEL rules where the API server does not know them.
pub async fn apply(client: &Client, objects: &[DynamicObject]) -> anyhow::Result<()> {
    let rank = |object: &&DynamicObject| match kind_of(object).kind.as_str() {
        "CustomResourceDefinition" => 0,
        "Namespace" => 1,
        _ => 2,
    };
    let mut sorted: Vec<_> = objects.iter().collect();
    sorted.sort_by_key(rank);
    let definitions = sorted.iter().filter(|object| rank(object) == 0).count();
    let (definitions, others) = sorted.split_at(definitions);
    for object in definitions {
        match apply_one(client, object).await {
            Err(error) if error.to_string().contains(RULES) => {
                apply_one(client, &without_rules(object)).await?;
            }
            other => other?,
        }
    }
    for object in definitions {
        established(client, object).await?;
    }
    for object in others {
        apply_one(client, object).await?;
    }
    Ok(())
}

/// Returns a definition without CEL rules, for API servers that do not know them (before Kubernetes 1.23).
#[must_use]
pub fn without_rules(definition: &DynamicObject) -> DynamicObject {
    fn remove(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(map) => {
                map.remove(RULES);
                map.values_mut().for_each(remove);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(remove),
            _ => {}
        }
    }
    let mut definition = definition.clone();
    remove(&mut definition.data);
    definition
}

async fn established(client: &Client, object: &DynamicObject) -> anyhow::Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let name = object.name_any();
    let waited = tokio::time::timeout(LIMIT, await_condition(definitions, &name, is_crd_established()));
    let established = matches!(waited.await, Ok(Ok(_)));
    ensure!(
        established,
        "definition {name} is not Established after {LIMIT:?}; see kubectl describe crd"
    );
    Ok(())
}

async fn apply_one(client: &Client, object: &DynamicObject) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let error = match try_apply(client, object).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        // A definition is served a moment after it was established.
        let unserved = match &error {
            kube::Error::Api(status) => status.is_not_found(),
            kube::Error::Discovery(_) => true,
            _ => false,
        };
        if !unserved || started.elapsed() > LIMIT / 3 {
            let message = match &error {
                kube::Error::Api(status) => status.message.clone(),
                error => error.to_string(),
            };
            bail!(
                "{}/{} was not installed: {message}",
                kind_of(object).kind,
                object.name_any()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn try_apply(client: &Client, object: &DynamicObject) -> kube::Result<()> {
    let (resource, capabilities) = discovery::pinned_kind(client, &kind_of(object)).await?;
    let api = match capabilities.scope {
        Scope::Cluster => Api::<DynamicObject>::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            Api::namespaced_with(client.clone(), &namespace, &resource)
        }
    };
    let parameters = PatchParams::apply(MANAGER).force();
    api.patch(&object.name_any(), &parameters, &Patch::Apply(object))
        .await?;
    Ok(())
}

fn kind_of(object: &DynamicObject) -> GroupVersionKind {
    let types = object.types.clone().unwrap_or_default();
    GroupVersionKind::try_from(&types)
        .unwrap_or_else(|_| GroupVersionKind::gvk("", &types.api_version, &types.kind))
}
