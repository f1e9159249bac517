//! The limits apply to the memory that a text occupies in the host, not only to its length.

use plugin_fixtures::{FORMS, Form, cases};

use super::*;
use crate::limits::MIB;

/// Returns the peak resident memory of this process, in bytes. Source: proc_pid_status(5).
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Runs one test of this module in a separate process, because the peak of this process includes all tests.
/// Returns how much memory `test` used there beyond the initial amount.
async fn alone(name: &str, test: impl AsyncFnOnce()) {
    const MARK: &str = "OPERATOR_HOST_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return test().await;
    }
    let program = std::env::current_exe().unwrap();
    let name = format!("tests::amounts::{name}");
    let output = std::process::Command::new(program)
        .args([&name, "--exact", "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn an_answer_of_millions_of_small_objects_is_refused_and_takes_no_memory() {
    alone(
        "an_answer_of_millions_of_small_objects_is_refused_and_takes_no_memory",
        async || {
            for form in FORMS {
                let plugin = plugin(form, cases::MANY_VALUES, Limits::default()).await;
                let before = peak();
                assert_eq!(error(&plugin).await, CallError::values(100_000), "{form:?}");
                // The guest's own memory, and two copies of the text.
                let grown = peak() - before;
                assert!(grown < 32 * MIB, "{form:?}: {grown}");
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_command_that_waits_for_more_than_a_component_may_gets_an_error_and_takes_no_memory() {
    alone(
        "a_command_that_waits_for_more_than_a_component_may_gets_an_error_and_takes_no_memory",
        async || {
            let plugin = plugin(Form::Command, cases::POLL, Limits::default()).await;
            let before = peak();
            // `nomem` of preview 1.
            assert_eq!(children(&plugin).await[0]["errno"], "48");
            let grown = peak() - before;
            assert!(grown < 80 * MIB, "the guest's own memory is 64 MiB: {grown}");
        },
    )
    .await;
}

/// A command that answers every call with a description whose `crd` is a list of this many empty objects.
fn describing(objects: usize) -> Vec<u8> {
    let start = r#"{"description":{"contract":"1.0.0","name":"d","version":"1","parent":{"apiVersion":"a/v1","kind":"K"},"makes":[],"crd":["#;
    let end = "{}]}}";
    let text = |text: &str| text.replace('"', "\\22");
    let bytes = objects * 3;
    let module = format!(
        r#"(module
          (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
          (memory (export "memory") 256)
          (data (i32.const 1024) "{start}") (data (i32.const 2048) "{end}")
          (func $write (param $text i32) (param $length i32)
            (loop $rest
              (i32.store (i32.const 256) (local.get $text))
              (i32.store (i32.const 260) (local.get $length))
              (drop (call $fd_write (i32.const 1) (i32.const 256) (i32.const 1) (i32.const 264)))
              (local.set $text (i32.add (local.get $text) (i32.load (i32.const 264))))
              (local.set $length (i32.sub (local.get $length) (i32.load (i32.const 264))))
              (br_if $rest (local.get $length))))
          (func (export "_start")
            (local $at i32)
            (loop $next
              (i32.store offset=65536 (local.get $at) (i32.const 0x2c7d7b))
              (local.set $at (i32.add (local.get $at) (i32.const 3)))
              (br_if $next (i32.lt_u (local.get $at) (i32.const {bytes}))))
            (call $write (i32.const 1024) (i32.const {}))
            (call $write (i32.const 65536) (i32.const {bytes}))
            (call $write (i32.const 2048) (i32.const {}))))"#,
        start.len(),
        end.len(),
        start = text(start),
        end = text(end),
    );
    plugin_fixtures::module(&module)
}

#[tokio::test]
async fn a_description_has_limits_of_its_own() {
    alone("a_description_has_limits_of_its_own", async || {
        loaded(describing(40_000)).await;
        let before = peak();
        // Too many values in a short text, and a text that is too long.
        for objects in [60_000, 2_000_000] {
            let words = "more than 2 MiB … 50000 JSON values … one CustomResourceDefinition";
            refused_with(describing(objects), words).await;
        }
        let grown = peak() - before;
        assert!(grown < 64 * MIB, "{grown}");
    })
    .await;
}
