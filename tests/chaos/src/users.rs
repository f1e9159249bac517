//! The users: they create, edit, scale and delete parents, and modify children, as fast as they can.
//!
//! Each user has their own parents, so that their next action follows from their own random choices. The check does
//! not use what they wanted; it reads the specs from the API server. Only actions that can cause the deletion of a
//! child are counted ([`Reasons`]), tried or done, so that the check can detect children that were recreated
//! needlessly.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::draw::Draw;
use crate::oracle::{self, Key, Kind, Sample};

/// Number of users.
const USERS: usize = 3;
/// The parents of each user, by kind.
const PARENTS: [(Sample, usize); 6] = [
    (Sample::Echo, 2),
    (Sample::Hello, 1),
    (Sample::MyApp, 1),
    (Sample::MySql, 1),
    (Sample::Puppet, 2),
    (Sample::Decorated, 1),
];
/// Timeout of a request: the API server may be suspended.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum of every number in a spec.
const MOST: u64 = 5;
/// Which child of a puppet is outside of the cluster.
const OUTSIDE: u64 = 1;
const PAUSED: &str = "operator-host.dev/paused";

/// How often each child was given a reason to be deleted, and thus to be recreated later.
#[derive(Debug, Default)]
pub(crate) struct Reasons(BTreeMap<Key, Count>);

/// The reasons for one child.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: usize,
    /// Those among them for which the garbage collector may delete the child: its parent was deleted.
    parent_deleted: usize,
}

impl Reasons {
    fn add(&mut self, key: Key) {
        self.0.entry(key).or_default().all += 1;
    }

    /// Adds the deletion of a parent, for each child that it could ever have.
    pub(crate) fn add_deletion(&mut self, sample: Sample, name: &str) {
        for key in possible(sample, name) {
            let count = self.0.entry(key).or_default();
            count.all += 1;
            count.parent_deleted += 1;
        }
    }

    /// Adds the final deletion of a parent, after which none of its children may be recreated.
    fn add_final_deletion(&mut self, sample: Sample, name: &str) {
        for key in possible(sample, name) {
            self.0.entry(key).or_default().parent_deleted += 1;
        }
    }

    /// Adds the deletion of every parent of a kind.
    pub(crate) fn add_deletions(&mut self, sample: Sample) {
        for name in names(sample) {
            self.add_deletion(sample, &name);
        }
    }

    /// Returns how often a child may have been created at most, if the garbage collector has deleted it this often.
    /// Its deletions without a deleted parent are its mistakes, and the child has to be recreated after each.
    pub(crate) fn creations(&self, key: &Key, collected: usize) -> usize {
        let count = self.0.get(key).copied().unwrap_or_default();
        1 + count.all + collected.saturating_sub(count.parent_deleted)
    }

    fn merge(&mut self, other: Self) {
        for (key, count) in other.0 {
            let sum = self.0.entry(key).or_default();
            sum.all += count.all;
            sum.parent_deleted += count.parent_deleted;
        }
    }
}

/// Returns the names of all parents of a kind.
pub(crate) fn names(sample: Sample) -> Vec<String> {
    let each = PARENTS.iter().find(|(other, _)| *other == sample);
    let each = each.map_or(0, |(_, each)| *each);
    (0..USERS * each)
        .map(|i| format!("{}{i}", sample.letter()))
        .collect()
}

/// Returns every child that a parent can have with any spec that is drawn here.
pub(crate) fn possible(sample: Sample, name: &str) -> Vec<Key> {
    // Including the children that a cleanup creates.
    let children = (0..=MOST).filter(|i| sample != Sample::Decorated || *i != OUTSIDE);
    let children: Vec<_> = children.map(|i| puppet_child(name, i, "")).collect();
    let widest = json!({ "replicas": MOST, "response": { "children": children } });
    let all = oracle::children(sample, name, &widest).into_iter();
    all.map(|wanted| wanted.key).collect()
}

/// All users of a namespace.
pub(crate) struct Crowd(Vec<User>);

/// One user.
struct User {
    client: Client,
    namespace: String,
    draw: Draw,
    parents: Vec<Parent>,
    reasons: Reasons,
    actions: usize,
}

/// A parent as its user knows it.
struct Parent {
    sample: Sample,
    name: String,
    /// The version that was last requested.
    version: String,
    /// The largest volume ever requested, in GiB: volumes do not shrink.
    storage: usize,
}

impl Crowd {
    pub(crate) fn new(client: &Client, namespace: &str, draw: &Draw) -> Self {
        let user = |number: usize| {
            let mut parents = Vec::new();
            for (sample, each) in PARENTS {
                let names = names(sample).into_iter().skip(number * each).take(each);
                parents.extend(names.map(|name| Parent {
                    sample,
                    name,
                    version: "8.0".to_owned(),
                    storage: 1,
                }));
            }
            User {
                client: client.clone(),
                namespace: namespace.to_owned(),
                draw: draw.fork(number as u64 + 1),
                parents,
                reasons: Reasons::default(),
                actions: 0,
            }
        };
        Self((0..USERS).map(user).collect())
    }

    /// Creates each parent.
    pub(crate) async fn move_in(&mut self) {
        let all = self.0.iter_mut().map(|user| async move {
            for i in 0..user.parents.len() {
                user.put(i).await;
            }
        });
        futures::future::join_all(all).await;
    }

    /// Lets all users act until it is over, except on parents of a kind that is `closed`.
    pub(crate) async fn storm(&mut self, over: &AtomicBool, closed: &Mutex<Option<Sample>>) {
        let all = self.0.iter_mut().map(|user| async move {
            while !over.load(Ordering::Relaxed) {
                user.act(closed).await;
                let pause = user.draw.millis(0..40);
                tokio::time::sleep(pause).await;
            }
        });
        futures::future::join_all(all).await;
    }

    /// Ends what was blocked on purpose: paused parents, unfinished cleanups. Returns the reasons for deleted
    /// children, and the total number of actions.
    pub(crate) async fn calm_down(self) -> (Reasons, usize) {
        let all = self.0.into_iter().map(|user| async move {
            for parent in &user.parents {
                while !user.let_go(parent).await {}
            }
            (user.reasons, user.actions)
        });
        let (mut reasons, mut actions) = (Reasons::default(), 0);
        for (more, count) in futures::future::join_all(all).await {
            reasons.merge(more);
            actions += count;
        }
        (reasons, actions)
    }
}

/// The possible actions of a user.
#[derive(Clone, Copy)]
enum Action {
    Put,
    Delete,
    Replace,
    DeleteChild,
    EditChild,
    Pause,
    LetGo,
}

const ACTIONS: [(usize, Action); 7] = [
    (50, Action::Put),
    (8, Action::Delete),
    (6, Action::Replace),
    (12, Action::DeleteChild),
    (12, Action::EditChild),
    (4, Action::Pause),
    (8, Action::LetGo),
];

impl User {
    async fn act(&mut self, closed: &Mutex<Option<Sample>>) {
        self.actions += 1;
        let parent = self.draw.below(self.parents.len());
        let action = *self.draw.weighted(&ACTIONS);
        let rest = self.draw.fork(0);
        if *closed.lock().unwrap_or_else(PoisonError::into_inner) != Some(self.parents[parent].sample) {
            self.carry_out(action, parent).await;
        }
        // The next choices do not depend on a skipped action.
        self.draw = rest;
    }

    async fn carry_out(&mut self, action: Action, parent: usize) {
        match action {
            Action::Put => self.put(parent).await,
            Action::Delete => self.delete(parent).await,
            Action::Replace => {
                self.delete(parent).await;
                self.put(parent).await;
            }
            Action::DeleteChild => self.delete_child(parent).await,
            Action::EditChild => self.edit_child(parent).await,
            Action::Pause => {
                let value = if self.draw.percent(50) {
                    json!("true")
                } else {
                    Value::Null
                };
                let patch = json!({ "metadata": { "annotations": { PAUSED: value } } });
                let Parent { sample, name, .. } = &self.parents[parent];
                self.merge(sample.resource(), name, &patch).await;
            }
            Action::LetGo => {
                self.let_go(&self.parents[parent]).await;
            }
        }
    }

    /// Creates the parent or replaces its spec.
    async fn put(&mut self, index: usize) {
        let (draw, parent) = (&mut self.draw, &mut self.parents[index]);
        let (sample, name) = (parent.sample, parent.name.clone());
        let before = parent.version.clone();
        let spec = parent.next_spec(draw);
        let wanted = oracle::children(sample, &name, &spec);
        // Another version of MySQL replaces each pod.
        let replaced = sample == Sample::MySql && before != parent.version;
        for key in possible(sample, &name) {
            let is_replaced =
                (replaced && key.0 == Kind::Pod) || (key.0 == Kind::ConfigMap && is_immutable(&key.1));
            if is_replaced || !wanted.iter().any(|wanted| wanted.key == key) {
                self.reasons.add(key);
            }
        }
        let resource = sample.resource();
        let object = sample.parent(&name, &spec);
        let parameters = PatchParams::apply("user").force();
        let api = self.api(&resource);
        patience(api.patch(&name, &parameters, &Patch::Apply(object))).await;
    }

    async fn delete(&mut self, index: usize) {
        let Parent { sample, name, .. } = &self.parents[index];
        self.reasons.add_deletion(*sample, name);
        let api = self.api(&sample.resource());
        patience(api.delete(name, &DeleteParams::default())).await;
    }

    /// Returns a child that the parent may have now. Claims and Secrets are left alone, since their data cannot be
    /// restored.
    fn child(&mut self, index: usize) -> Key {
        let Parent { sample, name, .. } = &self.parents[index];
        let mut possible = possible(*sample, name);
        possible.retain(|(kind, _)| !kind.is_retained());
        self.draw.pick(&possible).clone()
    }

    async fn delete_child(&mut self, index: usize) {
        let (kind, name) = self.child(index);
        self.reasons.add((kind, name.clone()));
        let api = self.api(&kind.resource());
        patience(api.delete(&name, &DeleteParams::default())).await;
    }

    /// Changes a field that the plugin sets.
    async fn edit_child(&mut self, index: usize) {
        let (kind, name) = self.child(index);
        let patch = match kind {
            Kind::ConfigMap => json!({ "data": { "text": "edited" } }),
            Kind::External => json!({ "spec": { "set": { "body": { "text": "edited" } } } }),
            Kind::Deployment => json!({ "spec": { "replicas": self.draw.below(4) } }),
            Kind::Pod => {
                let container = match self.parents[index].sample {
                    Sample::MySql => "mysql",
                    _ => "echo",
                };
                let container = json!({ "name": container, "image": "edited:1" });
                let patch = Patch::Strategic(json!({ "spec": { "containers": [container] } }));
                let api = self.api(&kind.resource());
                patience(api.patch(&name, &PatchParams::default(), &patch)).await;
                return;
            }
            Kind::Service => {
                let edited = json!({ "app": "edited", "database.example.com/cluster": "edited" });
                json!({ "metadata": { "labels": edited } })
            }
            Kind::Claim | Kind::Secret => return,
        };
        self.merge(kind.resource(), &name, &patch).await;
    }

    /// Removes what blocks a parent. Returns whether the API server has answered.
    async fn let_go(&self, parent: &Parent) -> bool {
        let patch = release(parent.sample);
        self.merge(parent.sample.resource(), &parent.name, &patch).await
    }

    async fn merge(&self, resource: ApiResource, name: &str, patch: &Value) -> bool {
        let api = self.api(&resource);
        patience(api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }
}

impl Parent {
    fn next_spec(&mut self, draw: &mut Draw) -> Value {
        let image = format!("image:{}", draw.below(3));
        match self.sample {
            Sample::Echo => json!({ "replicas": draw.below(MOST as usize + 1), "image": image }),
            Sample::Hello => json!({ "replicas": draw.below(3) }),
            Sample::MyApp => json!({
                "replicas": 1 + draw.below(3), "image": image, "port": 80 + draw.below(2),
            }),
            Sample::MySql => {
                if draw.percent(20) {
                    self.version = (*draw.pick(&["8.0", "8.4", "9.0"])).to_owned();
                }
                if draw.percent(20) {
                    self.storage += 1;
                }
                json!({
                    "replicas": 1 + draw.below(3), "version": self.version,
                    "storage": { "size": format!("{}Gi", self.storage) },
                })
            }
            Sample::Puppet => self.puppet_spec(draw),
            // Without the label.
            Sample::Decorated if draw.percent(15) => json!({}),
            Sample::Decorated => {
                let text = draw.below(1000).to_string();
                let children = (0..MOST).filter(|i| *i != OUTSIDE && draw.percent(60));
                let children: Vec<_> = children.map(|i| puppet_child(&self.name, i, &text)).collect();
                let parent = json!({ "metadata": { "labels": { "seen": text } } });
                json!({ "response": { "children": children, "parent": parent } })
            }
        }
    }

    /// Draws the spec of a puppet. Its variants, other versions of its plugin, act as the faults require.
    fn puppet_spec(&self, draw: &mut Draw) -> Value {
        let text = draw.below(1000).to_string();
        let children: Vec<_> = (0..MOST)
            .filter(|_| draw.percent(60))
            .map(|i| puppet_child(&self.name, i, &text))
            .collect();
        let farewell = puppet_child(&self.name, MOST, "farewell");
        let cleanup = match draw.below(3) {
            0 => json!({ "done": true }),
            1 => json!({ "done": true, "children": [farewell] }),
            _ => json!({ "done": false, "children": [farewell] }),
        };
        let variants = json!({
            "1": { "busy": 60 },
            "2": { "response": {} },
            "3": { "misbehave": "trap" },
        });
        json!({ "response": { "children": children }, "cleanup": cleanup, "variants": variants })
    }
}

/// How the first children of a puppet are changed. Those that are replaced are immutable.
const UPDATES: [&str; 4] = ["one", "one", "one,replace,last-first", "one,replace,foreground"];

/// Reports whether a child of a puppet is replaced when it changes.
fn is_immutable(name: &str) -> bool {
    let number = name.rsplit('-').next().and_then(|number| number.parse().ok());
    let update = number.and_then(|number: usize| UPDATES.get(number));
    update.is_some_and(|update| update.contains("replace"))
}

fn puppet_child(puppet: &str, number: u64, text: &str) -> Value {
    let name = format!("{puppet}-{number}");
    if number == OUTSIDE {
        let (path, body) = (format!("/{puppet}"), json!({ "text": text }));
        return json!({
            "apiVersion": "operator-host.dev/v1alpha1", "kind": "External", "metadata": { "name": name },
            "spec": {
                "endpoint": "outside", "observe": { "path": path }, "matches": body, "every": "5s",
                "set": { "method": "PUT", "path": path, "body": body },
                "unset": { "method": "DELETE", "path": path },
            },
        });
    }
    let update = usize::try_from(number)
        .ok()
        .and_then(|number| UPDATES.get(number));
    let annotations = update.map(|update| json!({ "operator-host.dev/update": update }));
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "immutable": is_immutable(&name),
        "metadata": { "name": name, "annotations": annotations }, "data": { "text": text },
    })
}

/// Sends a request and ignores its result, which may be refused, lost or late. Returns whether it was answered.
async fn patience(request: impl Future<Output = kube::Result<impl Sized>>) -> bool {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(_)) => true,
        Ok(Err(kube::Error::Api(status))) if status.code < 500 => true,
        // An unavailable server refuses at once; do not retry a thousand times per second.
        Ok(Err(_)) => {
            tokio::time::sleep(Duration::from_millis(50)).await;
            false
        }
        Err(_) => false,
    }
}

/// Removes what blocks the parents of a kind, in all namespaces.
pub(crate) async fn let_go_all(client: &Client, sample: Sample) -> kube::Result<()> {
    let everywhere: Api<DynamicObject> = Api::all_with(client.clone(), &sample.resource());
    for parent in everywhere.list(&ListParams::default()).await? {
        let namespace = parent.namespace().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &sample.resource());
        let patch = Patch::Merge(release(sample));
        patience(api.patch(&parent.name_any(), &PatchParams::default(), &patch)).await;
    }
    Ok(())
}

/// Returns the patch that removes what blocks a parent.
fn release(sample: Sample) -> Value {
    let mut patch = json!({ "metadata": { "annotations": { PAUSED: null } } });
    if sample == Sample::Puppet {
        patch["spec"] = json!({ "cleanup": { "done": true } });
    }
    patch
}

/// Deletes all parents of a namespace.
pub(crate) async fn leave(client: &Client, namespace: &str, reasons: &mut Reasons) -> kube::Result<()> {
    for sample in Sample::ALL {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &sample.resource());
        for parent in api.list(&ListParams::default()).await? {
            let patch = Patch::Merge(release(sample));
            api.patch(&parent.name_any(), &PatchParams::default(), &patch)
                .await?;
            reasons.add_final_deletion(sample, &parent.name_any());
            api.delete(&parent.name_any(), &DeleteParams::default()).await?;
        }
    }
    Ok(())
}
