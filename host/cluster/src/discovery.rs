//! Maps kinds to resources with the API server's discovery; plurals are never guessed.
//!
//! One request answers for all kinds of a group and version, and all who ask at the same time share it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResourceList};
use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use self::shared_requests::SharedRequests;
use super::client::chain;
use super::refusal::{asked_delay, refusal};
use operator_host_schema::status::StatusFields;

use operator_host_config::{ControllerConfig, object};
use operator_host_contract::Kind;
use operator_host_core::backoff::MAX_RETRY_AFTER;
use operator_host_core::object::{NotServed, group_of};
use operator_host_telemetry::metrics::Metrics;

mod defined;
mod shared_requests;

/// Describes how to address the objects of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedKind {
    /// Group, version, kind and plural.
    pub api: ApiResource,
    /// Whether the kind is namespaced.
    pub namespaced: bool,
    /// Whether the resource has the `status` subresource.
    pub has_status: bool,
}

impl ResolvedKind {
    /// Returns the resource of a kind of Kubernetes itself.
    pub fn built_in<K: kube::Resource<DynamicType = ()>>(namespaced: bool, has_status: bool) -> Self {
        Self {
            api: ApiResource::erase::<K>(&()),
            namespaced,
            has_status,
        }
    }

    /// Returns the name of the kind's CustomResourceDefinition, if it has one.
    pub fn definition_name(&self) -> String {
        format!("{}.{}", self.api.plural, self.api.group)
    }
}

/// Timeout of one discovery request.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a kind could not be resolved.
#[derive(Clone, Debug, Error)]
pub enum KindError {
    /// The API server does not serve the kind.
    #[error(transparent)]
    Unknown(NotServed),
    /// No CustomResourceDefinition serves the kind of the parents.
    #[error(
        "no CustomResourceDefinition serves {0}, so the kind belongs to another API server: the host reconciles custom \
         resources only, and leaves these objects alone; name a kind of your own as the `parent`"
    )]
    NotDefined(Kind),
    /// Discovery failed.
    #[error("cannot look up the kind {kind} in the cluster: {message}")]
    Discovery {
        /// The kind.
        kind: Kind,
        /// The error of the API server or the connection.
        message: String,
        /// The delay before the next request that the API server asks for.
        retry_after: Option<Duration>,
    },
}

impl KindError {
    /// Returns the delay before the next request that the API server asks for.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unknown(_) | Self::NotDefined(_) => None,
            Self::Discovery { retry_after, .. } => *retry_after,
        }
    }
}

/// The resources of a group and version, by the name of their kind.
type Resources = HashMap<String, Arc<ResolvedKind>>;

/// Why the API server gives no answer.
#[derive(Clone)]
struct Failure {
    /// The HTTP status; 0 without a response.
    code: u16,
    message: String,
    /// The delay before the next request that the API server asks for.
    retry_after: Option<Duration>,
}

impl Failure {
    const fn new(message: String) -> Self {
        Self {
            code: 0,
            message,
            retry_after: None,
        }
    }

    const fn is_not_served(&self) -> bool {
        self.code == 404
    }

    /// Reports whether a failure of this age counts, since the API server asked not to be asked again yet.
    fn counts(&self, age: Duration) -> bool {
        age < self.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER)
    }

    fn about(self, kind: &Kind) -> KindError {
        KindError::Discovery {
            kind: kind.clone(),
            message: self.message,
            retry_after: self.retry_after,
        }
    }
}

type Listing = Result<Arc<Resources>, Failure>;

/// The resources that a controller needs, as the cluster serves them now.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The resource of its parents.
    pub parent: Arc<ResolvedKind>,
    /// What the schema of their status has.
    pub status: StatusFields,
    /// Those of its children and reads, as far as they are served.
    pub others: BTreeMap<Kind, Arc<ResolvedKind>>,
    /// Why the remaining ones are not.
    pub not_served: BTreeMap<Kind, NotServed>,
    /// The kinds for which the API server has no answer now, for example because the one behind it is away.
    pub unanswered: BTreeMap<Kind, KindError>,
}

impl Resolved {
    /// Returns the resource of a kind of children or reads.
    ///
    /// # Errors
    /// When the cluster does not serve it.
    pub fn resource(&self, kind: &Kind) -> Result<&ResolvedKind, NotServed> {
        let why = || self.not_served.get(kind).cloned();
        match self.others.get(kind) {
            Some(resource) => Ok(resource),
            None => Err(why().unwrap_or_else(|| NotServed::new(kind.clone()))),
        }
    }

    /// Returns whether a kind of children or reads is namespaced.
    ///
    /// # Errors
    /// When the cluster does not serve it.
    pub fn namespaced(&self, kind: &Kind) -> Result<bool, NotServed> {
        self.resource(kind).map(|resource| resource.namespaced)
    }

    /// Reports whether every kind that was answered for is served as before.
    pub fn serves_the_same(&self, before: &Self) -> bool {
        let others = before.others.iter();
        let others = others.filter(|(kind, _)| !self.unanswered.contains_key(*kind));
        self.parent == before.parent && self.status == before.status && self.others.iter().eq(others)
    }
}

/// How often the definitions of each group have changed.
pub type Changes = HashMap<String, u64>;

/// Returns the kind of the Controllers of the cluster.
pub fn controllers() -> ResolvedKind {
    let kind = GroupVersionKind::gvk(object::GROUP, object::VERSION, object::KIND);
    ResolvedKind {
        api: ApiResource::from_gvk_with_plural(&kind, object::PLURAL),
        namespaced: false,
        has_status: true,
    }
}

/// Caches discovery results until [`Discovery::changed`] or [`Discovery::forget`] is called.
pub struct Discovery {
    client: Client,
    metrics: Arc<Metrics>,
    /// By API version.
    resources: SharedRequests<Listing>,
    /// The API versions of each group. They serve only as advice, so they are never kept.
    versions: SharedRequests<Arc<[String]>>,
    /// What the definitions of the parents' kinds say, by API version and plural.
    defined: SharedRequests<defined::DefinedStatus>,
    changes: watch::Sender<Changes>,
}

impl Discovery {
    /// Creates an empty cache and sends no request.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            metrics,
            resources: SharedRequests::default(),
            versions: SharedRequests::default(),
            defined: SharedRequests::default(),
            changes: watch::Sender::default(),
        }
    }

    /// Returns the resource of a kind.
    ///
    /// # Errors
    /// When the API server does not serve the kind or does not answer.
    pub async fn resolve(&self, kind: &Kind) -> Result<Arc<ResolvedKind>, KindError> {
        self.resolve_since(kind, Instant::now()).await
    }

    /// Does the same, and takes any answer that was asked for since then.
    async fn resolve_since(&self, kind: &Kind, since: Instant) -> Result<Arc<ResolvedKind>, KindError> {
        match self.resources_with(kind, since).await {
            Ok(resources) => {
                if let Some(found) = resources.get(&kind.kind) {
                    let api = &found.api;
                    self.metrics.know_kind(&api.group, &api.plural, &api.kind);
                    return Ok(Arc::clone(found));
                }
            }
            Err(failure) if failure.is_not_served() => {}
            Err(failure) => return Err(failure.about(kind)),
        }
        Err(KindError::Unknown(NotServed {
            kind: kind.clone(),
            versions: self.versions_of(kind, since).await,
        }))
    }

    /// Returns the resources of the kind's API version. Answers without the kind are not kept: it may be served since.
    /// Refusals are, for as long as the API server asks not to be asked again.
    async fn resources_with(&self, kind: &Kind, since: Instant) -> Listing {
        let is_enough = |answer: &Listing, age: Duration| {
            age < since.elapsed()
                || match answer {
                    Ok(resources) => resources.contains_key(&kind.kind),
                    Err(failure) => failure.counts(age),
                }
        };
        let ask = || ask(self.client.clone(), kind.api_version.clone());
        self.resources.get(&kind.api_version, is_enough, ask).await
    }

    /// Returns the API versions in which the API server serves a kind of this name in the same group; none when it does
    /// not answer, because only advice depends on it.
    async fn versions_of(&self, kind: &Kind, since: Instant) -> Vec<String> {
        let group = kind.group();
        // The core group has one version.
        if group.is_empty() {
            return Vec::new();
        }
        let ask = || ask_versions(self.client.clone(), group.to_owned());
        let mut served = Vec::new();
        let is_enough = |_: &Arc<[String]>, age: Duration| age < since.elapsed();
        for version in self.versions.get(group, is_enough, ask).await.iter() {
            let there = Kind::new(version.clone(), kind.kind.clone());
            match self.resources_with(&there, since).await {
                Ok(resources) if resources.contains_key(&kind.kind) => served.push(version.clone()),
                Err(failure) if !failure.is_not_served() => return Vec::new(),
                Ok(_) | Err(_) => {}
            }
        }
        served
    }

    /// Returns which of these kinds the API server serves: by one look at all groups, and by one at each API version that is
    /// there. So those that are not there cost nothing.
    ///
    /// # Errors
    /// Why it does not answer.
    pub async fn served<'a>(
        &self,
        kinds: impl Iterator<Item = &'a Kind>,
    ) -> Result<BTreeSet<&'a Kind>, String> {
        let since = Instant::now();
        let groups = answer(self.client.list_api_groups()).await;
        let groups = groups.map_err(|failure| failure.message)?.groups;
        let versions = groups.into_iter().flat_map(|group| group.versions);
        let versions: HashSet<_> = versions.map(|version| version.group_version).collect();
        let mut served = BTreeSet::new();
        // The core group is in no list of groups.
        let is_listed = |kind: &&Kind| kind.group().is_empty() || versions.contains(&kind.api_version);
        for kind in kinds.filter(is_listed) {
            let resources = self.resources_with(kind, since).await;
            if resources.is_ok_and(|resources| resources.contains_key(&kind.kind)) {
                served.insert(kind);
            }
        }
        Ok(served)
    }

    /// Asks the API server again for everything that is known and that a definition could have changed, and calls
    /// [`Self::changed`] where it has: for hosts that may not watch definitions.
    pub async fn ask_again(&self) {
        for (api_version, was) in self.resources.known() {
            let group = group_of(&api_version).to_owned();
            let Some(was) = was.ok().filter(|_| group.contains('.')) else {
                continue;
            };
            match ask(self.client.clone(), api_version).await {
                Ok(now) if now == was => {}
                // The server is unreachable: keep the last result.
                Err(failure) if !failure.is_not_served() => {}
                Ok(_) | Err(_) => self.changed(&group),
            }
        }
    }

    /// Returns the resource of a controller's parents, and those of its other kinds that the API server serves. Work on
    /// objects of the remaining kinds fails and reports why.
    ///
    /// # Errors
    /// When the API server does not serve the parent's kind, no definition serves it, or the server does not answer about
    /// that kind.
    pub async fn resolve_all(&self, config: &ControllerConfig) -> Result<Resolved, KindError> {
        // One look at an API version serves all of its kinds, those that are not there too.
        let since = Instant::now();
        let mut parent = self.resolve_since(&config.parent, since).await?;
        let status = match config.decorates {
            None => self.status_fields(&config.parent, &parent).await?,
            // Others write it. What the host knows about its own conditions, it tells elsewhere.
            Some(_) => {
                Arc::make_mut(&mut parent).has_status = false;
                StatusFields::all()
            }
        };
        let (mut others, mut not_served, mut unanswered) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for kind in config.rules.children.keys().chain(&config.reads) {
            match self.resolve_since(kind, since).await {
                Ok(resource) => {
                    others.insert(kind.clone(), resource);
                }
                Err(KindError::Unknown(why)) => {
                    not_served.insert(kind.clone(), why);
                }
                Err(error) => {
                    unanswered.insert(kind.clone(), error);
                }
            }
        }
        Ok(Resolved {
            parent,
            status,
            others,
            not_served,
            unanswered,
        })
    }

    /// Forgets the discovery results of a group whose CustomResourceDefinition was created, changed or deleted, and
    /// wakes the tasks that wait for a kind. Built-in kinds do not change while a server runs.
    pub fn changed(&self, group: &str) {
        self.resources
            .forget(|api_version| group_of(api_version) == group);
        self.defined.forget(|api_version| group_of(api_version) == group);
        self.changes
            .send_modify(|changes| *changes.entry(group.to_owned()).or_default() += 1);
    }

    /// Forgets the discovery results of the kind's API version, which are outdated.
    pub fn forget(&self, kind: &Kind) {
        self.resources
            .forget(|api_version| api_version == kind.api_version);
    }

    /// Forgets the discovery results of the kind's API version that were asked for at least this long ago: they may be
    /// outdated. Those who call this one after the other share a result.
    pub fn forget_older(&self, kind: &Kind, age: Duration) {
        self.resources.forget_older(&kind.api_version, age);
    }

    /// Returns how often the definitions of a group have changed.
    pub fn changes_of(&self, group: &str) -> u64 {
        self.changes.borrow().get(group).copied().unwrap_or_default()
    }

    /// Returns how often the definitions of these kinds' groups have changed.
    pub fn changes<'a>(&self, kinds: impl Iterator<Item = &'a Kind>) -> u64 {
        kinds.map(|kind| self.changes_of(kind.group())).sum()
    }

    /// Returns a receiver that changes whenever [`Discovery::changed`] is called.
    pub fn subscribe(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }
}

/// Asks the API server for the resources of an API version.
async fn ask(client: Client, api_version: String) -> Listing {
    let request = async {
        if api_version.contains('/') {
            client.list_api_group_resources(&api_version).await
        } else {
            client.list_core_api_resources(&api_version).await
        }
    };
    let list = answer(request).await?;
    Ok(Arc::new(resources_in(&list, &api_version)))
}

/// Waits for an answer of the API server.
async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(DISCOVERY_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(Failure {
            code: status.code,
            message: refusal(&status, None),
            retry_after: asked_delay(&status),
        }),
        Ok(Err(other)) => Err(Failure::new(chain(&other))),
        Err(_elapsed) => Err(Failure::new(format!("no answer within {DISCOVERY_TIMEOUT:?}"))),
    }
}

fn resources_in(list: &APIResourceList, api_version: &str) -> Resources {
    let names: HashSet<&str> = list.resources.iter().map(|it| it.name.as_str()).collect();
    let mut resources = Resources::new();
    for resource in list.resources.iter().filter(|it| !it.name.contains('/')) {
        let gvk = gvk_of(api_version, &resource.kind);
        resources.entry(gvk.kind.clone()).or_insert_with(|| {
            Arc::new(ResolvedKind {
                api: ApiResource::from_gvk_with_plural(&gvk, &resource.name),
                namespaced: resource.namespaced,
                has_status: names.contains(format!("{}/status", resource.name).as_str()),
            })
        });
    }
    resources
}

/// Asks the API server for the API versions of a group; none when it does not answer.
async fn ask_versions(client: Client, group: String) -> Arc<[String]> {
    let Ok(request) = Request::get(format!("/apis/{group}")).body(Vec::new()) else {
        return Arc::default();
    };
    let answer = answer(client.request::<APIGroup>(request)).await;
    let versions = answer.ok().map(|group| group.versions);
    let versions = versions.into_iter().flatten();
    versions.map(|version| version.group_version).collect()
}

fn gvk_of(api_version: &str, kind: &str) -> GroupVersionKind {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    GroupVersionKind::gvk(group, version, kind)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{answering, refusal, resources};

    /// Returns what asks an API server that answers like this.
    fn discovery(answer: impl Fn(&str) -> (u16, Value) + Send + 'static) -> Discovery {
        Discovery::new(answering(answer), Arc::new(Metrics::unread()))
    }

    /// For hosts that may not watch definitions.
    #[tokio::test]
    async fn a_kind_that_is_served_otherwise_is_noticed_when_it_is_asked_for_again() {
        let has_status = Arc::new(AtomicBool::new(false));
        let served = Arc::clone(&has_status);
        let kinds = discovery(move |_| {
            let all = [("things", "Thing"), ("things/status", "Thing")];
            let count = if served.load(Ordering::Relaxed) { 2 } else { 1 };
            (200, resources("g.dev/v1", &all[..count]))
        });
        let kind = Kind::new("g.dev/v1", "Thing");
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
        let kinds = discovery(|path| {
            let version = |name: &str| json!({ "groupVersion": format!("batch/{name}"), "version": name });
            let answer = match path {
                "/apis/batch" => {
                    json!({ "kind": "APIGroup", "name": "batch", "versions": [version("v1"), version("v1beta1")] })
                }
                "/apis/batch/v1" => resources("batch/v1", &[("jobs", "Job")]),
                "/apis/batch/v1beta1" => resources("batch/v1beta1", &[("cronjobs", "CronJob")]),
                other => panic!("{other}"),
            };
            (200, answer)
        });
        let kind = Kind::new("batch/v1", "CronJob");
        let error = kinds.resolve(&kind).await.unwrap_err().to_string();
        assert!(error.contains("it serves CronJob as batch/v1beta1"), "{error}");
    }

    /// Answers, and counts the requests for each path.
    fn counting(code: u16) -> (Discovery, Arc<Mutex<BTreeMap<String, u32>>>) {
        let counts = Arc::<Mutex<BTreeMap<String, u32>>>::default();
        let seen = Arc::clone(&counts);
        let kinds = discovery(move |path| {
            *seen.lock().unwrap().entry(path.to_owned()).or_default() += 1;
            let kinds = [("pods", "Pod"), ("secrets", "Secret"), ("things", "Thing")];
            match code {
                200 => (200, resources("v1", &kinds)),
                code => {
                    let mut answer = refusal(code, "busy");
                    answer.1["details"]["retryAfterSeconds"] = if code == 429 { 7 } else { 0 }.into();
                    answer
                }
            }
        });
        (kinds, counts)
    }

    #[tokio::test]
    async fn one_look_tells_which_of_many_kinds_are_served() {
        let counts = Arc::<Mutex<BTreeMap<String, u32>>>::default();
        let seen = Arc::clone(&counts);
        let kinds = discovery(move |path| {
            *seen.lock().unwrap().entry(path.to_owned()).or_default() += 1;
            let version = json!({ "groupVersion": "g.dev/v1", "version": "v1" });
            let answer = match path {
                "/apis" => {
                    json!({ "kind": "APIGroupList", "groups": [{ "name": "g.dev", "versions": [version] }] })
                }
                _ => resources("g.dev/v1", &[("things", "Thing")]),
            };
            (200, answer)
        });
        let mut asked = vec![kind("g.dev/v1", "Thing"), kind("g.dev/v2", "Thing")];
        for number in 0..100 {
            asked.push(kind("g.dev/v1", &format!("K{number}")));
            asked.push(kind(&format!("g{number}.dev/v1"), "Thing"));
        }
        let served = kinds.served(asked.iter()).await.unwrap();
        assert_eq!(served.into_iter().collect::<Vec<_>>(), [&asked[0]]);
        let once = [("/apis".to_owned(), 1), ("/apis/g.dev/v1".to_owned(), 1)];
        assert_eq!(*counts.lock().unwrap(), BTreeMap::from(once));
        // A controller that makes a hundred kinds of one API version that is not there asks as rarely.
        counts.lock().unwrap().clear();
        let since = Instant::now();
        for asked in asked.iter().filter(|kind| kind.kind.starts_with('K')) {
            assert!(kinds.resolve_since(asked, since).await.is_err());
        }
        assert_eq!(counts.lock().unwrap()["/apis/g.dev/v1"], 1);
    }

    fn kind(api_version: &str, kind: &str) -> Kind {
        Kind::new(api_version, kind)
    }

    #[tokio::test]
    async fn a_hundred_controllers_ask_once_for_each_api_version() {
        let (kinds, counts) = counting(200);
        let resolve =
            async |api_version: &str, name: &str| kinds.resolve(&kind(api_version, name)).await.unwrap();
        futures::future::join_all((0..100).map(|_| async {
            resolve("v1", "Pod").await;
            resolve("v1", "Secret").await;
            resolve("g.dev/v1", "Thing").await;
        }))
        .await;
        let once = || BTreeMap::from([("/api/v1".to_owned(), 1), ("/apis/g.dev/v1".to_owned(), 1)]);
        assert_eq!(*counts.lock().unwrap(), once());

        // Each of them checks whether its kinds are served otherwise by now.
        futures::future::join_all((0..100).map(|_| async {
            kinds.forget_older(&kind("g.dev/v1", "Thing"), Duration::ZERO);
            resolve("g.dev/v1", "Thing").await;
        }))
        .await;
        let mut expected = once();
        expected.insert("/apis/g.dev/v1".to_owned(), 2);
        assert_eq!(*counts.lock().unwrap(), expected);

        kinds.changed("g.dev");
        resolve("v1", "Pod").await;
        resolve("g.dev/v1", "Thing").await;
        expected.insert("/apis/g.dev/v1".to_owned(), 3);
        assert_eq!(
            *counts.lock().unwrap(),
            expected,
            "a change concerns its own group"
        );
    }

    #[tokio::test]
    async fn a_kind_that_was_not_served_is_asked_for_again() {
        let (kinds, counts) = counting(200);
        kinds.resolve(&kind("v1", "Pod")).await.unwrap();
        let missing = kind("v1", "Nothing");
        for count in 2..4 {
            let error = kinds.resolve(&missing).await.unwrap_err();
            assert!(matches!(error, KindError::Unknown(_)), "{error}");
            assert_eq!(counts.lock().unwrap()["/api/v1"], count);
        }
    }

    #[tokio::test]
    async fn a_failure_is_shared_names_each_kind_and_is_kept_as_long_as_the_api_server_asks() {
        let (kinds, counts) = counting(429);
        let (pod, secret) = (kind("v1", "Pod"), kind("v1", "Secret"));
        for _ in 0..2 {
            let (one, other) = tokio::join!(kinds.resolve(&pod), kinds.resolve(&secret));
            for (error, name) in [(one, "Pod"), (other, "Secret")] {
                let error = error.unwrap_err();
                assert_eq!(error.retry_after(), Some(Duration::from_secs(7)), "{error:?}");
                assert!(error.to_string().contains(name), "{error}");
            }
            assert_eq!(counts.lock().unwrap()["/api/v1"], 1);
        }
        let (kinds, counts) = counting(500);
        for count in 1..3 {
            assert!(kinds.resolve(&pod).await.is_err());
            assert_eq!(counts.lock().unwrap()["/api/v1"], count);
        }
    }

    /// A controller may be removed while it asks.
    #[tokio::test]
    async fn a_request_that_nobody_waits_for_any_more_ends_and_serves_the_next() {
        let (kinds, counts) = counting(200);
        let pod = kind("v1", "Pod");
        let asked = async {
            while counts.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = asked => {}
            _ = kinds.resolve(&pod) => panic!("the answer is there already"),
        }
        while kinds.resources.known().is_empty() {
            tokio::task::yield_now().await;
        }
        kinds.resolve(&pod).await.unwrap();
        assert_eq!(counts.lock().unwrap()["/api/v1"], 1);
    }

    #[tokio::test]
    async fn a_refused_lookup_is_reported_in_the_server_s_words_and_with_what_to_do() {
        let refused = async |code: u16, message: &'static str| {
            let kinds = discovery(move |_| refusal(code, message));
            kinds.resolve(&kind("a/v1", "A")).await.unwrap_err().to_string()
        };
        let error = refused(403, "forbidden: User \"host\" cannot get path \"/apis/a/v1\"").await;
        assert!(
            error.ends_with(
                ": forbidden: User \"host\" cannot get path \"/apis/a/v1\"; give the host's role that permission"
            ),
            "{error}"
        );
        let error = refused(500, "no etcd").await;
        assert!(error.ends_with(": no etcd"), "{error}");
    }
}
