//! Files that are not plugins are rejected when they are loaded, with a message that contains the problem.

use plugin_fixtures::{FORMS, Fixture, Form, another_world, cases, library, module};

use super::*;
use crate::component;
use crate::error::Part;

#[tokio::test]
async fn a_file_cut_off_anywhere_is_refused() {
    for form in FORMS {
        let file = Fixture::new(cases::ANSWER).build(form);
        // A file truncated between two sections is valid WebAssembly; it then lacks something else.
        for length in (0..file.len()).step_by(file.len() / 50) {
            load_error(file[..length].to_vec(), Limits::default()).await;
        }
        refused_with(file[..file.len() / 2].to_vec(), "not valid WebAssembly … cut off").await;
    }
    let component = component::encode(&Fixture::new(cases::ANSWER).build(Form::Component)).unwrap();
    refused_with(component[..component.len() / 2].to_vec(), "not valid WebAssembly").await;
}

#[tokio::test]
async fn a_file_that_is_no_plugin_is_refused_in_words() {
    let command = |import: &str, body: &str| {
        let text = r#"(module @IMPORT@ (memory (export "memory") 1) (func (export "_start") @BODY@))"#;
        module(&text.replace("@IMPORT@", import).replace("@BODY@", body))
    };
    let importing = command(r#"(import "env" "exec" (func))"#, "");
    let files = [
        (b"#!/bin/sh\nexit 0\n".to_vec(), "not WebAssembly … wasm32-wasip1"),
        (another_world(), "not a plugin … reconciler"),
        (library("run"), "`_start`"),
        (importing, "imports `env.exec` … no files, no network"),
        (command("", "unreachable"), "`describe` failed … unreachable"),
    ];
    for (file, words) in files {
        refused_with(file, words).await;
    }
}

#[tokio::test]
async fn a_file_over_the_size_limit_is_refused() {
    let file = Fixture::new(cases::ANSWER).build(Form::Command);
    let limits = Limits {
        module: file.len() - 1,
        ..Limits::default()
    };
    let error = load_error(file, limits).await;
    assert_eq!(error.part(), Part::Size, "{error}");
}

#[tokio::test]
async fn a_plugin_for_another_contract_is_refused_with_both_versions() {
    let newer = |version| {
        Fixture::new(cases::ANSWER)
            .version(version)
            .build(Form::Component)
    };
    for version in ["0.3.0", "1.0.1", "2.0.0"] {
        let words = format!("version {version} of the contract … this host supports 1.0.0:");
        refused_with(newer(version), &words).await;
    }
    let command = Fixture::new(cases::ANSWER).version("2.0.0").build(Form::Command);
    refused_with(command, "`2.0.0` … `1.0.0`").await;
}

#[tokio::test]
async fn every_import_outside_the_sandbox_is_named_at_once() {
    const HTTP: &str = "package wasi:http@0.3.0; interface outgoing-handler { handle: func(); }";
    let file = Fixture::new(cases::ANSWER)
        .import(r#"(import "wasi_snapshot_preview1" "sock_accept" (func (param i32 i32 i32) (result i32)))"#)
        .import(r#"(import "env" "connect" (func (param i32) (result i32)))"#)
        .world_import(HTTP, "wasi:http/outgoing-handler@0.3.0")
        .import(r#"(import "wasi:http/outgoing-handler@0.3.0" "handle" (func))"#)
        .build(Form::Component);
    let words =
        "`env.connect`, `wasi:http/outgoing-handler@0.3.0`, `wasi_snapshot_preview1.sock_accept`, which";
    refused_with(file, words).await;
}

#[tokio::test]
async fn a_module_that_wants_more_memory_than_it_may_have_does_not_get_to_describe_itself() {
    for form in FORMS {
        let limits = Limits {
            memory: 65_536,
            ..Limits::default()
        };
        let error = load_error(Fixture::new(cases::ANSWER).build(form), limits).await;
        assert_eq!(error.part(), Part::Describe, "{form:?}: {error}");
        let words = "`describe` failed: the plugin asked for … the limit is 0.1 MiB";
        assert_contains(&error.to_string(), words);
    }
}
