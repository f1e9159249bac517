//! Plugins as they were compiled for earlier versions of the contract: this host promises to load them. The files, their
//! sources and how to add a version: `tests/fixtures/compat`.

use std::path::Path;
use std::time::Duration;

use plugin_fixtures::{Fixture, Form, cases};
use serde_json::json;

use super::*;
use crate::contract::{CONTRACT_VERSION, Related};

/// The versions that a plugin may be made for.
const PROMISED: [&str; 1] = ["0.1.0"];

fn files(version: &str) -> [Vec<u8>; 2] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/compat")
        .join(version);
    ["component.wasm", "command.wasm"].map(|name| std::fs::read(folder.join(name)).expect("a committed file"))
}

fn object(value: serde_json::Value) -> Arc<DynamicObject> {
    Arc::new(serde_json::from_value(value).expect("an object"))
}

#[tokio::test]
async fn plugins_made_for_every_promised_version_load_and_every_record_of_theirs_is_read() {
    for version in PROMISED {
        for file in files(version) {
            let plugin = load(file, Limits::default()).await.unwrap();
            let kind = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind});
            assert_eq!(
                serde_json::to_value(plugin.description()).unwrap(),
                json!({
                    "name": "compat", "version": "1.2.3", "parent": kind("fixtures.dev/v1", "Fixture"),
                    "makes": [kind("v1", "ConfigMap")], "reads": [kind("v1", "Secret")], "finalizer": true,
                    "crd": {"kind": "CustomResourceDefinition"},
                }),
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
            let cleanup = plugin.cleanup(&request).await.outcome.unwrap();
            assert!(cleanup.done);
            assert_eq!(cleanup.status, json!({"phase": "Gone"}).as_object().cloned());
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
                    message: "never".into()
                }
            );
            request.children = vec![child];
            assert_eq!(
                plugin.reconcile(&request).await.outcome.unwrap_err(),
                CallError::Retry {
                    message: "not yet".into(),
                    after: Some(Duration::from_millis(1500))
                }
            );
        }
    }
}

#[tokio::test]
async fn the_present_version_is_among_the_promised_and_a_newer_one_is_refused_with_both_named() {
    assert_eq!(
        PROMISED.last(),
        Some(&CONTRACT_VERSION),
        "add its plugins to tests/fixtures/compat"
    );
    let newer = Fixture::new(cases::ANSWER)
        .version("0.2.0")
        .build(Form::Component);
    let message = refused(newer).await;
    for words in ["version 0.2.0 of the contract", "this host speaks 0.1.0"] {
        assert!(message.contains(words), "{message}");
    }
}
