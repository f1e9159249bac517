//! Runs a Deployment on this machine: writes the volumes of its pod as files and returns its environment.
//!
//! For programs that a control plane without nodes cannot run. There is no isolation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, KeyToPath, PodSpec, Volume};
use kube::api::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::manifests;
use anyhow::{Context as _, bail};

/// Describes how to start the first container of a Deployment outside of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployed {
    /// The container's environment, as far as the Deployment contains it, with its mounts replaced by local paths.
    pub environment: Vec<(String, PathBuf)>,
    /// Namespace and name of its ServiceAccount.
    pub account: (String, String),
}

/// Renders a kustomization with `kubectl kustomize` into the file `into`, and returns its objects.
pub fn kustomize(folder: &Path, into: &Path) -> anyhow::Result<Vec<DynamicObject>> {
    let what = || {
        format!(
            "make the manifests of {} with kubectl kustomize",
            folder.display()
        )
    };
    let output = Command::new("kubectl")
        .arg("kustomize")
        .arg(folder)
        .output()
        .with_context(what)?;
    if !output.status.success() {
        bail!("{}: {}", what(), String::from_utf8_lossy(&output.stderr));
    }
    std::fs::write(into, output.stdout).with_context(|| format!("write {}", into.display()))?;
    manifests::read(into)
}

/// Returns the minor version of the API server, such as 36; 0 if it is no number.
pub async fn minor(client: &Client) -> anyhow::Result<u32> {
    let minor = client.apiserver_version().await?.minor;
    let digits = minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    Ok(digits.parse().unwrap_or_default())
}

/// Converts objects to versions that this API server serves. Returns whether the server is an old one. Kubernetes
/// 1.20 has no `policy/v1` yet, and 1.25 no longer has `policy/v1beta1`.
pub async fn for_server(client: &Client, objects: &mut [DynamicObject]) -> anyhow::Result<bool> {
    let is_old = minor(client).await? < 21;
    if is_old {
        objects.iter_mut().for_each(for_old_servers);
    }
    Ok(is_old)
}

/// Converts an object to the version that an old API server serves: `policy/v1` exists since Kubernetes 1.21,
/// before that its PodDisruptionBudget is in `policy/v1beta1`; `matchConditions` of webhooks exist since 1.28.
pub fn for_old_servers(object: &mut DynamicObject) {
    if let Some(types) = &mut object.types
        && types.api_version == "policy/v1"
    {
        types.api_version = "policy/v1beta1".to_owned();
    }
    let webhooks = object.data.get_mut("webhooks").and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten() {
        if let Some(webhook) = webhook.as_object_mut() {
            webhook.remove("matchConditions");
        }
    }
}

/// Writes the volumes of a Deployment's first container below `root`.
pub async fn unpack(client: &Client, namespace: &str, name: &str, root: &Path) -> anyhow::Result<Deployed> {
    let deployment = Api::<Deployment>::namespaced(client.clone(), namespace)
        .get(name)
        .await?;
    let pod = deployment.spec.template.spec.unwrap_or_default();
    let PodSpec {
        containers,
        volumes,
        service_account_name,
        ..
    } = pod;
    let container = containers.into_iter().next().unwrap_or_default();
    let config_maps_of = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let mut mounts = BTreeMap::new();
    for mount in container.volume_mounts.into_iter().flatten() {
        let here = root.join(mount.mount_path.trim_start_matches('/'));
        std::fs::create_dir_all(&here).with_context(|| format!("create {}", here.display()))?;
        let volume = volumes.iter().flatten().find(|volume| volume.name == mount.name);
        for source in volume.map(sources).unwrap_or_default() {
            match config_maps_of.get_opt(&source.config_map).await? {
                Some(object) => write(&object, &source, &here)?,
                None if source.optional => {}
                None => {
                    bail!(
                        "Deployment {name}: its volume {} needs the ConfigMap {}",
                        mount.name,
                        source.config_map
                    );
                }
            }
        }
        mounts.insert(mount.mount_path, here);
    }
    let here = |text: &str| {
        let within = |(mount, here): (&String, &PathBuf)| {
            let rest = Path::new(text).strip_prefix(mount).ok()?;
            Some(if rest.as_os_str().is_empty() {
                here.clone()
            } else {
                here.join(rest)
            })
        };
        mounts
            .iter()
            .find_map(within)
            .unwrap_or_else(|| PathBuf::from(text))
    };
    let literal = container.env.into_iter().flatten().filter_map(|variable| {
        let value = variable.value.filter(|value| !value.contains("$("))?;
        Some((variable.name, here(&value)))
    });
    Ok(Deployed {
        environment: literal.collect(),
        account: (
            namespace.to_owned(),
            service_account_name.unwrap_or_else(|| "default".to_owned()),
        ),
    })
}

/// A ConfigMap that is mounted as a volume.
struct Source {
    config_map: String,
    /// Whether it, or one of its items, may be missing.
    optional: bool,
    /// Keys and paths; `None` for every key under its own name.
    items: Option<Vec<KeyToPath>>,
}

fn sources(volume: &Volume) -> Vec<Source> {
    let source = |name: &str, optional: Option<bool>, items: &Option<Vec<KeyToPath>>| Source {
        config_map: name.to_owned(),
        optional: optional == Some(true),
        items: items.clone(),
    };
    let own = volume
        .config_map
        .iter()
        .map(|from| source(&from.name, from.optional, &from.items));
    let projected = volume
        .projected
        .iter()
        .flat_map(|projected| projected.sources.iter().flatten());
    let projected = projected.filter_map(|source| source.config_map.as_ref());
    let projected = projected.map(|from| source(&from.name, from.optional, &from.items));
    own.chain(projected).collect()
}

fn write(config_map: &ConfigMap, source: &Source, folder: &Path) -> anyhow::Result<()> {
    let texts = config_map
        .data
        .iter()
        .flatten()
        .map(|(name, text)| (name, text.as_bytes()));
    let bytes = config_map
        .binary_data
        .iter()
        .flatten()
        .map(|(name, bytes)| (name, bytes.0.as_slice()));
    let content: BTreeMap<&String, &[u8]> = texts.chain(bytes).collect();
    let files: Vec<(&String, &String)> = match &source.items {
        None => content.keys().map(|key| (*key, *key)).collect(),
        Some(items) => items.iter().map(|item| (&item.key, &item.path)).collect(),
    };
    for (key, path) in files {
        let Some(content) = content.get(key) else {
            if source.optional {
                continue;
            }
            bail!(
                "ConfigMap {}: it has no key {key}, which a volume shows",
                source.config_map
            );
        };
        let file = folder.join(path);
        std::fs::write(&file, content).with_context(|| {
            format!(
                "write {} of the ConfigMap {}",
                file.display(),
                config_map.name_any()
            )
        })?;
    }
    Ok(())
}
