//! Components of more parts than most compilers write.

use std::time::Duration;

use plugin_fixtures::{Fixture, Form, cases, module};
use wasmparser::{Parser, Payload};

use super::*;
use crate::component;

/// Two components, of which one calls the other with a text: the compiler connects their memories.
const CONNECTED: &str = r#"(component
    (component $callee
        (core module $m
            (memory (export "memory") 1)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 16))
            (func (export "f") (param i32 i32)))
        (core instance $i (instantiate $m))
        (func (export "f") (param "text" string)
            (canon lift (core func $i "f") (memory $i "memory") (realloc (func $i "realloc")))))
    (component $caller
        (import "f" (func $f (param "text" string)))
        (core module $libc
            (memory (export "memory") 1)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 16)))
        (core instance $libc (instantiate $libc))
        (core func $lowered
            (canon lower (func $f) (memory $libc "memory") (realloc (func $libc "realloc"))))
        (core module $m
            (import "" "f" (func $f (param i32 i32)))
            (func (export "run") (call $f (i32.const 0) (i32.const 4))))
        (core instance $m (instantiate $m (with "" (instance (export "f" (func $lowered))))))
        (func (export "run") (canon lift (core func $m "run"))))
    (instance $callee (instantiate $callee))
    (instance (instantiate $caller (with "f" (func $callee "f")))))"#;

/// Returns the plugin of a case as a component, with another module or component in it that is instantiated so often.
fn with_part(case: &str, part: &str, count: usize) -> Vec<u8> {
    let mut file = component::encode(&Fixture::new(case).build(Form::Component)).unwrap();
    let part = module(part);
    let is_component = Parser::is_component(&part);
    let (mut depth, mut index) = (0, 0);
    for payload in Parser::new(0).parse_all(&file) {
        match payload.unwrap() {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ModuleSection { .. } if depth == 1 => index += usize::from(!is_component),
            Payload::ComponentSection { .. } if depth == 1 => index += usize::from(is_component),
            _ => {}
        }
    }
    // Source: the component model's binary format.
    let (part_section, instances_section) = if is_component { (4, 5) } else { (1, 2) };
    section(&mut file, part_section, &part);
    let mut instances = leb128(count);
    for _ in 0..count {
        instances.push(0);
        instances.extend(leb128(index));
        instances.push(0);
    }
    section(&mut file, instances_section, &instances);
    file
}

fn section(file: &mut Vec<u8>, id: u8, content: &[u8]) {
    file.push(id);
    file.extend(leb128(content.len()));
    file.extend(content);
}

fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

async fn answers(file: Vec<u8>) {
    assert_eq!(
        children(&loaded(file).await).await[0]["metadata"]["name"],
        "answer"
    );
}

/// Regression: the pool had room for 16, and `check`, which had no pool, accepted the plugin.
#[tokio::test]
async fn a_component_of_as_many_instances_as_a_python_interpreter_runs() {
    answers(with_part(cases::ANSWER, "(module)", 38)).await;
}

/// Regression: the compiler panicked.
#[tokio::test]
async fn components_that_call_each_other_run() {
    answers(with_part(cases::ANSWER, CONNECTED, 1)).await;
}

#[tokio::test]
async fn a_plugin_that_does_not_fit_into_the_pool_runs_with_the_same_limits() {
    let memories = "(module (memory 1))";
    answers(with_part(cases::ANSWER, memories, 8)).await;
    answers(with_part(cases::ANSWER, "(module (table 300000 funcref))", 1)).await;

    let limits = Limits {
        deadline: Duration::from_millis(500),
        ..Limits::default()
    };
    for (case, class) in [
        (cases::ENDLESS_LOOP, Class::Timeout),
        (cases::MEMORY_BOMB, Class::Memory),
    ] {
        let plugin = load(with_part(case, memories, 8), limits).await.unwrap();
        assert_eq!(error(&plugin).await.class(), class);
    }
}

#[tokio::test]
async fn a_module_with_two_memories_runs() {
    let case = format!("(memory $other 1) {}", cases::ANSWER);
    answers(Fixture::new(&case).build(Form::Command)).await;
}

#[tokio::test]
async fn a_component_of_too_many_parts_is_refused_with_the_limit() {
    for (part, count, words) in [
        ("(module)", 300, "instance count too high at 257"),
        ("(module (memory 1))", 20, "memory count too high at 17"),
        ("(module (table 1 funcref))", 100, "table count too high at 65"),
    ] {
        let limits = "one call may have 256 core instances, 16 memories and 64 tables";
        let words = format!("{words} … {limits}");
        refused_with(with_part(cases::ANSWER, part, count), &words).await;
    }
}
