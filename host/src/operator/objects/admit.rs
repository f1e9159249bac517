//! Which Controllers of the cluster run beside those of the file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::{Map, Value};

use super::records::{GroupKind, KindRecords};
use operator_host_config::ceilings::{self, Ceilings};
use operator_host_config::memory_limit::Memory;
use operator_host_config::object::ControllerObject;
use operator_host_config::{Config, ControllerConfig, decorates};
use operator_host_contract::Kind;
use operator_host_core::object::is_terminating;

/// Why what a Controller says does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct Refused {
    /// In CamelCase.
    pub(in crate::operator) reason: &'static str,
    /// For its author.
    pub(in crate::operator) message: String,
    /// Whether what it said before still runs.
    pub(in crate::operator) still_runs: bool,
}

impl Refused {
    const fn new(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            still_runs: false,
        }
    }
}

/// A configuration with the Controllers of the cluster.
pub(in crate::operator) struct Admitted {
    /// What runs.
    pub(in crate::operator) config: Config,
    /// The Controllers that do not run as they say, by name. One that is being deleted is not among them.
    pub(in crate::operator) refused: BTreeMap<String, Refused>,
}

/// What is known about the Controllers from the last decision, by UID: a Controller is read once for each generation. What is
/// written into a Controller that was allowed to run and is refused changes nothing.
#[derive(Default)]
pub(in crate::operator) struct LastAllowed {
    /// The file and the memory by which they were read.
    by: Option<(Config, Memory)>,
    known: BTreeMap<String, Known>,
}

/// What is known about one Controller.
struct Known {
    generation: Option<i64>,
    read: Result<Vec<ControllerConfig>, Refused>,
    allowed: Option<Allowed>,
}

/// The last `spec` of a Controller that was allowed to run, and what it says, unless the ceilings are lower now.
type Allowed = (Map<String, Value>, Option<Vec<ControllerConfig>>);

/// Adds the Controllers of the cluster to those of the file. If two are for one kind, the one that runs keeps it until it is
/// deleted or gives it up. If none does yet, the older one runs, in whatever order the host learns of them.
pub(in crate::operator) fn admit(
    file: &Config,
    memory: &Memory,
    objects: &[Arc<DynamicObject>],
    records: &KindRecords,
    last: &mut LastAllowed,
) -> Admitted {
    let by = Some((file.clone(), *memory));
    let is_same_file = last.by == by;
    last.by = by;
    let held = held(objects, records, &last.known);
    let mut before = std::mem::take(&mut last.known);
    let mut admitted = Beside::of(file, &held, records);
    let mut refused = BTreeMap::new();
    let mut by_age: Vec<_> = objects.iter().filter(|object| !is_terminating(object)).collect();
    // What runs goes on. Otherwise the older one is first; its author chooses a Controller's name, but not its UID.
    by_age.sort_by_key(|object| {
        let known = object.uid().and_then(|uid| before.get(&uid));
        let ran = known.is_some_and(|known| known.allowed.is_some());
        (!ran, object.metadata.creation_timestamp.clone(), object.uid())
    });
    for object in by_age {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        let generation = object.metadata.generation;
        let before = before.remove(&uid);
        let read = |spec: &_| read_to_run(file, memory, object, spec);
        let (known, mut allowed) = match before {
            Some(before) if is_same_file => {
                let is_same = generation.is_some() && before.generation == generation;
                (is_same.then_some(before.read), before.allowed)
            }
            before => {
                let allowed = before.and_then(|before| before.allowed);
                (None, allowed.map(|(spec, _)| (spec.clone(), read(&spec).ok())))
            }
        };
        let now = known.unwrap_or_else(|| read(&spec_of(object)));
        match now.clone().and_then(|now| admitted.add(now)) {
            Ok(controllers) => allowed = Some((spec_of(object), Some(controllers))),
            Err(mut why) => {
                let still = allowed.as_ref().and_then(|(_, before)| before.clone());
                if still.is_some_and(|still| admitted.add(still).is_ok()) {
                    why.still_runs = true;
                    why.message += "; the spec before this change still runs";
                }
                refused.insert(name, why);
            }
        }
        let known = Known {
            generation,
            read: now,
            allowed,
        };
        last.known.insert(uid, known);
    }
    let mut config = file.clone();
    config.controllers = admitted.controllers;
    Admitted { config, refused }
}

/// The controllers that run, with what decides whether one more may.
struct Beside<'a> {
    ceilings: &'a [Ceilings],
    held: &'a BTreeMap<GroupKind, &'a DynamicObject>,
    records: &'a KindRecords,
    controllers: Vec<ControllerConfig>,
    /// The places among them.
    kinds: HashMap<GroupKind, usize>,
    /// How many of them are of each entry of the ceilings, and of each tenant of it.
    numbers: HashMap<(usize, Option<String>), usize>,
}

impl<'a> Beside<'a> {
    /// Begins with those of the file.
    fn of(
        file: &'a Config,
        held: &'a BTreeMap<GroupKind, &'a DynamicObject>,
        records: &'a KindRecords,
    ) -> Self {
        let places = file.controllers.iter().enumerate();
        Self {
            ceilings: file.ceilings.as_deref().unwrap_or_default(),
            held,
            records,
            controllers: file.controllers.clone(),
            kinds: places
                .map(|(place, it)| (group_kind(&it.parent), place))
                .collect(),
            numbers: HashMap::new(),
        }
    }

    /// Adds the controllers of a Controller, unless its kind is taken, its name was another's, or there are too many.
    fn add(&mut self, controllers: Vec<ControllerConfig>) -> Result<Vec<ControllerConfig>, Refused> {
        let owned = controllers.iter().find(|it| it.decorates.is_none());
        let owned = owned.map(|owner| (owner, group_kind(&owner.parent)));
        if let Some((owner, kind)) = &owned {
            free(owner, self.held, self.records)?;
            if let Some(other) = self.kinds.get(kind) {
                return Err(taken(&self.controllers[*other]));
            }
        }
        if let Some(controller) = controllers.first()
            && let Some((entry, ceilings)) = ceilings::entry_for(self.ceilings, controller)
        {
            let tenant = controller.tenant();
            let all = (entry, None);
            let own = (entry, Some(tenant.to_owned()));
            let number = |of| self.numbers.get(of).copied().unwrap_or_default();
            ceilings
                .check_number(entry, tenant, number(&all), number(&own))
                .map_err(|message| Refused::new("TooMany", message))?;
            for of in [all, own] {
                *self.numbers.entry(of).or_default() += 1;
            }
        }
        if let Some((_, kind)) = owned {
            self.kinds.insert(kind, self.controllers.len());
        }
        self.controllers.extend(controllers.iter().cloned());
        Ok(controllers)
    }
}

fn spec_of(object: &DynamicObject) -> Map<String, Value> {
    object.data["spec"].as_object().cloned().unwrap_or_default()
}

/// Returns the kind that a `spec` is for, also when something else in it is wrong.
fn kind_of(spec: &Map<String, Value>) -> Option<GroupKind> {
    let parent: Kind = serde_json::from_value(spec.get("parent")?.clone()).ok()?;
    Some(group_kind(&parent))
}

fn group_kind(kind: &Kind) -> GroupKind {
    (kind.group().to_owned(), kind.kind.clone())
}

/// Returns who keeps which kind: the Controller that is recorded, while it exists and does not give the kind up, or the one that
/// runs in this process.
fn held<'a>(
    objects: &'a [Arc<DynamicObject>],
    records: &KindRecords,
    before: &BTreeMap<String, Known>,
) -> BTreeMap<GroupKind, &'a DynamicObject> {
    let mut held = BTreeMap::new();
    let before = |object: &DynamicObject| {
        let known = before.get(object.metadata.uid.as_ref()?)?;
        known.allowed.as_ref().and_then(|(spec, _)| kind_of(spec))
    };
    for object in objects {
        for kind in [kind_of(&spec_of(object)), before(object)].into_iter().flatten() {
            if records.get(&kind).map(|record| &record.uid) == object.metadata.uid.as_ref() {
                held.insert(kind, &**object);
            }
        }
    }
    for object in objects.iter().filter(|object| !is_terminating(object)) {
        if let Some(kind) = before(object) {
            held.entry(kind).or_insert(&**object);
        }
    }
    held
}

/// Checks that no other Controller has the kind, and that none of the same name left something behind.
fn free(
    controller: &ControllerConfig,
    held: &BTreeMap<GroupKind, &DynamicObject>,
    records: &KindRecords,
) -> Result<(), Refused> {
    let kind = group_kind(&controller.parent);
    let uid = controller.uid.as_deref().unwrap_or_default();
    if let Some(holder) = held.get(&kind).filter(|it| it.uid().as_deref() != Some(uid)) {
        let message = format!(
            "the Controller {:?} already reconciles {}, and keeps it until it is deleted",
            holder.name_any(),
            controller.parent
        );
        return Err(Refused::new("KindTaken", message));
    }
    let past = records.get(&kind);
    let Some(record) = past.filter(|record| record.is_past(&controller.name, uid)) else {
        return Ok(());
    };
    let message = format!(
        "another controller named {:?} reconciled {} before (UID {}), and this one would take over what that one left: finalizers, \
         and children with their fields; to let it do so: {}",
        controller.name,
        controller.parent,
        record.uid,
        record.command(&kind.1, uid)
    );
    Err(Refused::new("NameUsedBefore", message))
}

/// Reads a Controller that is deleted, and checks that it ran for its kind and still may. What decorates deletes only what proves
/// itself to be its own.
pub(in crate::operator) fn ran(
    file: &Config,
    records: &KindRecords,
    object: &DynamicObject,
) -> Result<ControllerObject, String> {
    let read = read(file, object, &spec_of(object)).map_err(|refused| refused.message)?;
    for config in read.configs.iter().filter(|config| config.decorates.is_none()) {
        let parent = &config.parent;
        let record = records.get(&group_kind(parent)).map(|record| &record.uid);
        if record != config.uid.as_ref() {
            return Err(format!("the definition of {parent} does not record that it ran"));
        }
    }
    Ok(read)
}

fn read(
    file: &Config,
    object: &DynamicObject,
    spec: &Map<String, Value>,
) -> Result<ControllerObject, Refused> {
    let (name, uid) = (&*object.name_any(), object.uid().unwrap_or_default());
    let refused = |reason| move |message| Refused::new(reason, message);
    let is_taken = |other: &ControllerConfig| !other.is_object() && other.name == name;
    if file.controllers.iter().any(is_taken) {
        let message = format!("the host's configuration file already has a controller named {name:?}");
        return Err(refused("NameTaken")(message));
    }
    let read = file.object(name, &uid, spec).map_err(refused("InvalidSpec"))?;
    file.allows(&read).map_err(refused("NotAllowed"))?;
    let is_decorated = |kind: &&str| {
        let mut all = read.configs.iter().filter(|config| config.decorates.is_some());
        all.any(|config| decorates::named(&config.parent) == *kind)
    };
    match decorated_by(object).find(|kind| !is_decorated(kind)) {
        None => Ok(read),
        Some(kind) => Err(refused("KindChanged")(format!(
            "this Controller has decorated {kind} objects, whose children would stay if it decorated others only: put the kind back into \
             `decorates`, or delete the Controller and apply it again"
        ))),
    }
}

/// Returns the kinds that a Controller has decorated, as it records (`definitions::record::Holder`).
pub(in crate::operator) fn decorated_by(object: &DynamicObject) -> impl Iterator<Item = &str> {
    let recorded = object.metadata.uid.as_deref().and_then(|uid| {
        let mut values = object.annotations().values();
        values.find_map(|value| value.strip_suffix(uid)?.strip_suffix('/'))
    });
    recorded.into_iter().flat_map(|kinds| kinds.split(','))
}

fn read_to_run(
    file: &Config,
    memory: &Memory,
    object: &DynamicObject,
    spec: &Map<String, Value>,
) -> Result<Vec<ControllerConfig>, Refused> {
    let controllers = read(file, object, spec)?.configs;
    let fits = controllers.iter().try_for_each(|it| memory.check_one(it));
    fits.map_err(|message| Refused::new("TooLarge", message))?;
    Ok(controllers)
}

fn taken(other: &ControllerConfig) -> Refused {
    // Perhaps in another version.
    let (name, parent) = (&other.name, &other.parent);
    let other = match other.is_object() {
        true => format!("Controller {name:?}, which is older,"),
        false => format!("controller {name:?} of the host's configuration file"),
    };
    Refused::new("KindTaken", format!("the {other} already reconciles {parent}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::records::KindRecord;
    use super::*;

    fn file() -> Config {
        let text = "controllers: [{name: mine, parent: {apiVersion: a.dev/v1, kind: Mine}, plugin: mine.wasm}]\n\
                    ceilings: [{parents: [{apiGroups: ['*.dev'], kinds: ['*']}]}]\n";
        let mut config = Config::parse(Path::new("/etc/config.yaml"), text).unwrap();
        config.is_at("home");
        config
    }

    fn object(name: &str, created: u8, kind: &str, other: &Value) -> Arc<DynamicObject> {
        let mut object = json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
            "spec": {"parent": {"apiVersion": "a.dev/v1", "kind": kind}, "plugin": {"configMap": {"name": "p"}}},
        });
        let fields = other.as_object().unwrap().clone();
        object["spec"].as_object_mut().unwrap().extend(fields);
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn admitted(objects: &[Arc<DynamicObject>]) -> (Vec<String>, Vec<String>) {
        started(&KindRecords::default(), objects)
    }

    /// Admits in a host that starts now, and knows only the records.
    fn started(records: &KindRecords, objects: &[Arc<DynamicObject>]) -> (Vec<String>, Vec<String>) {
        admitted_with(records, &mut LastAllowed::default(), &file(), objects)
    }

    fn admitted_after(
        last: &mut LastAllowed,
        file: &Config,
        objects: &[Arc<DynamicObject>],
    ) -> (Vec<String>, Vec<String>) {
        admitted_with(&KindRecords::default(), last, file, objects)
    }

    fn admitted_with(
        records: &KindRecords,
        last: &mut LastAllowed,
        file: &Config,
        objects: &[Arc<DynamicObject>],
    ) -> (Vec<String>, Vec<String>) {
        let memory = Memory::of_process(Some(1 << 30));
        let admitted = admit(file, &memory, objects, records, last);
        let running = admitted.config.controllers.into_iter().map(|it| it.name);
        let refused = admitted.refused.into_iter();
        let refused = refused.map(|(name, why)| format!("{name} {}: {}", why.reason, why.message));
        (running.collect(), refused.collect())
    }

    #[test]
    fn the_older_of_two_for_one_kind_runs_and_the_file_comes_first() {
        let none = json!({});
        let objects = [
            object("younger", 2, "Thing", &none),
            object("older", 1, "Thing", &none),
            object("mine", 1, "Other", &none),
            object("file", 1, "Mine", &none),
            object("good", 3, "Good", &none),
            object("greedy", 1, "Greedy", &json!({"limits": {"memory": "1Gi"}})),
            object("broken", 1, "Broken", &json!({"colour": "red"})),
        ];
        let (running, refused) = admitted(&objects);
        assert_eq!(running, ["mine", "older", "good"]);
        let expected = [
            "broken InvalidSpec: `spec.colour`: unknown field",
            "file KindTaken: the controller \"mine\" of the host's configuration file already reconciles",
            "greedy NotAllowed: `limits.memory`",
            "mine NameTaken: ",
            "younger KindTaken: the Controller \"older\", which is older,",
        ];
        for (refused, expected) in refused.iter().zip(expected) {
            assert!(refused.starts_with(expected), "{refused}");
        }
        assert_eq!(refused.len(), expected.len());
    }

    #[test]
    fn a_change_that_is_refused_leaves_the_controller_as_it_was() {
        let mut last = LastAllowed::default();
        let good = object("a", 1, "Thing", &json!({"resync": "1h"}));
        let (running, refused) = admitted_after(&mut last, &file(), &[good]);
        assert_eq!((running.len(), refused.len()), (2, 0));
        for (change, expected) in [
            (
                json!({"resync": "soon"}),
                "a InvalidSpec: `spec.resync`: \"soon\" is not a duration",
            ),
            (json!({"adopt": true}), "a NotAllowed: "),
            (
                json!({"parent": {"apiVersion": "a.dev/v1", "kind": "Mine"}}),
                "a KindTaken: ",
            ),
        ] {
            let edited = object("a", 1, "Thing", &change);
            let admitted = admit(
                &file(),
                &Memory::of_process(None),
                &[Arc::clone(&edited)],
                &KindRecords::default(),
                &mut last,
            );
            let resync = admitted.config.controllers[1].resync;
            assert_eq!(resync, std::time::Duration::from_secs(3600), "{change}");
            let (_, refused) = admitted_after(&mut last, &file(), &[edited]);
            assert!(refused[0].starts_with(expected), "{refused:?}");
            assert!(
                refused[0].ends_with("the spec before this change still runs"),
                "{refused:?}"
            );
        }
        let edited = [object("a", 1, "Thing", &json!({"resync": "soon"}))];
        // The ceilings are for what runs, too.
        let mut lowered = file();
        lowered.ceilings = None;
        let (running, refused) = admitted_after(&mut last, &lowered, &edited);
        assert_eq!(running, ["mine"]);
        assert!(refused[0].starts_with("a InvalidSpec: "), "{refused:?}");
        // After a restart nothing is known of an earlier spec.
        let (running, _) = admitted(&edited);
        assert_eq!(running, ["mine"]);
    }

    /// Records that a Controller reconciles things, and that another one of these names has.
    fn recorded(uid: &str, names: &[&str]) -> KindRecords {
        let mut annotations =
            json!({"host.holder.live.operator-host.dev/controller": format!("Thing/{uid}")});
        for name in names {
            annotations[format!("host.live.operator-host.dev/{name}")] = "sha256:a".into();
        }
        let definition = json!({"metadata": {"name": "things.a.dev", "annotations": annotations}});
        let definition = serde_json::from_value(definition).unwrap();
        KindRecord::of(&definition, "host").into_iter().collect()
    }

    fn with_uid(object: &DynamicObject, uid: &str) -> Arc<DynamicObject> {
        let mut object = object.clone();
        object.metadata.uid = Some(uid.to_owned());
        Arc::new(object)
    }

    #[test]
    fn who_runs_keeps_the_kind_against_an_older_one_that_comes_later() {
        let none = json!({});
        let mut last = LastAllowed::default();
        let (old, young) = (
            object("old", 1, "Other", &none),
            object("young", 2, "Thing", &none),
        );
        admitted_after(&mut last, &file(), &[old, Arc::clone(&young)]);
        // In another version, it is the same kind.
        let later = json!({"parent": {"apiVersion": "a.dev/v2", "kind": "Thing"}});
        let moved = object("old", 1, "Thing", &later);
        let third = object("third", 0, "Other", &none);
        let objects = [Arc::clone(&moved), Arc::clone(&young), third];
        let (running, refused) = admitted_after(&mut last, &file(), &objects);
        assert_eq!(running, ["mine", "old", "young"]);
        let says = "old KindTaken: the Controller \"young\" already reconciles a.dev/v2/Thing";
        assert!(refused[0].starts_with(says), "{refused:?}");
        // What it ran before is still its own.
        let says = "third KindTaken: the Controller \"old\"";
        assert!(refused[1].starts_with(says), "{refused:?}");
        // A host that starts now knows it by the record.
        let records = recorded("young", &["young"]);
        let (running, refused) = started(&records, &[Arc::clone(&moved), young]);
        assert_eq!(running, ["mine", "young"]);
        assert!(refused[0].starts_with("old KindTaken"), "{refused:?}");
        // A mistake does not lose the kind, and nor does a deletion until it is done.
        let broken = object("young", 2, "Thing", &json!({"resync": "soon"}));
        let mut going = (*object("young", 2, "Thing", &none)).clone();
        going.metadata.deletion_timestamp = going.metadata.creation_timestamp.clone();
        for young in [broken, Arc::new(going)] {
            let (running, refused) = started(&records, &[Arc::clone(&moved), young]);
            assert_eq!(running, ["mine"]);
            assert!(
                refused.iter().any(|it| it.starts_with("old KindTaken")),
                "{refused:?}"
            );
        }
        // When it is gone, or has another kind, the kind is free.
        let gone = started(&records, &[Arc::clone(&moved)]);
        assert_eq!(gone.0, ["mine", "old"]);
        let elsewhere = started(&records, &[moved, object("young", 2, "Other", &none)]);
        assert_eq!(elsewhere.0, ["mine", "old", "young"]);
    }

    #[test]
    fn a_name_does_not_decide_between_two_of_the_same_second() {
        let two = [
            object("a", 1, "Thing", &json!({})),
            object("z", 1, "Thing", &json!({})),
        ];
        let (running, _) = admitted(&[with_uid(&two[0], "2"), with_uid(&two[1], "1")]);
        assert_eq!(running, ["mine", "z"]);
        let (running, _) = admitted(&[with_uid(&two[0], "1"), with_uid(&two[1], "2")]);
        assert_eq!(running, ["mine", "a"]);
    }

    #[test]
    fn a_controller_of_a_name_that_was_used_before_waits_until_it_may_take_over() {
        let again = with_uid(&object("a", 1, "Thing", &json!({})), "new");
        let start =
            |records: &KindRecords, object: &Arc<DynamicObject>| started(records, &[Arc::clone(object)]);
        for before in ["gone", "configuration-file"] {
            let (running, refused) = start(&recorded(before, &["a"]), &again);
            assert_eq!(running, ["mine"]);
            let says = format!(
                "a NameUsedBefore: another controller named \"a\" reconciled a.dev/v1/Thing before (UID {before})"
            );
            assert!(refused[0].starts_with(&says), "{refused:?}");
            let command = "kubectl annotate crd things.a.dev host.holder.live.operator-host.dev/controller=Thing/new --overwrite";
            assert!(refused[0].ends_with(command), "{refused:?}");
        }
        // It was used before the last one, too.
        assert_eq!(start(&recorded("gone", &["a", "b"]), &again).0, ["mine"]);
        // That is what the command does.
        assert_eq!(start(&recorded("new", &["a"]), &again).0, ["mine", "a"]);
        // Another name inherits nothing, and nor does another kind.
        let other = object("b", 1, "Thing", &json!({}));
        assert_eq!(start(&recorded("gone", &["a"]), &other).0, ["mine", "b"]);
        let other = object("a", 1, "Other", &json!({}));
        assert_eq!(start(&recorded("gone", &["a"]), &other).0, ["mine", "a"]);
        // A deletion releases only what it made itself.
        assert!(ran(&file(), &recorded("gone", &["a"]), &again).is_err());
        assert!(ran(&file(), &KindRecords::default(), &again).is_err());
        assert!(ran(&file(), &recorded("new", &["a"]), &again).is_ok());
    }

    /// A Controller with its plugin in a ConfigMap of this namespace.
    fn of_tenant(name: &str, created: u8, tenant: &str) -> Arc<DynamicObject> {
        let plugin = json!({"plugin": {"configMap": {"name": "p", "namespace": tenant}}});
        object(name, created, &name.to_uppercase(), &plugin)
    }

    #[test]
    fn the_older_ones_run_as_far_as_the_ceilings_of_their_number_allow() {
        let text = "ceilings: [{parents: [{apiGroups: ['*.dev'], kinds: ['*']}], configMaps: ['*'], controllers: 4, \
                    controllersPerNamespace: 2}]\n";
        let file = Config::parse(Path::new("/etc/config.yaml"), text).unwrap();
        let mut objects: Vec<_> = ["a", "b", "c", "d"].map(|name| of_tenant(name, 1, "evil")).into();
        objects.extend(["x", "y"].map(|name| of_tenant(name, 9, "good")));
        objects.push(of_tenant("z", 9, "other"));
        let mut last = LastAllowed::default();
        let (running, refused) = admitted_after(&mut last, &file, &objects);
        assert_eq!(running, ["a", "b", "x", "y"]);
        for (refused, expected) in refused.iter().zip([
            "c TooMany: there are already 2 Controllers whose plugins are in the namespace evil, which is the most that \
             `ceilings[0].controllersPerNamespace`",
            "d TooMany: ",
            "z TooMany: there are already 4 Controllers that this entry is for, which is the most that `ceilings[0].controllers`",
        ]) {
            assert!(refused.starts_with(expected), "{refused}");
        }
        objects.retain(|object| object.name_any() != "a");
        // One that is older, and comes later.
        objects.push(of_tenant("old", 0, "other"));
        let (running, _) = admitted_after(&mut last, &file, &objects);
        assert_eq!(running, ["b", "x", "y", "old"], "what runs goes on");
    }

    #[test]
    fn a_controller_is_read_once_for_each_generation_and_file() {
        let mut last = LastAllowed::default();
        let read = |last: &mut LastAllowed, file: &Config, generation: i64, spec: &Value| {
            let mut object = (*object("a", 1, "Thing", spec)).clone();
            object.metadata.generation = Some(generation);
            admitted_after(last, file, &[Arc::new(object)]).1
        };
        let bad = json!({"resync": "soon"});
        assert!(read(&mut last, &file(), 1, &json!({})).is_empty());
        // No API server changes a spec without its generation.
        assert!(read(&mut last, &file(), 1, &bad).is_empty(), "it was read again");
        assert_eq!(read(&mut last, &file(), 2, &bad).len(), 1);
        assert_eq!(read(&mut last, &file(), 3, &json!({})).len(), 0);
        let mut lowered = file();
        lowered.ceilings = None;
        assert_eq!(read(&mut last, &lowered, 3, &json!({})).len(), 1);
    }

    #[test]
    fn a_controller_that_is_being_deleted_makes_room() {
        let mut deleted = (*object("older", 1, "Thing", &json!({}))).clone();
        deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
        let (running, refused) = admitted(&[Arc::new(deleted), object("younger", 2, "Thing", &json!({}))]);
        assert_eq!(running, ["mine", "younger"]);
        assert!(refused.is_empty(), "{refused:?}");
    }

    #[test]
    fn a_call_that_does_not_fit_the_host_is_refused() {
        let memory = Memory::of_process(Some(64 << 20));
        let admitted = admit(
            &file(),
            &memory,
            &[object("a", 1, "Thing", &json!({}))],
            &KindRecords::default(),
            &mut LastAllowed::default(),
        );
        assert_eq!(admitted.refused["a"].reason, "TooLarge");
    }
}
