//! Plugins that behave correctly.

use plugin_fixtures::{FORMS, Fixture, Form, cases};

use std::time::Duration;

use super::*;
use crate::Form as Loaded;
use crate::contract::{Failure, Kind, Response};
use operator_host_core::digest::Digest;

fn answer() -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "answer" } })
}

/// Regression: a Go program that imports `k8s.io/api` panicked, since `klog` reads the name of its program at the start.
#[tokio::test]
async fn a_command_has_one_argument() {
    let import =
        r#"(import "wasi_snapshot_preview1" "args_sizes_get" (func $args (param i32 i32) (result i32)))"#;
    let case = "(func $case
        (drop (call $args (i32.const 300) (i32.const 304)))
        (call $proc_exit (i32.load (i32.const 300))))";
    let file = Fixture::new(case).import(import).build(Form::Command);
    let error = error(&loaded(file).await).await;
    assert_contains(&error.to_string(), "code 1");
}

#[tokio::test]
async fn a_plugin_describes_itself() {
    for form in FORMS {
        let file = Fixture::new(cases::ANSWER).build(form);
        let plugin = loaded(file.clone()).await;
        assert_eq!(plugin.description().name, "fixture");
        assert_eq!(plugin.description().version, "1.0.0");
        assert_eq!(
            plugin.description().parent,
            Kind::new("fixtures.dev/v1", "Fixture")
        );
        assert_eq!(plugin.description().makes, [Kind::new("v1", "ConfigMap")]);
        assert!(plugin.description().finalizer, "{form:?}");
        assert_eq!(*plugin.digest(), Digest::of(&file));
        assert_eq!(plugin.size(), file.len());
        let expected = match form {
            Form::Component => Loaded::Component,
            Form::Command => Loaded::Command,
        };
        assert_eq!(plugin.form(), expected);
    }
}

#[tokio::test]
async fn reconcile_gives_children_and_what_the_call_used() {
    for form in FORMS {
        let call = reconcile(&plugin(form, cases::ANSWER, Limits::default()).await).await;
        assert_eq!(call.outcome.unwrap().children, [answer()], "{form:?}");
        assert!(call.stats.guest_time > Duration::ZERO);
        assert_eq!(call.stats.log_lines, 1);
        assert!(call.stats.peak_memory >= 2 * 65_536, "{form:?}: {:?}", call.stats);
        assert!(call.stats.request_bytes > 100, "{form:?}: {:?}", call.stats);
        assert!(call.stats.response_bytes >= 67, "{form:?}: {:?}", call.stats);
    }
}

#[tokio::test]
async fn cleanup_reports_done() {
    for form in FORMS {
        let plugin = plugin(form, cases::ANSWER, Limits::default()).await;
        let call = plugin.cleanup(&request("2026-01-02T03:04:05Z")).await;
        let done = Response {
            done: true,
            ..Default::default()
        };
        assert_eq!(call.outcome.unwrap(), done, "{form:?}");
    }
}

#[tokio::test]
async fn an_encoded_component_is_a_plugin_too() {
    let module = Fixture::new(cases::ANSWER).build(Form::Component);
    let component = super::super::component::encode(&module).unwrap();
    assert_eq!(children(&loaded(component).await).await, [answer()]);
}

#[tokio::test]
async fn a_command_that_carries_bindings_is_still_a_command() {
    let file = Fixture::new(cases::ANSWER).command_with_bindings();
    let plugin = loaded(file).await;
    assert_eq!(plugin.form(), Loaded::Command);
    assert_eq!(children(&plugin).await, [answer()]);
}

#[tokio::test]
async fn clocks_and_randomness_derive_from_the_request() {
    let mut forms = Vec::new();
    for form in FORMS {
        let plugin = plugin(form, cases::CLOCK_AND_RANDOM, Limits::default()).await;
        let seen = async |now| {
            let response = plugin.reconcile(&request(now)).await.outcome.unwrap();
            response.children[0]["seen"].as_str().unwrap().to_owned()
        };
        let first = seen("2026-01-02T03:04:05Z").await;
        assert_eq!(
            first,
            seen("2026-01-02T03:04:05Z").await,
            "{form:?}: the same request"
        );
        let later = seen("2026-01-02T03:04:06Z").await;

        // Nanoseconds since 1970, little-endian, as WASI returns them.
        let wall = u64::from_str_radix(&first[..16], 16).unwrap().swap_bytes();
        assert_eq!(wall, 1_767_323_045_000_000_000, "{form:?}");
        assert_ne!(
            first[48..],
            later[48..],
            "{form:?}: another request draws other bytes"
        );
        forms.push(first);
    }
    // The readings of the monotonic clock differ, because the adapter may read it too.
    let of_the_request = |seen: &str| (seen[..16].to_owned(), seen[48..].to_owned());
    assert_eq!(
        of_the_request(&forms[0]),
        of_the_request(&forms[1]),
        "both forms see the same"
    );
}

#[tokio::test]
async fn a_command_that_reports_a_failure_is_taken_at_its_word() {
    let invalid = writing(r#"{"failure":{"invalid":{"reason":"TooSmall","message":"make it bigger"}}}"#);
    assert_eq!(
        failure(Form::Command, &invalid, Limits::default()).await,
        CallError::Failure(Failure::Invalid {
            reason: Some("TooSmall".into()),
            message: "make it bigger".into(),
            status: None,
            conditions: Vec::new(),
        })
    );
    let retry = writing(r#"{"failure":{"retry":{"message":"not yet","afterMs":1500}}}"#);
    assert_eq!(
        failure(Form::Command, &retry, Limits::default()).await,
        CallError::Failure(Failure::Retry {
            message: "not yet".into(),
            after_ms: Some(1500),
            status: None,
            conditions: Vec::new(),
        })
    );
}
