//! `check`: reports every problem of a plugin.

use plugin_fixtures::{Fixture, Form, cases};

use super::{Desk, host, sample};
use crate::support::root;

#[test]
fn check_lists_what_is_right_and_what_is_wrong_and_its_exit_code_shows_which() {
    for (name, resource) in [
        ("echo", "echo"),
        ("echo-command", "echo"),
        ("mysql", "mysqlcluster"),
        ("myapp", "myapp"),
    ] {
        let resource = root().join(format!("manifests/samples/{resource}.yaml"));
        let answer = host(&["check", &sample(name), "--sample", resource.to_str().unwrap()]).expect(0);
        for part in [
            "form",
            "imports",
            "size",
            "describe",
            "crd",
            "cost",
            "determinism",
        ] {
            assert!(
                answer.out.contains(&format!("  {part:12}  ")),
                "{part}: {}",
                answer.out
            );
        }
        assert!(!answer.out.contains("fail"), "{}", answer.out);
    }
    let desk = Desk::new();
    let case = |name: &str, content: Vec<u8>| desk.file(name, content).to_str().unwrap().to_owned();
    let answered = Fixture::new(cases::ANSWER);
    let socket = r#"(import "wasi_snapshot_preview1" "sock_accept" (func (param i32 i32 i32) (result i32)))"#;
    for (file, expected) in [
        (case("text.wasm", b"hello".to_vec()), "fail  form"),
        (
            case("library.wasm", plugin_fixtures::library("run")),
            "fail  form",
        ),
        (
            case(
                "socket.wasm",
                answered.clone().import(socket).build(Form::Command),
            ),
            "fail  imports",
        ),
        (
            case(
                "newer.wasm",
                answered.clone().version("0.9.0").build(Form::Component),
            ),
            "fail  contract",
        ),
        (
            case("panic.wasm", Fixture::new(cases::PANIC).build(Form::Command)),
            "fail  samples",
        ),
    ] {
        let resource = desk.file(
            "f.yaml",
            "apiVersion: fixtures.dev/v1\nkind: Fixture\nmetadata: {name: f}\n",
        );
        let answer = host(&["check", &file, "--sample", resource.to_str().unwrap()]).expect(1);
        assert!(answer.out.contains(expected), "{file}: {}", answer.out);
    }
    for (version, form) in [
        ("0.1.0", Form::Component),
        ("0.1.0", Form::Command),
        ("0.2.0", Form::Component),
        ("0.2.0", Form::Command),
    ] {
        let file = case("version.wasm", answered.clone().version(version).build(form));
        let printed = host(&["check", &file]).expect(0).out;
        assert!(printed.contains(&format!(", contract {version}, ")), "{printed}");
    }
    let plain = host(&["check", &case("plain.wasm", answered.build(Form::Command))]).expect(0);
    assert!(
        plain.out.contains("warn  crd") && plain.out.contains("warn  samples"),
        "{}",
        plain.out
    );
    host(&["check", "/nowhere.wasm"]).expect(2);
}
