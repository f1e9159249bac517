//! Plugins compiled for earlier versions of the contract, which this host must load. The files, their sources
//! and how to add a version: `tests/fixtures/compat`.

use std::path::Path;
use std::time::Duration;

use plugin_fixtures::{Fixture, Form, cases};
use serde_json::json;

use super::*;
use crate::Shown;
use crate::contract::{Condition, ConditionStatus, ContractVersion, Conversion, Json, Related};

fn files(version: ContractVersion) -> [Vec<u8>; 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/compat")
        .join(version.as_str());
    ["component.wasm", "command.wasm"].map(|name| std::fs::read(folder.join(name)).expect("a committed file"))
}

fn object(value: serde_json::Value) -> Arc<DynamicObject> {
    Arc::new(serde_json::from_value(value).expect("an object"))
}

#[tokio::test]
async fn plugins_made_for_every_promised_version_load_and_every_record_of_theirs_is_read() {
    for version in ContractVersion::ALL {
        for file in files(version) {
            let plugin = load(file, Limits::default()).await.unwrap();
            let kind = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind});
            let mut described = json!({
                "contract": version, "name": "compat", "version": "1.2.3", "parent": kind("fixtures.dev/v1", "Fixture"),
                "makes": [kind("v1", "ConfigMap")], "reads": [kind("v1", "Secret")], "finalizer": true,
                "crd": {"kind": "CustomResourceDefinition"},
            });
            if version >= ContractVersion::V0_3 {
                described["versions"] = json!(["v1beta1", "v1"]);
                described["defaults"] = true.into();
                converts_and_defaults(&plugin).await;
            }
            assert_eq!(
                serde_json::to_value(plugin.description()).unwrap(),
                described,
                "{version}"
            );
            let mut request = request("2026-01-02T03:04:05Z");
            let call = plugin.reconcile(&request).await;
            assert_eq!(call.stats.log_lines, 1);
            assert_eq!(
                serde_json::to_value(call.outcome.unwrap()).unwrap(),
                json!({
                    "children": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}],
                    "keep": [{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "kept"}],
                    "generate": [{"name": "made", "entries": [{"key": "password", "length": 24, "alphabet": "ab"}]}],
                    "status": {"phase": "Old"},
                    "conditions": [{"type": "Ready", "status": "Unknown", "reason": "Old", "message": "as it was"}],
                    "events": [{"type": "Warning", "reason": "Old", "message": "an event"}],
                    "requeueAfterMs": 60_000,
                    "needs": [{
                        "id": "n", "apiVersion": "v1", "kind": "Secret", "namespace": "default", "name": "s",
                        "labelSelector": "a=b",
                    }],
                }),
                "{version}"
            );
            for (namespace_terminating, phase) in [(false, "Gone"), (true, going(version))] {
                request.namespace_terminating = namespace_terminating;
                let cleanup = plugin.cleanup(&request).await.outcome.unwrap();
                assert_eq!(
                    cleanup.status,
                    json!({"phase": phase}).as_object().cloned(),
                    "{version}"
                );
            }
            let cleanup = plugin.cleanup(&request).await.outcome.unwrap();
            assert!(cleanup.done);
            assert_eq!((cleanup.events.len(), cleanup.requeue_after_ms), (1, Some(1000)));

            let child =
                object(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}));
            request.related = vec![Related {
                id: "n".into(),
                objects: vec![Arc::clone(&child)],
            }];
            assert_eq!(
                plugin.reconcile(&request).await.outcome.unwrap_err(),
                CallError::Invalid {
                    reason: Some("Never".into()),
                    message: "never".into(),
                    shown: shown(version),
                }
            );
            request.children = vec![child];
            assert_eq!(
                plugin.reconcile(&request).await.outcome.unwrap_err(),
                CallError::Retry {
                    message: "not yet".into(),
                    after: Some(Duration::from_millis(1500)),
                    shown: shown(version),
                }
            );
        }
    }
}

/// What a version's plugin shows with a failure.
fn shown(version: ContractVersion) -> Shown {
    match version {
        ContractVersion::V0_1 | ContractVersion::V0_2 => Shown::default(),
        ContractVersion::V0_3 => Shown {
            status: json!({"phase": "Failed"}).as_object().cloned(),
            conditions: vec![Condition {
                type_: "Old".into(),
                status: ConditionStatus::False,
                reason: "Failed".into(),
                message: "as it was".into(),
            }],
        },
    }
}

/// The answer of a version's plugin about a namespace that is being deleted.
fn going(version: ContractVersion) -> &'static str {
    match version {
        ContractVersion::V0_1 => "Gone",
        ContractVersion::V0_2 | ContractVersion::V0_3 => "Going",
    }
}

/// The plugin answers with the version that it is asked for, and refuses every second object.
async fn converts_and_defaults(plugin: &Plugin) {
    let object = |name: &str| -> Json {
        serde_json::from_value(json!({"apiVersion": "fixtures.dev/v1", "metadata": {"name": name}})).unwrap()
    };
    let conversion = Arc::new(Conversion {
        api_version: "fixtures.dev/v1beta1".into(),
        objects: vec![object("a"), object("b")],
    });
    let converted = plugin.convert(&conversion).await.outcome.unwrap();
    assert_eq!(
        serde_json::to_value(&converted).unwrap(),
        json!([{"object": {"apiVersion": "fixtures.dev/v1beta1"}}, {"error": "not this one"}])
    );
    let defaulted = plugin.default(&object("a")).await.outcome.unwrap();
    assert_eq!(serde_json::to_value(defaulted).unwrap(), json!({"size": 1}));
}

#[tokio::test]
async fn a_command_reads_what_is_in_the_version_that_it_is_made_for() {
    for (version, terminating) in [
        (ContractVersion::V0_1, None),
        (ContractVersion::V0_2, Some(json!(true))),
        (ContractVersion::V0_3, Some(json!(true))),
    ] {
        let file = Fixture::new(cases::INPUT)
            .version(version.as_str())
            .build(Form::Command);
        let plugin = load(file, Limits::default()).await.unwrap();
        assert_eq!(plugin.description().contract, version);
        let mut request = request("2026-01-02T03:04:05Z");
        request.namespace_terminating = true;
        let input = plugin
            .reconcile(&request)
            .await
            .outcome
            .unwrap()
            .children
            .remove(0);
        assert_eq!(input["contract"], version.as_str());
        assert_eq!(
            input["request"].get("namespaceTerminating"),
            terminating.as_ref(),
            "{input}"
        );
    }
}

/// A component whose export has another version than its records is rejected when it is loaded, not with its
/// first parent.
#[tokio::test]
async fn a_component_with_the_records_of_another_version_is_refused_when_it_is_loaded() {
    let file = Fixture::new(cases::ANSWER)
        .version("0.1.0")
        .records("0.2.0")
        .build(Form::Component);
    let message = refused(file).await;
    assert!(
        message.contains("expected record of 5 fields, found 6"),
        "{message}"
    );
}
