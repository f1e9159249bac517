//! A plugin's answer, in both forms, up to its plan: the plan contains nothing that the configuration does not
//! allow, and every body to apply belongs to this parent.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use kube::core::DynamicObject;
use operator_host_config::{Config, ControllerConfig};
use operator_host_contract::{CommandOutput, Kind, Response};
use operator_host_core::child_rules::Removal;
use operator_host_core::object::{
    APPLIED_ANNOTATION, CONTROLLER_LABEL, ChildRef, NotServed, PARENT_ANNOTATION, Provenance,
    object_name_problem,
};
use operator_host_desired::ownership::{owns, retains};
use operator_host_desired::plan::{Plan, Policy, plan};
use operator_host_desired::provenance::SecretProof;
use operator_host_runtime::Limits;
use operator_host_runtime::fuzzing;
use serde_json::{Value, json};

use crate::draw::RandomSource;

const DIGEST: &str = "sha256:d";

pub(crate) fn run(bytes: &[u8]) {
    let mut draw = RandomSource::new(bytes);
    let config = config(draw.chance(2));
    let parent = parent(draw.pick(&[Some("default"), None]));
    let cluster = draw.byte();
    let Some(response) = response(draw) else { return };
    let existing = |key: &ChildRef| existing(&config, &parent, cluster, key);
    let policy = Policy {
        scope: config.scope(),
        parent: &parent,
        digest: DIGEST,
        trace: None,
        plugin: "shop 1.0",
        namespaced: &namespaced,
        existing: &existing,
        shown: &[],
        proof: SecretProof::Key(None),
    };
    let planned = || plan(&policy, &response);
    match planned() {
        Ok(plan) => {
            assert_eq!(planned().as_ref(), Ok(&plan), "planning is not deterministic");
            assert_eq!(plan.desired.len(), response.children.len(), "all or nothing");
            assert_eq!(plan.secrets.len(), response.generate.len());
            is_allowed(&config, &parent, &plan);
            for key in keys(&plan) {
                if let Some(live) = existing(key) {
                    may_be_touched(&config, &parent, &live);
                }
            }
        }
        Err(refusals) => {
            assert!(!refusals.is_empty());
            refusals
                .iter()
                .for_each(|refusal| assert!(!refusal.to_string().is_empty()));
        }
    }
}

/// The answer of a command is one document; that of a component has a string for each object.
fn response(mut draw: RandomSource<'_>) -> Option<Response> {
    let is_command = draw.chance(2);
    let rest = draw.rest();
    let answer = if is_command {
        fuzzing::command_answer(rest, &Limits::DEFAULT)
    } else {
        let mut texts: Vec<String> = String::from_utf8_lossy(rest).lines().map(str::to_owned).collect();
        let status = texts.pop();
        fuzzing::component_answer(&texts, status.as_deref(), &Limits::DEFAULT)
    };
    match answer {
        Ok(CommandOutput::Response(response)) => Some(*response),
        Ok(_) => None,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fn keys(plan: &Plan) -> impl Iterator<Item = &ChildRef> {
    let desired = plan.desired.iter().map(|desired| &desired.key);
    desired.chain(plan.secrets.iter().map(|secret| &secret.key))
}

fn is_allowed(config: &ControllerConfig, parent: &DynamicObject, plan: &Plan) {
    let mut seen = HashSet::new();
    for key in keys(plan) {
        assert!(seen.insert(key), "{key} is there twice");
        assert!(
            config.rules.children.contains_key(&key.kind),
            "{key} may not be made"
        );
        match (&parent.metadata.namespace, &key.name.namespace) {
            (Some(own), namespace) => assert_eq!(namespace.as_ref(), Some(own), "{key}"),
            (None, Some(namespace)) => assert!(config.rules.other_namespaces.contains(namespace), "{key}"),
            (None, None) => assert_eq!(namespaced(&key.kind), Ok(false), "{key}"),
        }
        assert_eq!(object_name_problem(&key.name.name), None, "{key}");
    }
    for desired in &plan.desired {
        body(
            config,
            parent,
            &desired.key,
            &desired.body,
            config.rules.children[&desired.key.kind],
        );
        assert_eq!(
            desired.body["metadata"]["annotations"][APPLIED_ANNOTATION],
            desired.fingerprint
        );
        let child: DynamicObject = serde_json::from_value(desired.body.clone()).expect("an object");
        assert_eq!(Provenance::of(&child).map(|made| made.digest), Some(DIGEST));
    }
    for secret in &plan.secrets {
        body(config, parent, &secret.key, &secret.body, config.rules.generated);
        assert!(secret.body.get("data").is_none() && secret.body.get("stringData").is_none());
        for entry in &secret.secret.entries {
            assert!((8..=1024).contains(&entry.length), "{}", entry.length);
        }
    }
}

/// Checks the body that would be sent to the API server.
fn body(config: &ControllerConfig, parent: &DynamicObject, key: &ChildRef, body: &Value, removal: Removal) {
    let metadata = &body["metadata"];
    assert_eq!(body["apiVersion"], key.kind.api_version);
    assert_eq!(body["kind"], key.kind.kind);
    assert_eq!(metadata["name"], key.name.name);
    assert_eq!(metadata["namespace"].as_str(), key.name.namespace.as_deref());
    for field in "managedFields resourceVersion uid creationTimestamp generation selfLink".split(' ') {
        assert!(metadata.get(field).is_none(), "{field} is applied");
    }
    assert!(body.get("status").is_none(), "a status is applied");
    let finalizers = &metadata["finalizers"];
    assert!(finalizers.is_null() || *finalizers == json!([]), "{finalizers}");
    assert_ne!(body["type"], "kubernetes.io/service-account-token");
    assert_eq!(metadata["labels"][CONTROLLER_LABEL], config.name.as_str());
    let name = parent
        .metadata
        .namespace
        .as_ref()
        .map_or_else(|| "a".to_owned(), |own| format!("{own}/a"));
    assert_eq!(metadata["annotations"][PARENT_ANNOTATION], name);
    let owners = match removal {
        Removal::Retain => Value::Null,
        Removal::Delete => json!([{
            "apiVersion": "example.com/v1", "kind": "Shop", "name": "a", "uid": "uid-a",
            "controller": true, "blockOwnerDeletion": true,
        }]),
    };
    assert_eq!(metadata["ownerReferences"], owners);
    assert!(
        serde_json::from_value::<DynamicObject>(body.clone()).is_ok() || !metadata_is_well_formed(metadata)
    );
}

/// The plugin may set labels, annotations and finalizers; if the API server rejects them, that is an error of the
/// child.
fn metadata_is_well_formed(metadata: &Value) -> bool {
    serde_json::from_value::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>(metadata.clone())
        .is_ok()
}

/// Checks that an existing object is written only when it is proved to be this parent's, or when adoption is on and
/// nobody owns it.
fn may_be_touched(config: &ControllerConfig, parent: &DynamicObject, live: &DynamicObject) {
    if owns(config.scope(), parent, live) || retains(config.scope(), SecretProof::Key(None), parent, live) {
        return;
    }
    let owner = live
        .metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    match owner {
        // An owner reference to this parent alone, without the label, may have been written by a user.
        Some(owner) => assert_eq!(Some(&owner.uid), parent.metadata.uid.as_ref(), "{live:?}"),
        None => assert!(config.rules.adopt, "{live:?} is taken over"),
    }
}

/// Returns the configuration against which all answers are checked.
pub(crate) fn config(adopt: bool) -> ControllerConfig {
    static CONFIGS: LazyLock<[ControllerConfig; 2]> = LazyLock::new(|| [false, true].map(read));
    CONFIGS[usize::from(adopt)].clone()
}

fn read(adopt: bool) -> ControllerConfig {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.wasm"), b"").expect("a file");
    let text = format!(
        "controllers:
  - name: shop
    parent: {{apiVersion: example.com/v1, kind: Shop}}
    plugin: p.wasm
    adopt: {adopt}
    otherNamespaces: [spare]
    reads: [{{apiVersion: v1, kind: ConfigMap}}]
    children:
      - {{apiVersion: v1, kind: Pod}}
      - {{apiVersion: v1, kind: Secret}}
      - {{apiVersion: v1, kind: PersistentVolumeClaim}}
      - {{apiVersion: v1, kind: Node}}
      - {{apiVersion: example.com/v1, kind: Missing}}
"
    );
    let config = Config::parse(&folder.path().join("config.yaml"), &text);
    config.expect("a configuration").controllers.remove(0)
}

pub(crate) fn kind(api_version: &str, kind: &str) -> Kind {
    Kind::new(api_version, kind)
}

pub(crate) fn parent(namespace: Option<&str>) -> DynamicObject {
    object(json!({
        "apiVersion": "example.com/v1", "kind": "Shop",
        "metadata": {"name": "a", "namespace": namespace, "uid": "uid-a"},
    }))
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

fn namespaced(kind: &Kind) -> Result<bool, NotServed> {
    match kind.kind.as_str() {
        "Node" => Ok(false),
        "Missing" => Err(NotServed::new(kind.clone())),
        _ => Ok(true),
    }
}

/// Returns the existing object of a name: none, one of this parent, or somebody else's.
fn existing(
    config: &ControllerConfig,
    parent: &DynamicObject,
    cluster: u8,
    key: &ChildRef,
) -> Option<Arc<DynamicObject>> {
    let owner = |uid: &str, name: &str, kind: &str| json!([{"apiVersion": "example.com/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let marked = |parent: &str| {
        (
            json!({CONTROLLER_LABEL: config.name}),
            json!({PARENT_ANNOTATION: parent}),
        )
    };
    let own = operator_host_core::object::NamespacedName::of(parent).to_string();
    let (owners, (labels, annotations)) = match cluster % 8 {
        0 | 1 => return None,
        2 => (owner("uid-a", "a", "Shop"), marked(&own)),
        3 => (owner("uid-old", "a", "Shop"), marked(&own)),
        4 => (owner("uid-b", "b", "Shop"), marked("default/b")),
        5 => (json!([]), marked(&own)),
        6 => (json!([]), marked("default/b")),
        _ => (json!([]), (json!({}), json!({}))),
    };
    Some(Arc::new(object(json!({
        "apiVersion": key.kind.api_version, "kind": key.kind.kind,
        "metadata": {
            "name": key.name.name, "namespace": key.name.namespace, "uid": "uid-live",
            "ownerReferences": owners, "labels": labels, "annotations": annotations,
        },
    }))))
}
