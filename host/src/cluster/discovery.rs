//! Maps kinds to resources with the API server's discovery; plurals are never guessed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::core::GroupVersionKind;
use kube::discovery::Scope;
use kube::{Client, discovery};
use thiserror::Error;
use tokio::sync::watch;

use super::client::chain;
use super::refusal::refusal;
use crate::config::ControllerConfig;
use crate::metrics::Metrics;
use crate::object::NotServed;
use crate::plugin::contract::Kind;

/// Describes how to address the objects of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedKind {
    /// Group, version, kind and plural.
    pub api: kube::core::ApiResource,
    /// Whether the kind is namespaced.
    pub namespaced: bool,
    /// Whether the resource has the `status` subresource.
    pub has_status: bool,
}

/// Timeout of one discovery request.
const DISCOVERY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Why a kind could not be resolved.
#[derive(Clone, Debug, Error)]
pub enum KindError {
    /// The API server does not serve the kind.
    #[error(transparent)]
    Unknown(NotServed),
    /// Discovery failed.
    #[error("cannot look up the kind {kind} in the cluster: {message}")]
    Discovery {
        /// The kind.
        kind: Kind,
        /// The error of the API server or the connection.
        message: String,
    },
}

/// The resources that a controller needs, as the cluster serves them now.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The resource of its parents.
    pub parent: Arc<ResolvedKind>,
    /// Those of its children and reads, as far as they are served.
    pub others: BTreeMap<Kind, Arc<ResolvedKind>>,
    /// Why the remaining ones are not.
    pub not_served: BTreeMap<Kind, NotServed>,
}

impl Resolved {
    /// Reports whether the same kinds are served in the same way.
    #[must_use]
    pub fn serves_the_same(&self, other: &Self) -> bool {
        self.parent == other.parent && self.others == other.others
    }
}

/// Caches discovery results until [`Discovery::changed`] or [`Discovery::forget`] is called.
pub struct Discovery {
    client: Client,
    metrics: Arc<Metrics>,
    known: Mutex<HashMap<Kind, Arc<ResolvedKind>>>,
    generation: watch::Sender<u64>,
    /// How often the definitions of each group have changed.
    groups: Mutex<HashMap<String, u64>>,
}

impl Discovery {
    /// Creates an empty cache and sends no request.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            metrics,
            known: Mutex::default(),
            generation: watch::Sender::new(0),
            groups: Mutex::default(),
        }
    }

    /// Returns the resource of a kind.
    ///
    /// # Errors
    /// When the API server does not serve the kind or does not answer.
    pub async fn resolve(&self, kind: &Kind) -> Result<Arc<ResolvedKind>, KindError> {
        if let Some(resource) = self.lock().get(kind) {
            return Ok(Arc::clone(resource));
        }
        let found = self.ask(kind).await?;
        self.metrics
            .know_kind(&found.api.group, &found.api.plural, &found.api.kind);
        self.lock().insert(kind.clone(), Arc::clone(&found));
        Ok(found)
    }

    /// Asks the API server for the resource of a kind.
    async fn ask(&self, kind: &Kind) -> Result<Arc<ResolvedKind>, KindError> {
        let gvk = gvk(kind);
        let asked = tokio::time::timeout(DISCOVERY_TIMEOUT, discovery::pinned_kind(&self.client, &gvk)).await;
        let Ok(asked) = asked else {
            return Err(KindError::Discovery {
                kind: kind.clone(),
                message: format!("no answer within {DISCOVERY_TIMEOUT:?}"),
            });
        };
        match asked {
            Ok((api, capabilities)) => Ok(Arc::new(ResolvedKind {
                api,
                namespaced: capabilities.scope == Scope::Namespaced,
                has_status: capabilities
                    .subresources
                    .iter()
                    .any(|(sub, _)| sub.plural == "status"),
            })),
            Err(error) if is_missing(&error) => Err(KindError::Unknown(NotServed {
                kind: kind.clone(),
                versions: self.versions_of(kind).await,
            })),
            Err(error) => Err(KindError::Discovery {
                kind: kind.clone(),
                message: in_words(&error),
            }),
        }
    }

    /// Returns the API versions in which the API server serves a kind of this name in the same group; none when it does
    /// not answer, because only advice depends on it.
    async fn versions_of(&self, kind: &Kind) -> Vec<String> {
        let group = kind.group();
        // The core group has one version.
        if group.is_empty() {
            return Vec::new();
        }
        let ask = async {
            let request = Request::get(format!("/apis/{group}")).body(Vec::new()).ok()?;
            let group: APIGroup = self.client.request(request).await.ok()?;
            let mut versions = Vec::new();
            for version in group.versions {
                let version = version.group_version;
                let served = self.client.list_api_group_resources(&version).await.ok()?;
                if served.resources.iter().any(|resource| resource.kind == kind.kind) {
                    versions.push(version);
                }
            }
            Some(versions)
        };
        let asked = tokio::time::timeout(DISCOVERY_TIMEOUT, ask).await;
        asked.ok().flatten().unwrap_or_default()
    }

    /// Asks the API server again for every known kind that a definition could have changed, and calls
    /// [`Self::changed`] where it has: for hosts that may not watch definitions.
    pub async fn ask_again(&self) {
        let known: Vec<_> = {
            let known = self.lock();
            let of_definitions = known.iter().filter(|(kind, _)| kind.group().contains('.'));
            of_definitions
                .map(|(kind, was)| (kind.clone(), Arc::clone(was)))
                .collect()
        };
        for (kind, was) in known {
            match self.ask(&kind).await {
                Ok(now) if now == was => {}
                // The server is unreachable: keep the last result.
                Err(KindError::Discovery { .. }) => {}
                _ => self.changed(kind.group()),
            }
        }
    }

    /// Returns the resource of a controller's parents, and those of its other kinds that the API server serves. Work on
    /// objects of the remaining kinds fails and reports why.
    ///
    /// # Errors
    /// When the API server does not serve the parent's kind, or does not answer.
    pub async fn resolve_all(&self, config: &ControllerConfig) -> Result<Resolved, KindError> {
        let parent = self.resolve(&config.parent).await?;
        let (mut others, mut not_served) = (BTreeMap::new(), BTreeMap::new());
        for kind in config.children.keys().chain(&config.reads) {
            match self.resolve(kind).await {
                Ok(resource) => {
                    others.insert(kind.clone(), resource);
                }
                Err(KindError::Unknown(why)) => {
                    not_served.insert(kind.clone(), why);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Resolved {
            parent,
            others,
            not_served,
        })
    }

    /// Forgets the discovery results of a group whose CustomResourceDefinition was created, changed or deleted, and
    /// wakes the tasks that wait for a kind. Built-in kinds do not change while a server runs.
    pub fn changed(&self, group: &str) {
        self.lock().retain(|kind, _| gvk(kind).group != group);
        *self.groups().entry(group.to_owned()).or_default() += 1;
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Forgets the discovery result of one kind, which may be outdated.
    pub fn forget(&self, kind: &Kind) {
        self.lock().remove(kind);
    }

    /// Returns how often the definitions of a group have changed.
    pub fn changes_of(&self, group: &str) -> u64 {
        self.groups().get(group).copied().unwrap_or_default()
    }

    /// Returns how often the definitions of these kinds' groups have changed.
    pub fn changes<'a>(&self, kinds: impl Iterator<Item = &'a Kind>) -> u64 {
        kinds.map(|kind| self.changes_of(kind.group())).sum()
    }

    /// Returns a receiver that changes whenever [`Discovery::changed`] is called.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    fn groups(&self) -> std::sync::MutexGuard<'_, HashMap<String, u64>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Kind, Arc<ResolvedKind>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts the kind to kube's type.
#[must_use]
pub fn gvk(kind: &Kind) -> GroupVersionKind {
    let (group, version) = kind
        .api_version
        .split_once('/')
        .unwrap_or(("", &kind.api_version));
    GroupVersionKind::gvk(group, version, &kind.kind)
}

fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status, None),
        other => chain(other),
    }
}

fn is_missing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 404,
        kube::Error::Discovery(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};

    use hyper::Response;
    use kube::client::Body;
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    /// For hosts that may not watch definitions.
    #[tokio::test]
    async fn a_kind_that_is_served_otherwise_is_noticed_when_it_is_asked_for_again() {
        let has_status = Arc::new(AtomicBool::new(false));
        let served = Arc::clone(&has_status);
        let service = tower::service_fn(move |_: Request<Body>| {
            let resource = |name: &str| json!({ "name": name, "singularName": "", "kind": "Thing", "namespaced": true, "verbs": ["list"] });
            let mut resources = vec![resource("things")];
            if served.load(Ordering::Relaxed) {
                resources.push(resource("things/status"));
            }
            let list =
                json!({ "kind": "APIResourceList", "groupVersion": "g.dev/v1", "resources": resources });
            async move { Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))) }
        });
        let kinds = Discovery::new(Client::new(service, "default"), Arc::new(Metrics::unread()));
        let kind = Kind {
            api_version: "g.dev/v1".into(),
            kind: "Thing".into(),
        };
        assert!(!kinds.resolve(&kind).await.unwrap().has_status);
        kinds.ask_again().await;
        assert_eq!(kinds.changes_of("g.dev"), 0);
        has_status.store(true, Ordering::Relaxed);
        kinds.ask_again().await;
        assert_eq!(kinds.changes_of("g.dev"), 1);
        assert!(kinds.resolve(&kind).await.unwrap().has_status);
    }

    #[tokio::test]
    async fn a_kind_that_is_served_in_another_version_is_reported_with_it() {
        let service = tower::service_fn(|request: Request<Body>| {
            let resources = |version: &str, kinds: &[&str]| {
                let resources: Vec<_> = kinds
                    .iter()
                    .map(|kind| json!({ "name": kind.to_lowercase(), "singularName": "", "kind": kind, "namespaced": true, "verbs": ["list"] }))
                    .collect();
                json!({ "kind": "APIResourceList", "groupVersion": version, "resources": resources })
            };
            let version = |name: &str| json!({ "groupVersion": format!("batch/{name}"), "version": name });
            let answer = match request.uri().path() {
                "/apis/batch" => {
                    json!({ "kind": "APIGroup", "name": "batch", "versions": [version("v1"), version("v1beta1")] })
                }
                "/apis/batch/v1" => resources("batch/v1", &["Job"]),
                "/apis/batch/v1beta1" => resources("batch/v1beta1", &["CronJob"]),
                other => panic!("{other}"),
            };
            async move { Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes()))) }
        });
        let kinds = Discovery::new(Client::new(service, "default"), Arc::new(Metrics::unread()));
        let kind = Kind {
            api_version: "batch/v1".into(),
            kind: "CronJob".into(),
        };
        let error = kinds.resolve(&kind).await.unwrap_err().to_string();
        assert!(error.contains("it serves CronJob as batch/v1beta1"), "{error}");
    }

    #[test]
    fn a_refused_lookup_is_reported_in_the_server_s_words_and_with_what_to_do() {
        let refused = |code, message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(code);
            in_words(&kube::Error::Api(Box::new(status)))
        };
        assert_eq!(
            refused(403, "forbidden: User \"host\" cannot get path \"/apis/a/v1\""),
            "forbidden: User \"host\" cannot get path \"/apis/a/v1\"; give the host's role that permission"
        );
        assert_eq!(refused(500, "no etcd"), "no etcd");
    }
}
