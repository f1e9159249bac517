//! Which Controllers of the cluster run beside those of the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::{Map, Value};

use operator_host_config::memory_limit::Memory;
use operator_host_config::object::ControllerObject;
use operator_host_config::{Config, ControllerConfig};
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

/// The last `spec` of each Controller that was allowed to run, by UID. What is written into a Controller afterwards and is refused
/// changes nothing.
#[derive(Default)]
pub(in crate::operator) struct LastAllowed(BTreeMap<String, Map<String, Value>>);

/// Adds the Controllers of the cluster to those of the file. If two are for one kind, the older one runs, in whatever order
/// the host learns of them.
pub(in crate::operator) fn admit(
    file: &Config,
    memory: &Memory,
    objects: &[Arc<DynamicObject>],
    last: &mut LastAllowed,
) -> Admitted {
    let mut config = file.clone();
    let mut refused = BTreeMap::new();
    let mut before = std::mem::take(&mut last.0);
    let mut by_age: Vec<_> = objects.iter().filter(|object| !is_terminating(object)).collect();
    by_age.sort_by_key(|object| (object.metadata.creation_timestamp.clone(), object.name_any()));
    for object in by_age {
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        let before = before.remove(&uid);
        let decide = |spec: &_| decide(file, &config.controllers, memory, &name, spec);
        let spec = spec_of(object);
        let (controller, spec) = match decide(&spec) {
            Ok(controller) => (Some(controller), Some(spec)),
            Err(mut why) => {
                // The ceilings may be lower now.
                let still = before.as_ref().and_then(|before| decide(before).ok());
                if still.is_some() {
                    why.still_runs = true;
                    why.message += "; the spec before this change still runs";
                }
                refused.insert(name, why);
                (still, before)
            }
        };
        config.controllers.extend(controller);
        last.0.extend(spec.map(|spec| (uid, spec)));
    }
    Admitted { config, refused }
}

fn spec_of(object: &DynamicObject) -> Map<String, Value> {
    object.data["spec"].as_object().cloned().unwrap_or_default()
}

/// Reads a Controller, and checks that the file and its ceilings let it run.
pub(in crate::operator) fn may_run(
    file: &Config,
    object: &DynamicObject,
) -> Result<ControllerObject, Refused> {
    read(file, &object.name_any(), &spec_of(object))
}

fn read(file: &Config, name: &str, spec: &Map<String, Value>) -> Result<ControllerObject, Refused> {
    let refused = |reason| move |message| Refused::new(reason, message);
    let is_taken = |other: &ControllerConfig| !other.is_object && other.name == name;
    if file.controllers.iter().any(is_taken) {
        let message = format!("the host's configuration file already has a controller named {name:?}");
        return Err(refused("NameTaken")(message));
    }
    let read = file.object(name, spec).map_err(refused("InvalidSpec"))?;
    file.allows(&read).map_err(refused("NotAllowed"))?;
    Ok(read)
}

fn decide(
    file: &Config,
    others: &[ControllerConfig],
    memory: &Memory,
    name: &str,
    spec: &Map<String, Value>,
) -> Result<ControllerConfig, Refused> {
    let controller = read(file, name, spec)?.config;
    memory
        .check_one(&controller)
        .map_err(|message| Refused::new("TooLarge", message))?;
    let other = others
        .iter()
        .find(|other| other.parent.is_version_of(&controller.parent));
    match other {
        Some(other) => {
            // Perhaps in another version.
            let parent = &other.parent;
            let message = match other.is_object {
                true => format!(
                    "the Controller {:?}, which is older, already reconciles {parent}",
                    other.name
                ),
                false => format!(
                    "the controller {:?} of the host's configuration file already reconciles {parent}",
                    other.name
                ),
            };
            Err(Refused::new("KindTaken", message))
        }
        None => Ok(controller),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn file() -> Config {
        let text = "controllers: [{name: mine, parent: {apiVersion: a.dev/v1, kind: Mine}, plugin: mine.wasm}]\n\
                    ceilings: {parents: [{apiGroups: ['*.dev'], kinds: ['*']}]}\n";
        Config::parse(Path::new("/etc/config.yaml"), text).unwrap()
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
        admitted_after(&mut LastAllowed::default(), &file(), objects)
    }

    fn admitted_after(
        last: &mut LastAllowed,
        file: &Config,
        objects: &[Arc<DynamicObject>],
    ) -> (Vec<String>, Vec<String>) {
        let memory = Memory::of_process(Some(1 << 30));
        let admitted = admit(file, &memory, objects, last);
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
            &mut LastAllowed::default(),
        );
        assert_eq!(admitted.refused["a"].reason, "TooLarge");
    }
}
