//! The loop: reacts to events with one request per object at a time.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use tokio::{sync::Semaphore, time::Instant};

use super::{NODE, Options, claims, pods};

/// Maximum number of concurrent requests.
const CONCURRENCY: usize = 8;
/// Delay after a failure that is not the object's own, such as an API server that restarts.
const RETRY: Duration = Duration::from_millis(200);

/// How long the end of a deletion may take.
const LEFT: Duration = Duration::from_secs(1);

/// The annotation that is changed on a pod whose deletion is stuck.
const CLEARED: &str = "control-plane/cleared";

/// An object's UID: a recreated object of the same name is another object.
type Uid = String;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Pod,
    Claim,
}

/// An object, or its turn to be checked.
type Key = (Kind, Uid);

/// The result of a future in the loop.
enum Done {
    /// A request was answered. `true`: check the object again, since no event will follow.
    Acted(Key, bool),
    /// The time that an object waited for has come.
    Time(Key),
}

struct Work<'a> {
    client: Client,
    options: &'a Options,
    pods: HashMap<Uid, Arc<Pod>>,
    claims: HashMap<Uid, Arc<PersistentVolumeClaim>>,
    /// The resource version for which a request was made. The object is left alone until the request is answered
    /// and an event has delivered another version.
    acting: HashSet<Key>,
    acted_on: HashMap<Key, String>,
    /// When a pod may start.
    start_at: HashMap<Uid, Instant>,
    /// When a pod of a Job ends.
    end_at: HashMap<Uid, Instant>,
    /// When a pod whose deletion is complete except for the last step counts as stuck.
    left_at: HashMap<Uid, Instant>,
    permits: Arc<Semaphore>,
    pending: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Number of addresses assigned so far.
    addresses: u32,
}

/// Runs until it is dropped.
pub(super) async fn run(client: Client, options: &Options) {
    let pods = Api::<Pod>::all(client.clone());
    let claims = Api::<PersistentVolumeClaim>::all(client.clone());
    let mut pods = watcher(pods, watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut claims = watcher(claims, watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut work = Work {
        client,
        options,
        pods: HashMap::new(),
        claims: HashMap::new(),
        acting: HashSet::new(),
        acted_on: HashMap::new(),
        start_at: HashMap::new(),
        end_at: HashMap::new(),
        left_at: HashMap::new(),
        permits: Arc::new(Semaphore::new(CONCURRENCY)),
        pending: FuturesUnordered::new(),
        addresses: 0,
    };
    let (mut pods_before, mut claims_before) = (HashSet::new(), HashSet::new());
    loop {
        tokio::select! {
            Some(event) = pods.next() => match event {
                Ok(watcher::Event::Init) => pods_before = work.pods.keys().cloned().collect(),
                Ok(watcher::Event::InitApply(pod) | watcher::Event::Apply(pod)) => {
                    pods_before.remove(&pod.uid().unwrap_or_default());
                    work.pod_changed(pod);
                }
                Ok(watcher::Event::Delete(pod)) => work.pod_gone(&pod.uid().unwrap_or_default()),
                Ok(watcher::Event::InitDone) => pods_before.drain().for_each(|uid| work.pod_gone(&uid)),
                Err(error) => tracing::debug!(%error, "the watch on pods failed; it starts again"),
            },
            Some(event) = claims.next() => match event {
                Ok(watcher::Event::Init) => claims_before = work.claims.keys().cloned().collect(),
                Ok(watcher::Event::InitApply(claim) | watcher::Event::Apply(claim)) => {
                    claims_before.remove(&claim.uid().unwrap_or_default());
                    work.claim_changed(claim);
                }
                Ok(watcher::Event::Delete(claim)) => work.claim_gone(claim.uid().unwrap_or_default()),
                Ok(watcher::Event::InitDone) => claims_before.drain().for_each(|uid| work.claim_gone(uid)),
                Err(error) => tracing::debug!(%error, "the watch on claims failed; it starts again"),
            },
            Some(done) = work.pending.next() => work.done(done),
        }
    }
}

impl Work<'_> {
    fn pod_changed(&mut self, pod: Pod) {
        let Some(uid) = pod.uid() else { return };
        self.pods.insert(uid.clone(), Arc::new(pod));
        self.look_at_pod(&uid);
    }

    fn pod_gone(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.start_at.remove(uid);
        self.end_at.remove(uid);
        self.left_at.remove(uid);
        self.acted_on.remove(&(Kind::Pod, uid.to_owned()));
    }

    fn claim_changed(&mut self, claim: PersistentVolumeClaim) {
        let Some(uid) = claim.uid() else { return };
        let was_bound = self.claims.get(&uid).is_some_and(|claim| claims::is_bound(claim));
        let (namespace, name) = (claim.namespace(), claim.name_any());
        let newly_bound = claims::is_bound(&claim) && !was_bound;
        self.claims.insert(uid.clone(), Arc::new(claim));
        self.look_at_claim(&uid);
        if newly_bound {
            let mounts = |pod: &Pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| pods::claims(spec).any(|it| it == name))
            };
            let waiting = self
                .pods
                .iter()
                .filter(|(_, pod)| pod.namespace() == namespace && mounts(pod));
            let waiting: Vec<Uid> = waiting.map(|(uid, _)| uid.clone()).collect();
            waiting.iter().for_each(|uid| self.look_at_pod(uid));
        }
    }

    fn claim_gone(&mut self, uid: Uid) {
        let key = (Kind::Claim, uid);
        self.acted_on.remove(&key);
        if self.claims.remove(&key.1).is_some() {
            let (client, uid) = (self.client.clone(), key.1.clone());
            self.send(key, async move { claims::release(&client, &uid).await });
        }
    }

    fn done(&mut self, done: Done) {
        let key = match done {
            Done::Time(key) => key,
            Done::Acted(key, again) => {
                self.acting.remove(&key);
                if again {
                    self.acted_on.remove(&key);
                }
                key
            }
        };
        match key.0 {
            Kind::Pod => self.look_at_pod(&key.1),
            Kind::Claim => self.look_at_claim(&key.1),
        }
    }

    fn look_at_pod(&mut self, uid: &str) {
        let key = (Kind::Pod, uid.to_owned());
        let Some(pod) = self.pods.get(uid).cloned() else {
            return;
        };
        if !self.may_act(&key, pod.resource_version().as_deref()) {
            return;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let bound = |name: &str| {
            let mut claims = self.claims.values();
            claims.any(|it| {
                it.name_any() == name && it.namespace().as_ref() == Some(&namespace) && claims::is_bound(it)
            })
        };
        let Some(step) = pods::next(&pod, bound) else {
            return;
        };
        let wait = match step {
            pods::Step::Run { first: true } => Some((&mut self.start_at, self.options.ready_after)),
            pods::Step::End { .. } => Some((&mut self.end_at, self.options.ends_after)),
            // The last step follows by itself, unless the API server lost its store at that moment.
            pods::Step::Clear => Some((&mut self.left_at, LEFT)),
            _ => None,
        };
        if let Some((moments, delay)) = wait {
            let now = Instant::now();
            let new = !moments.contains_key(uid);
            let at = *moments.entry(uid.to_owned()).or_insert(now + delay);
            if at > now {
                if new {
                    self.pending
                        .push(tokio::time::sleep_until(at).map(|()| Done::Time(key)).boxed());
                }
                return;
            }
        }
        if let pods::Step::Run { first: true } = step {
            self.addresses += 1;
        }
        let version = pod.resource_version().unwrap_or_default();
        self.acted_on.insert(key.clone(), version);
        let (client, number) = (self.client.clone(), self.addresses);
        self.send(key, async move {
            act_on_pod(&client, &namespace, &pod, step, number).await
        });
    }

    fn look_at_claim(&mut self, uid: &str) {
        let key = (Kind::Claim, uid.to_owned());
        let Some(claim) = self.claims.get(uid).cloned() else {
            return;
        };
        if !self.may_act(&key, claim.resource_version().as_deref()) {
            return;
        }
        let Some(step) = claims::next(&claim) else { return };
        self.acted_on
            .insert(key.clone(), claim.resource_version().unwrap_or_default());
        let client = self.client.clone();
        self.send(key, async move { claims::act(&client, &claim, step).await });
    }

    fn may_act(&self, key: &Key, version: Option<&str>) -> bool {
        !self.acting.contains(key) && self.acted_on.get(key).map(String::as_str) != version
    }

    fn send(&mut self, key: Key, request: impl Future<Output = kube::Result<()>> + Send + 'static) {
        self.acting.insert(key.clone());
        let permits = Arc::clone(&self.permits);
        self.pending.push(
            async move {
                // The semaphore is never closed.
                let permit = permits.acquire_owned().await;
                let outcome = request.await;
                drop(permit);
                let again = match outcome {
                    Ok(()) => false,
                    // It was deleted or refused: an event follows if there is more to do. A conflict is not final:
                    // the API server also reports one for a binding that its store did not answer.
                    Err(kube::Error::Api(status))
                        if (400..500).contains(&status.code) && !matches!(status.code, 409 | 429) =>
                    {
                        tracing::debug!(%status, kind = ?key.0, uid = key.1, "refused");
                        false
                    }
                    Err(error) => {
                        tracing::debug!(%error, kind = ?key.0, uid = key.1, "tried again");
                        tokio::time::sleep(RETRY).await;
                        true
                    }
                };
                Done::Acted(key, again)
            }
            .boxed(),
        );
    }
}

async fn act_on_pod(
    client: &Client,
    namespace: &str,
    pod: &Pod,
    step: pods::Step,
    number: u32,
) -> kube::Result<()> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let name = pod.name_any();
    match step {
        pods::Step::Bind => {
            let target = ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(NODE.to_owned()),
                ..ObjectReference::default()
            };
            let metadata = ObjectMeta {
                name: Some(name.clone()),
                uid: pod.uid(),
                ..ObjectMeta::default()
            };
            let binding = Binding { metadata, target };
            let parameters = PostParams::default();
            api.create_subresource::<_, serde_json::Value>("binding", &name, &parameters, &binding)
                .await?;
        }
        pods::Step::Run { .. } => {
            let patch = pods::running(pod, number, Timestamp::now());
            api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
                .await?;
        }
        pods::Step::End { code } => {
            let patch = pods::ended(pod, code, Timestamp::now());
            api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
                .await?;
        }
        pods::Step::Clear => {
            let patch = json!({ "metadata": { "uid": pod.uid(), "annotations": { CLEARED: "true" } } });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        pods::Step::Remove => {
            let preconditions = Preconditions {
                uid: pod.uid(),
                ..Preconditions::default()
            };
            api.delete(
                &name,
                &DeleteParams::default()
                    .grace_period(0)
                    .preconditions(preconditions),
            )
            .await?;
        }
    }
    Ok(())
}
