//! Some samples, and what decorates, as Controllers of the cluster, with their plugins in ConfigMaps: put there by `kubectl apply`,
//! in place of an entry of the configuration and a file. A new version goes through stages.
//!
//! The API server may be away at any time, so everything is tried until it is done.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Client, ResourceExt};
use operator_host_core::digest::Digest;
use serde_json::{Value, json};

use crate::files::{self, Edit};
use crate::oracle::Sample;

/// The samples that may be Controllers.
pub(crate) const OBJECTS: [Sample; 2] = [Sample::Echo, Sample::Puppet];
/// What their Controllers may do, in the configuration.
pub(crate) const CEILINGS: &str = "\
ceilings:
- parents: [{apiGroups: [my-operator.dev], kinds: [Echo]}, {apiGroups: [test.operator-host.dev], kinds: [Puppet]}]
  decorates: [{apiGroups: [apps], kinds: [StatefulSet]}]
  fields: [metadata.labels]
  children: [{apiGroups: [''], kinds: [Pod, ConfigMap]}, {apiGroups: [operator-host.dev], kinds: [External]}]
  configMaps: [operator-host]
";
/// How long one request may take, and all tries together.
const PATIENCE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);

/// Puts a plugin into its ConfigMap.
pub(crate) async fn put_plugin(client: &Client, sample: Sample, bytes: &[u8]) -> anyhow::Result<()> {
    let name = format!("{}-plugin", sample.name());
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { "operator-host.dev/plugin": name } },
        "binaryData": { format!("{}.wasm", sample.name()): ByteString(bytes.to_vec()) },
    });
    let api = Api::<ConfigMap>::namespaced(client.clone(), files::NAMESPACE);
    until_done(async || {
        let parameters = PatchParams::apply("user").force();
        api.patch(&name, &parameters, &Patch::Apply(&map))
            .await
            .map(|_| true)
    })
    .await
    .with_context(|| name.clone())
}

/// Applies a Controller, whose built plugin is `own`; deletes it when the edit leaves it out.
pub(crate) async fn put(client: &Client, sample: Sample, edit: Edit, own: &[u8]) -> anyhow::Result<()> {
    if edit == Edit::Without(sample) {
        return delete(client, sample, false).await;
    }
    let object = json!({
        "apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller",
        "metadata": { "name": sample.name() }, "spec": spec(sample, edit, own),
    });
    let api = api(client);
    until_done(async || {
        let there = api.get_opt(sample.name()).await?;
        if there.is_some_and(|there| there.metadata.deletion_timestamp.is_some()) {
            return Ok(false);
        }
        let parameters = PatchParams::apply("user").force();
        let there = api
            .patch(sample.name(), &parameters, &Patch::Apply(&object))
            .await?;
        may_go_on(client, sample, &there).await
    })
    .await
    .with_context(|| format!("the Controller {}", sample.name()))
}

/// Lets a Controller that is made again go on with what the one before has left. Returns whether that is done.
async fn may_go_on(client: &Client, sample: Sample, controller: &DynamicObject) -> kube::Result<bool> {
    if sample == Sample::Decorated {
        return Ok(true);
    }
    let resource = sample.resource();
    let holder = format!("{}/{}", resource.kind, controller.uid().unwrap_or_default());
    let key = format!("{}.holder.live.operator-host.dev/controller", files::NAMESPACE);
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: holder } } }));
    let definition = format!("{}.{}", resource.plural, resource.group);
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    match api.patch(&definition, &PatchParams::default(), &patch).await {
        // Without a definition there is nothing left.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
        patched => patched.map(|_| true),
    }
}

/// Deletes a Controller. Without hosts, nobody but `alone` removes its finalizer.
pub(crate) async fn delete(client: &Client, sample: Sample, alone: bool) -> anyhow::Result<()> {
    let api = api(client);
    until_done(async || {
        let Some(there) = api.get_opt(sample.name()).await? else {
            return Ok(true);
        };
        api.delete(sample.name(), &DeleteParams::default()).await?;
        if alone && !there.finalizers().is_empty() {
            let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            api.patch(sample.name(), &PatchParams::default(), &patch).await?;
        }
        // The hosts take their time.
        Ok(!alone)
    })
    .await
}

fn spec(sample: Sample, edit: Edit, own: &[u8]) -> Value {
    let (resource, name) = (sample.resource(), sample.name());
    let children = match sample {
        Sample::Puppet => json!([
            { "apiVersion": "v1", "kind": "ConfigMap" },
            { "apiVersion": "operator-host.dev/v1alpha1", "kind": "External" },
        ]),
        Sample::Decorated => json!([{ "apiVersion": "v1", "kind": "ConfigMap" }]),
        _ => json!([{ "apiVersion": "v1", "kind": "Pod" }]),
    };
    let stage = |mut objects: Value| {
        objects["wait"] = "300ms".into();
        objects
    };
    let mut kind = json!({ "apiVersion": resource.api_version, "kind": resource.kind });
    let mut spec = json!({
        "plugin": { "configMap": {
            "name": format!("{name}-plugin"), "namespace": files::NAMESPACE, "key": format!("{name}.wasm"),
        } },
        "children": children,
        "concurrency": if edit == Edit::Otherwise(sample) { 3 } else { 8 },
        "backoff": { "initial": "100ms", "max": "1s" },
        // Users break any comparison of what was Ready before with what is now, and a round ends with this version.
        "version": { "promote": Digest::of(own).to_string() },
    });
    if sample == Sample::Decorated {
        kind["selector"] = "decorate=yes".into();
        kind["fields"] = json!([r#"metadata.labels["seen"]"#]);
        spec["decorates"] = json!([kind]);
        // Users take the label off at any time, also while no host runs.
        spec["proving"] = json!({ "maxDeletions": "100%" });
    } else {
        spec["parent"] = kind;
        let stages = [
            json!({ "objects": 1 }),
            json!({ "percent": 50 }),
            json!({ "percent": 100 }),
        ];
        spec["proving"] = json!({ "stages": stages.map(stage) });
    }
    spec
}

fn api(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("operator-host.dev", "v1alpha1", "Controller");
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

/// Tries something until it is done. The API server may be stopped, and then does not even refuse.
async fn until_done(mut attempt: impl AsyncFnMut() -> kube::Result<bool>) -> anyhow::Result<()> {
    let tries = async {
        loop {
            match tokio::time::timeout(PATIENCE, attempt()).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false) | Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let done = tokio::time::timeout(LIMIT, tries).await;
    done.with_context(|| format!("the API server did not take it within {LIMIT:?}"))
}
