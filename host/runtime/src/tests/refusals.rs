//! Imports that the host provides to no plugin: a plugin that tool-chains gave them loads, and one that calls them ends.

use plugin_fixtures::{FORMS, Fixture, Form, cases};

use super::*;

/// Interfaces with resources of which one uses those of another, and one that the host provides. They are not called
/// those of sockets, which the adapter for preview 1 knows.
const IO: &str = "package wasi:io@0.2.0; interface streams { resource input-stream; }";
const SOCKETS: &str = "package wasi:http@0.2.0;
    interface network { resource network; }
    interface instance-network { use network.{network}; instance-network: func() -> network; }
    interface tcp {
        use network.{network};
        use wasi:io/streams@0.2.0.{input-stream};
        resource tcp-socket { start-bind: func(to: borrow<network>) -> result; }
        connect: func(addresses: list<list<u8>>) -> result<tuple<tcp-socket, input-stream>>;
    }";
const NETWORK: &str = "wasi:http/instance-network@0.2.0";
const TCP: &str = "wasi:http/tcp@0.2.0";

/// Returns a component that imports sockets.
fn with_sockets(case: &str) -> Fixture {
    Fixture::new(case)
        .world_import(IO, "wasi:io/streams@0.2.0")
        .world_import(SOCKETS, NETWORK)
        .world_import("package wasi:nothing@0.2.0;", TCP)
        .import(&format!(
            r#"(import "{NETWORK}" "instance-network" (func $network (result i32)))
               (import "{TCP}" "connect" (func $connect (param i32 i32 i32)))
               (import "{TCP}" "[method]tcp-socket.start-bind" (func $bind (param i32 i32) (result i32)))
               (import "{TCP}" "[resource-drop]tcp-socket" (func $drop-socket (param i32)))"#
        ))
}

/// Returns a command that imports them.
fn command_with_sockets(case: &str) -> Fixture {
    Fixture::new(case).import(
        r#"(import "wasi_snapshot_preview1" "sock_accept" (func $accept (param i32 i32 i32) (result i32)))
           (import "wasi_snapshot_preview1" "sock_recv"
             (func $recv (param i32 i32 i32 i32 i32 i32) (result i32)))
           (import "wasi_snapshot_preview1" "sock_send" (func $send (param i32 i32 i32 i32 i32) (result i32)))
           (import "wasi_snapshot_preview1" "sock_shutdown" (func $shutdown (param i32 i32) (result i32)))
           (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#,
    )
}

#[tokio::test]
async fn a_plugin_that_does_not_call_them_answers_and_they_are_listed() {
    let component = loaded(with_sockets(cases::ANSWER).build(Form::Component)).await;
    // Not the interface that only has a type.
    let expected = ["wasi:http/network@0.2.0", NETWORK, TCP];
    assert_eq!(component.refused_imports(), expected);
    let command = loaded(command_with_sockets(cases::ANSWER).build(Form::Command)).await;
    for plugin in [component, command] {
        assert_eq!(children(&plugin).await[0]["metadata"]["name"], "answer");
    }
    for form in FORMS {
        let plugin = plugin(form, cases::ANSWER, Limits::default()).await;
        assert!(plugin.refused_imports().is_empty(), "{form:?}");
    }
}

#[tokio::test]
async fn a_call_of_one_ends_the_plugin_and_names_it() {
    let calls = [
        ("(drop (call $network))", format!("{NETWORK}#instance-network")),
        (
            "(call $connect (i32.const 0) (i32.const 0) (i32.const 8192))",
            format!("{TCP}#connect"),
        ),
    ];
    for (call, import) in calls {
        let case = format!("(func $case {call} {})", "(unreachable)");
        let plugin = loaded(with_sockets(&case).build(Form::Component)).await;
        let error = error(&plugin).await;
        let words = format!("it called `{import}`, which this host does not provide");
        assert_contains(&error.to_string(), &words);
        assert!(
            matches!(&error, CallError::Trap { backtrace, .. } if backtrace.contains("case")),
            "{error:?}"
        );
    }
    // A command gets the error number of a call without such a socket.
    let case = "(func $case
        (if (i32.eqz (call $send (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 0))) (then (unreachable)))
        (if (i32.eqz (call $shutdown (i32.const 0) (i32.const 0))) (then (unreachable)))
        (if (i32.eqz (call $accept (i32.const 3) (i32.const 0) (i32.const 0))) (then (unreachable)))
        (call $exit (i32.const 7)))";
    let plugin = loaded(command_with_sockets(case).build(Form::Command)).await;
    assert_contains(&error(&plugin).await.to_string(), "code 7");
}

/// A handle that the guest made up, as a number, reaches no function of the host.
#[tokio::test]
async fn a_forged_handle_is_nothing() {
    for handle in [0, 1, 7, -1] {
        let calls = [
            format!("(drop (call $bind (i32.const {handle}) (i32.const {handle})))"),
            format!("(call $drop-socket (i32.const {handle}))"),
        ];
        for call in calls {
            let fixture = with_sockets(&format!("(func $case {call})"));
            let error = error(&loaded(fixture.build(Form::Component)).await).await;
            assert!(error.to_string().contains("handle"), "{call}: {error}");
        }
    }
}

#[tokio::test]
async fn what_no_tool_chain_brings_is_refused_when_the_plugin_is_loaded() {
    for (package, interface) in [
        (
            "package wasi:keyvalue@0.2.0; interface store { get: func(); }",
            "wasi:keyvalue/store@0.2.0",
        ),
        (
            "package wasi:http@0.3.0; interface store { get: func(); }",
            "wasi:http/store@0.3.0",
        ),
        (
            "package wasi:http; interface store { get: func(); }",
            "wasi:http/store",
        ),
        (
            "package wasix:http@0.2.0; interface store { get: func(); }",
            "wasix:http/store@0.2.0",
        ),
        (
            "package acme:http@0.2.0; interface store { get: func(); }",
            "acme:http/store@0.2.0",
        ),
    ] {
        let import = format!(r#"(import "{interface}" "get" (func))"#);
        let fixture = Fixture::new(cases::ANSWER)
            .world_import(package, interface)
            .import(&import);
        let words = format!("{interface} … this host does not provide");
        refused_with(fixture.build(Form::Component), &words).await;
    }
}
