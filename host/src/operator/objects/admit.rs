//! Which Controllers of the cluster run beside those of the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use serde_json::Map;

use operator_host_config::memory_limit::Memory;
use operator_host_config::object::ControllerObject;
use operator_host_config::{Config, ControllerConfig};
use operator_host_core::object::is_terminating;

/// Why a Controller does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct Refused {
    /// In CamelCase.
    pub(in crate::operator) reason: &'static str,
    /// For its author.
    pub(in crate::operator) message: String,
}

/// A configuration with the Controllers of the cluster.
pub(in crate::operator) struct Admitted {
    /// What runs.
    pub(in crate::operator) config: Config,
    /// The Controllers that do not run, by name. One that is being deleted is in neither.
    pub(in crate::operator) refused: BTreeMap<String, Refused>,
}

/// Adds the Controllers of the cluster to those of the file. If two are for one kind, the older one runs, in whatever order
/// the host learns of them.
pub(in crate::operator) fn admit(file: &Config, memory: &Memory, objects: &[Arc<DynamicObject>]) -> Admitted {
    let mut config = file.clone();
    let mut refused = BTreeMap::new();
    let mut by_age: Vec<_> = objects.iter().filter(|object| !is_terminating(object)).collect();
    by_age.sort_by_key(|object| (object.metadata.creation_timestamp.clone(), object.name_any()));
    for object in by_age {
        match decide(file, &config.controllers, memory, object) {
            Ok(controller) => config.controllers.push(controller),
            Err(why) => {
                refused.insert(object.name_any(), why);
            }
        }
    }
    Admitted { config, refused }
}

/// Reads a Controller, and checks that the file and its ceilings let it run.
pub(in crate::operator) fn may_run(
    file: &Config,
    object: &DynamicObject,
) -> Result<ControllerObject, Refused> {
    let refused = |reason| move |message| Refused { reason, message };
    let name = object.name_any();
    let is_taken = |other: &ControllerConfig| !other.is_object && other.name == name;
    if file.controllers.iter().any(is_taken) {
        let message = format!("the host's configuration file already has a controller named {name:?}");
        return Err(refused("NameTaken")(message));
    }
    let empty = Map::new();
    let spec = object.data["spec"].as_object().unwrap_or(&empty);
    let read = file.object(&name, spec).map_err(refused("InvalidSpec"))?;
    file.allows(&read).map_err(refused("NotAllowed"))?;
    Ok(read)
}

fn decide(
    file: &Config,
    others: &[ControllerConfig],
    memory: &Memory,
    object: &DynamicObject,
) -> Result<ControllerConfig, Refused> {
    let refused = |reason| move |message| Refused { reason, message };
    let controller = may_run(file, object)?.config;
    memory.check_one(&controller).map_err(refused("TooLarge"))?;
    let other = others
        .iter()
        .find(|other| other.parent.is_version_of(&controller.parent));
    match other {
        Some(other) => {
            let parent = &controller.parent;
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
            Err(refused("KindTaken")(message))
        }
        None => Ok(controller),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn file() -> Config {
        let text = "controllers: [{name: mine, parent: {apiVersion: a.dev/v1, kind: Mine}, plugin: mine.wasm}]\n\
                    ceilings: {parents: [{apiGroups: ['*.dev'], kinds: ['*']}]}\n";
        Config::parse(Path::new("/etc/config.yaml"), text).unwrap()
    }

    fn object(name: &str, created: u8, kind: &str, other: &Value) -> Arc<DynamicObject> {
        let mut object = json!({
            "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
            "spec": {"parent": {"apiVersion": "a.dev/v1", "kind": kind}, "plugin": {"configMap": {"name": "p"}}},
        });
        let fields = other.as_object().unwrap().clone();
        object["spec"].as_object_mut().unwrap().extend(fields);
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn admitted(objects: &[Arc<DynamicObject>]) -> (Vec<String>, Vec<String>) {
        let memory = Memory::of_process(Some(1 << 30));
        let admitted = admit(&file(), &memory, objects);
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
            "broken InvalidSpec: `spec`: unknown field",
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
        let admitted = admit(&file(), &memory, &[object("a", 1, "Thing", &json!({}))]);
        assert_eq!(admitted.refused["a"].reason, "TooLarge");
    }
}
