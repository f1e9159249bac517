//! Checks the end of a round: the existing objects, and how they were created.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control_plane::{AuditEvent, audit_events_since};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;

use crate::files;
use crate::fleet::Shape;
use crate::oracle::{self, Key, Kind, Sample};
use crate::rollouts;
use crate::stage::Stage;
use crate::users::Reasons;

const CONTROLLER_LABEL: &str = "operator-host.dev/controller";
/// How long no host may write once everything is as expected.
const QUIET: Duration = Duration::from_millis(300);
/// The only Lease in mode `single`.
const LEASE: &str = "operator-host";
/// How long a Deployment may be stuck before it is examined, and the time between two restarts of the controller
/// manager for it.
const STUCK: Duration = Duration::from_millis(1500);
const RESTART: Duration = Duration::from_secs(20);
/// How much longer a round may last while Kubernetes' own controllers have not rolled out a Deployment.
const ROLLOUTS: Duration = Duration::from_secs(180);
/// How much more anonymous memory a host may use at the end of a round than at the end of its first one.
const GROWTH: u64 = 64 << 20;

/// A deviation from the expected state.
#[derive(Debug)]
pub(crate) struct Violation {
    /// The description.
    what: String,
    /// The affected object.
    object: Option<Box<DynamicObject>>,
}

impl Violation {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            object: None,
        }
    }

    /// Adds when it was found.
    pub(crate) fn when(mut self, when: &str) -> Self {
        self.what = format!("{when}: {}", self.what);
        self
    }

    /// Adds lines with what else was found.
    pub(crate) fn add(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.what = format!("{}\n    {line}", self.what);
        }
    }

    /// Returns the name of the affected object.
    pub(crate) fn object_name(&self) -> Option<String> {
        self.object.as_ref().map(|object| object.name_any())
    }

    /// Returns the description without the object.
    pub(crate) fn what(&self) -> String {
        self.what.clone()
    }

    fn about(object: &DynamicObject, what: impl fmt::Display) -> Self {
        let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
        let mut object = object.clone();
        let what = format!("{kind} {}: {what}", object.name_any());
        object.managed_fields_mut().clear();
        Self {
            what,
            object: Some(Box::new(object)),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.object {
            Some(object) => write!(
                f,
                "\n{}",
                serde_json::to_string_pretty(object).unwrap_or_default()
            ),
            None => Ok(()),
        }
    }
}

/// The expected state of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Exactly the objects that follow from the existing parents.
    Exact,
    /// No parents, and only retained children.
    Gone,
}

/// Waits until a namespace is in the expected state and the hosts stop writing. Returns how long that took, and the
/// number of parents and children. The limit is that of the hosts: the time in which Kubernetes' own controllers
/// have not rolled out a Deployment does not count, up to a limit of its own.
pub(crate) async fn until(
    stage: &Stage,
    namespace: &str,
    want: Want,
    history: &mut History,
    limit: Duration,
) -> Result<(Duration, Counts), Violation> {
    let client = &stage.client;
    let start = Instant::now();
    let mut rolled_out = start;
    let mut restart = start + STUCK;
    loop {
        let looked = Instant::now();
        let seen = tokio::time::timeout(limit, look(stage, namespace, want)).await;
        let mut fault = match seen.unwrap_or_else(|_| Err(Violation::new("the API server does not answer"))) {
            Ok(counts) => {
                history.read()?;
                let writes = history.writes().count();
                tokio::time::sleep(QUIET).await;
                history.read()?;
                let Some(last) = history.writes().skip(writes).last() else {
                    return Ok((looked - start, counts));
                };
                Violation::new(format!(
                    "everything is as it should be, and a host goes on writing: {} {}",
                    last.verb, last.request_uri
                ))
            }
            Err(fault) => fault,
        };
        if rolled_out.elapsed() > limit {
            return Err(fault);
        }
        if start.elapsed() > STUCK {
            let unfinished = rollouts::unstick(client, namespace).await;
            if start.elapsed() > limit + ROLLOUTS {
                fault.add(unfinished);
                return Err(fault);
            }
            if !unfinished.is_empty() {
                rolled_out = Instant::now();
                if restart < rolled_out {
                    restart = rolled_out + RESTART;
                    eprintln!("restarting the controller manager, which does not finish a rollout");
                    let restarted = stage.server.lock().await.restart_controller_manager().await;
                    restarted.map_err(|error| Violation::new(format!("{error:#}")))?;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The number of objects in a namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) parents: usize,
    pub(crate) children: usize,
}

async fn look(stage: &Stage, namespace: &str, want: Want) -> Result<Counts, Violation> {
    let client = &stage.client;
    let mut counts = Counts::default();
    let mut wanted = BTreeMap::new();
    for sample in Sample::ALL {
        for parent in list(client, namespace, &sample.resource()).await? {
            if want == Want::Gone {
                return Err(Violation::about(&parent, "it should be gone"));
            }
            if let Some(fault) = oracle::status_fault(sample, &parent) {
                return Err(Violation::about(&parent, fault));
            }
            for child in oracle::children(sample, &parent.name_any(), &sample.spec(&parent)) {
                wanted.insert(child.key, (child.says, parent.uid(), sample));
            }
            counts.parents += 1;
        }
    }
    counts.children = wanted.len();
    for kind in Kind::ALL {
        let children = list(client, namespace, &kind.resource()).await?;
        if kind == Kind::External
            && let Some(fault) = stage.outside.fault(&children)
        {
            return Err(Violation::new(fault));
        }
        for child in children {
            let wanted = wanted.remove(&(kind, child.name_any()));
            if let Some(fault) = child_fault(kind, &child, wanted) {
                return Err(Violation::about(&child, fault));
            }
        }
    }
    match wanted.keys().next() {
        Some((kind, name)) => Err(Violation::new(format!("{kind:?} {name} is missing"))),
        None => Ok(counts),
    }
}

fn child_fault(
    kind: Kind,
    child: &DynamicObject,
    wanted: Option<(Value, Option<String>, Sample)>,
) -> Option<String> {
    let label = child.labels().get(CONTROLLER_LABEL);
    let owner = child
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    let Some((says, parent, sample)) = wanted else {
        let is_ours = label.is_some() && !kind.is_retained();
        return is_ours.then(|| "nobody wants it".to_owned());
    };
    if child.metadata.deletion_timestamp.is_some() {
        return Some("it is wanted, and was deleted".to_owned());
    }
    if label.map(String::as_str) != Some(sample.name()) {
        return Some(format!(
            "its label names the controller {label:?}, not {}",
            sample.name()
        ));
    }
    match (kind.is_retained(), owner) {
        (true, Some(owner)) => {
            return Some(format!(
                "it is retained, and goes with {} {}",
                owner.kind, owner.name
            ));
        }
        (true, None) => {}
        (false, owner) if owner.map(|owner| &owner.uid) == parent.as_ref() => {}
        (false, owner) => return Some(format!("its owner is {owner:?}, not the UID {parent:?}")),
    }
    let live = serde_json::to_value(child).unwrap_or_default();
    oracle::difference(&live, &says, "it")
}

/// Lists the objects in the store.
async fn list(
    client: &Client,
    namespace: &str,
    resource: &ApiResource,
) -> Result<Vec<DynamicObject>, Violation> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let listed = api.list(&ListParams::default()).await;
    let mut items = listed
        .map_err(|error| Violation::new(format!("cannot list {}: {error}", resource.plural)))?
        .items;
    for item in &mut items {
        // List items have no type.
        item.types = Some(kube::core::TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        });
    }
    Ok(items)
}

/// Returns every parent and child, for debugging a failure.
pub(crate) async fn all_objects(client: &Client, namespace: &str) -> String {
    let mut all = Vec::new();
    let parents = Sample::ALL.into_iter().map(Sample::resource);
    for resource in parents.chain(Kind::ALL.into_iter().map(Kind::resource)) {
        all.extend(list(client, namespace, &resource).await.unwrap_or_default());
    }
    serde_json::to_string_pretty(&all).unwrap_or_default()
}

/// Retained objects with what must never change: the UID, and a Secret's data.
pub(crate) type Retained = BTreeMap<Key, (Option<String>, Value)>;

/// Returns the retained objects in a namespace.
pub(crate) async fn retained(client: &Client, namespace: &str) -> Result<Retained, Violation> {
    let mut all = BTreeMap::new();
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_retained()) {
        for object in list(client, namespace, &kind.resource()).await? {
            if object.labels().contains_key(CONTROLLER_LABEL) {
                let content = (object.uid(), object.data["data"].clone());
                all.insert((kind, object.name_any()), content);
            }
        }
    }
    Ok(all)
}

/// Reports retained objects that are missing or have changed.
pub(crate) fn lost(before: &Retained, after: &Retained, created: &[Key]) -> Vec<Violation> {
    let changed = before.iter().filter_map(|(key, was)| match after.get(key) {
        Some(is) if is == was => None,
        Some(_) => Some(format!(
            "{:?} {} is another, or holds something else",
            key.0, key.1
        )),
        None => Some(format!("{:?} {} is retained, and is lost", key.0, key.1)),
    });
    let missing = created.iter().filter(|key| !after.contains_key(*key));
    let missing =
        missing.map(|(kind, name)| format!("{kind:?} {name} was created, is retained, and is lost"));
    changed.chain(missing).map(Violation::new).collect()
}

/// The writes of the hosts, and the deletions by the garbage collector, from the API server's audit log.
pub(crate) struct History {
    log: PathBuf,
    /// How many bytes of the log were read.
    at: u64,
    namespace: String,
    /// The hosts' writes in this round.
    round: Vec<AuditEvent>,
    /// How often the garbage collector has deleted each child in this round.
    collected: BTreeMap<Key, usize>,
    /// Every acquisition or renewal of a Lease since these hosts were started.
    leases: Vec<AuditEvent>,
}

impl History {
    pub(crate) fn new(log: &Path) -> Self {
        Self {
            log: log.to_owned(),
            at: 0,
            namespace: String::new(),
            round: Vec::new(),
            collected: BTreeMap::new(),
            leases: Vec::new(),
        }
    }

    /// Begins a new round in this namespace.
    pub(crate) fn begin(&mut self, namespace: &str) -> Result<(), Violation> {
        self.read()?;
        self.round.clear();
        self.collected.clear();
        namespace.clone_into(&mut self.namespace);
        Ok(())
    }

    /// Forgets the Leases of earlier hosts.
    pub(crate) fn forget_leases(&mut self) {
        self.leases.clear();
    }

    /// Reads new events.
    pub(crate) fn read(&mut self) -> Result<(), Violation> {
        if !self.log.exists() {
            return Ok(());
        }
        let read = audit_events_since(&self.log, self.at);
        let (events, at) = read.map_err(|error| Violation::new(format!("{error:?}")))?;
        self.at = at;
        for event in events {
            let object = object(&event);
            if event.user.username != files::HOSTS {
                if is_collection(&event)
                    && object.namespace == self.namespace
                    && let Some(kind) = Kind::of_plural(&object.resource)
                {
                    *self.collected.entry((kind, object.name)).or_default() += 1;
                }
            } else if object.resource == "leases" {
                if is_done(&event) && object.namespace == files::NAMESPACE {
                    self.leases.push(event);
                }
            } else if object.namespace == self.namespace {
                self.round.push(event);
            }
        }
        Ok(())
    }

    /// Returns the writes of this round, except Events.
    pub(crate) fn writes(&self) -> impl Iterator<Item = &AuditEvent> {
        self.round
            .iter()
            .filter(|event| object(event).resource != "events")
    }

    /// Returns the forbidden writes of this round.
    pub(crate) fn faults(&self, shape: Shape, reasons: &Reasons) -> Vec<Violation> {
        let mut faults = self.needless(reasons);
        faults.extend(self.retained_deleted());
        if shape.leadership != "none" {
            faults.extend(self.not_leading());
        }
        faults
    }

    /// Returns the objects of retained kinds that were created in this round.
    pub(crate) fn retained_created(&self) -> Vec<Key> {
        let created = self.created().into_keys();
        created.filter(|(kind, _)| kind.is_retained()).collect()
    }

    fn created(&self) -> BTreeMap<Key, usize> {
        let mut created = BTreeMap::new();
        for event in self.writes() {
            let code = event.response_status.as_ref().map(|status| status.code);
            if code == Some(201)
                && !event.request_uri.contains("dryRun")
                && let Some(kind) = Kind::of_plural(&object(event).resource)
                && object(event).subresource.is_empty()
            {
                *created.entry((kind, object(event).name)).or_default() += 1;
            }
        }
        created
    }

    fn needless(&self, reasons: &Reasons) -> Vec<Violation> {
        let mut faults = Vec::new();
        for (key, times) in self.created() {
            let collected = self.collected.get(&key).copied().unwrap_or_default();
            let necessary = reasons.creations(&key, collected);
            if times > necessary {
                let (kind, name) = key;
                faults.push(Violation::new(format!(
                    "{kind:?} {name} was created {times} times, which was necessary {necessary} times at most"
                )));
            }
        }
        faults
    }

    fn retained_deleted(&self) -> Vec<Violation> {
        let deletes = self.writes().filter(|event| event.verb.starts_with("delete"));
        let of_retained =
            deletes.filter(|event| Kind::of_plural(&object(event).resource).is_some_and(Kind::is_retained));
        of_retained
            .map(|event| Violation::new(format!("a host deleted what is retained: {}", event.request_uri)))
            .collect()
    }

    /// Returns writes by replicas that were not the last to write the Lease.
    fn not_leading(&self) -> Vec<Violation> {
        let mut faults = Vec::new();
        let mut leases: Vec<_> = self.leases.iter().collect();
        // Each of these writes is based on the one before it, so it was received after it. The answer to a release may take
        // longer than the takeover by a replica that watches.
        leases.sort_by(|a, b| a.request_received_timestamp.cmp(&b.request_received_timestamp));
        for write in self.writes() {
            let Some(sample) = Sample::of_object(&object(write).name) else {
                continue;
            };
            let mut before = leases.iter().rev().filter(|lease| {
                let is_before = lease.request_received_timestamp <= write.request_received_timestamp;
                object(lease).name == LEASE && is_before
            });
            let leader = before.next().and_then(|lease| replica(lease));
            if leader != replica(write) {
                faults.push(Violation::new(format!(
                    "{} {} at {} by {:?}, while {leader:?} led {}",
                    write.verb,
                    write.request_uri,
                    write.request_received_timestamp,
                    replica(write),
                    sample.name(),
                )));
            }
        }
        faults
    }
}

fn object(event: &AuditEvent) -> control_plane::AuditObject {
    event.object_ref.clone().unwrap_or_default()
}

fn is_done(event: &AuditEvent) -> bool {
    event
        .response_status
        .as_ref()
        .is_some_and(|status| status.code < 300)
}

/// Reports whether kube-controller-manager deleted something. It is the administrator, as the users are.
fn is_collection(event: &AuditEvent) -> bool {
    event.verb == "delete" && event.user_agent.starts_with("kube-controller-manager/") && is_done(event)
}

/// Returns the replica that sent a request, by its user agent.
fn replica(event: &AuditEvent) -> Option<&str> {
    let (_, identity) = event
        .user_agent
        .strip_prefix("operator-host/")?
        .split_once(" (")?;
    Some(identity.trim_end_matches(')'))
}

/// Reports a host whose memory has grown too much.
pub(crate) fn growth(memory: &[(u64, u64)]) -> Option<Violation> {
    let grown = memory.iter().find(|(now, first)| *now > first + GROWTH);
    grown.map(|(now, first)| {
        let mb = |bytes: &u64| bytes / 1_000_000;
        Violation::new(format!(
            "a host has {} MB of anonymous memory; {} MB after its first round",
            mb(now),
            mb(first)
        ))
    })
}
