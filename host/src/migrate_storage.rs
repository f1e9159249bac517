//! Rewrites the stored resources of a kind in the version in which new ones are stored.
//!
//! An empty patch makes the API server read the resource, and write it again if the stored text is of another version. So
//! nothing that a user changes meanwhile is lost, and resources that are already migrated cost no write: an interrupted
//! migration can be started again. Only when every resource is written, the other versions are removed from
//! `status.storedVersions` of the definition, after which they may be removed from the definition itself.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use thiserror::Error;

use crate::cluster::client::Pace;
use crate::object::shorten;

/// Resources in one list.
const PAGE: u32 = 500;
/// Resources between two reports of the progress.
const STEP: usize = 100;
/// How often a resource is tried again that changes meanwhile, or that the API server is too busy to write.
const ATTEMPTS: u32 = 5;
/// Maximum number of failures that are reported.
const SHOWN: usize = 10;
/// Maximum length of a failure, in bytes.
const MESSAGE: usize = 500;

/// Why a migration did not finish.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The definition cannot be read.
    #[error(
        "cannot read the CustomResourceDefinition {name}: {error}; give its name as `kubectl get crd` shows it"
    )]
    Definition {
        /// Its name.
        name: String,
        /// Why.
        error: kube::Error,
    },
    /// The definition has no storage version.
    #[error("the CustomResourceDefinition {0} has no storage version")]
    NoStorage(String),
    /// A list failed.
    #[error("cannot list {name}: {error}")]
    List {
        /// The name of the definition.
        name: String,
        /// Why.
        error: kube::Error,
    },
    /// Some resources could not be written.
    #[error(
        "{count} resources were not written, so the stored versions stay as they are:\n  {}\ncorrect them, and start the \
         migration again",
        failures.join("\n  ")
    )]
    Resources {
        /// How many.
        count: usize,
        /// The first of them, each with the reason.
        failures: Vec<String>,
    },
    /// The definition was changed during the migration.
    #[error(
        "every resource is written in {version}, but the CustomResourceDefinition {name} was changed meanwhile: start the \
         migration again"
    )]
    Changed {
        /// The name of the definition.
        name: String,
        /// The storage version at the start.
        version: String,
    },
    /// The stored versions could not be written.
    #[error("cannot write `status.storedVersions` of the CustomResourceDefinition {name}: {error}")]
    Status {
        /// The name of the definition.
        name: String,
        /// Why.
        error: kube::Error,
    },
}

/// The result of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The storage version.
    pub version: String,
    /// The number of resources that were written, or that already had that version.
    pub resources: usize,
    /// The versions that are no longer stored.
    pub dropped: Vec<String>,
}

/// Migrates a kind, given the name of its definition, at most as fast as `pace` allows. Reports to
/// `progress` how many of how many resources are written.
///
/// # Errors
/// As described in [`MigrateError`].
pub async fn migrate(
    client: &Client,
    name: &str,
    pace: &Pace,
    progress: impl Fn(usize, usize),
) -> Result<Migrated, MigrateError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let read = async || {
        let definition = definitions.get(name).await;
        definition.map_err(|error| MigrateError::Definition {
            name: name.to_owned(),
            error,
        })
    };
    let definition = read().await?;
    let Some(version) = storage_version(&definition) else {
        return Err(MigrateError::NoStorage(name.to_owned()));
    };
    let others = stored(&definition).filter(|stored| *stored != version);
    let dropped: Vec<String> = others.map(str::to_owned).collect();
    if dropped.is_empty() {
        return Ok(Migrated {
            version: version.to_owned(),
            resources: 0,
            dropped,
        });
    }
    let resources = rewrite(client, &definition, version, pace, &progress).await?;

    let now = read().await?;
    if now.metadata.uid != definition.metadata.uid || storage_version(&now) != Some(version) {
        return Err(MigrateError::Changed {
            name: name.to_owned(),
            version: version.to_owned(),
        });
    }
    // With the resource version: a definition whose storage version changes now is not touched.
    let status = json!({
        "metadata": { "resourceVersion": now.metadata.resource_version },
        "status": { "storedVersions": [version] },
    });
    let written = definitions
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await;
    written.map_err(|error| MigrateError::Status {
        name: name.to_owned(),
        error,
    })?;
    Ok(Migrated {
        version: version.to_owned(),
        resources,
        dropped,
    })
}

/// Writes every resource, and returns their number.
async fn rewrite(
    client: &Client,
    definition: &CustomResourceDefinition,
    version: &str,
    pace: &Pace,
    progress: &impl Fn(usize, usize),
) -> Result<usize, MigrateError> {
    let spec = &definition.spec;
    let resource = ApiResource {
        group: spec.group.clone(),
        version: version.to_owned(),
        api_version: format!("{}/{version}", spec.group),
        kind: spec.names.kind.clone(),
        plural: spec.names.plural.clone(),
    };
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    // Names first: the pages of one list must be read within minutes.
    let mut names = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = all
            .list_metadata(&page)
            .await
            .map_err(|error| MigrateError::List {
                name: definition.name_any(),
                error,
            })?;
        names.extend(
            list.items
                .iter()
                .map(|object| (object.namespace(), object.name_any())),
        );
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    let (mut done, mut failures) = (0, Vec::new());
    for (index, (namespace, name)) in names.iter().enumerate() {
        if index > 0 && index % STEP == 0 {
            progress(index, names.len());
        }
        pace.wait().await;
        let one: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => all.clone(),
        };
        match write(&one, name, pace).await {
            Ok(()) => done += 1,
            Err(error) if failures.len() < SHOWN => {
                let namespace = namespace.as_ref().map(|namespace| format!("{namespace}/"));
                let message = shorten(&error.to_string(), MESSAGE);
                failures.push(format!("{}{name}: {message}", namespace.unwrap_or_default()));
            }
            Err(_) => {}
        }
    }
    match names.len() - done {
        0 => Ok(done),
        count => Err(MigrateError::Resources { count, failures }),
    }
}

/// Writes one resource. A deleted one is no error.
async fn write(api: &Api<DynamicObject>, name: &str, pace: &Pace) -> Result<(), kube::Error> {
    let nothing = Patch::Merge(json!({}));
    for attempt in 1.. {
        match api.patch_metadata(name, &PatchParams::default(), &nothing).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(kube::Error::Api(status))
                if matches!(status.code, 409 | 429 | 500..) && attempt < ATTEMPTS =>
            {
                tokio::time::sleep(std::time::Duration::from_secs(1 << attempt)).await;
                pace.wait().await;
            }
            result => return result.map(drop),
        }
    }
    Ok(())
}

fn storage_version(definition: &CustomResourceDefinition) -> Option<&str> {
    let versions = definition.spec.versions.iter();
    versions
        .filter(|version| version.storage)
        .map(|version| version.name.as_str())
        .next()
}

fn stored(definition: &CustomResourceDefinition) -> impl Iterator<Item = &str> {
    let status = definition.status.iter();
    status
        .flat_map(|status| status.stored_versions.iter().flatten())
        .map(String::as_str)
}
