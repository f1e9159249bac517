//! What malicious plugins do.

use crate::support::prelude::*;

pub struct Case {
    pub name: &'static str,
    /// Replaces a valid spec.
    pub spec: Value,
    pub ends: End,
}

pub enum End {
    /// `Stalled` for this reason, with these words.
    Stalled(&'static str, &'static str),
    /// The plugin gives valid answers nevertheless.
    Ready,
}

impl Case {
    fn stalls(self, reason: &'static str, words: &'static str) -> Self {
        let ends = End::Stalled(reason, words);
        Self { ends, ..self }
    }
}

fn misbehave(name: &'static str) -> Case {
    let spec = json!({ "misbehave": name, "response": {} });
    let ends = End::Ready;
    Case { name, spec, ends }
}

/// Returns a case with an answer in which one list repeats its item.
fn many(name: &'static str, list: &str, item: &Value, count: u32) -> Case {
    let mut spec = json!({"response": {"status": {"note": "other"}}, "many": {}});
    spec["response"][list] = json!([item]);
    spec["many"][list] = count.into();
    let ends = End::Ready;
    Case { name, spec, ends }
}

/// Returns what the puppet can do.
pub fn cases() -> Vec<Case> {
    let long = "x".repeat(100_000);
    let child =
        |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    let need = json!({"id": "n$n", "apiVersion": "v1", "kind": "ConfigMap"});
    let event = json!({"type": "Normal", "reason": "R".repeat(100_000), "message": "event $n"});
    vec![
        misbehave("loop").stalls("PluginTimedOut", "within 1s … limits.deadline"),
        misbehave("drip").stalls("PluginTimedOut", "within 1s … limits.deadline"),
        misbehave("memory").stalls("PluginOutOfMemory", "the limit is 32 MiB … limits.memory"),
        misbehave("recursion").stalls("PluginTrapped", "the plugin stopped"),
        misbehave("flood").stalls("PluginAnswerTooLarge", "more than 7 MiB … limits.response"),
        misbehave("many-values").stalls("PluginAnswerTooLarge", "JSON values … limits.values"),
        misbehave("deep-json").stalls("PluginAnswerInvalid", "recursion limit"),
        misbehave("not-utf8").stalls("PluginAnswerInvalid", "not UTF-8"),
        misbehave("not-json").stalls("PluginAnswerInvalid", "line 1"),
        misbehave("trap").stalls("PluginTrapped", "the plugin stopped … unreachable"),
        misbehave("panic").stalls("PluginTrapped", "the puppet was told to panic"),
        misbehave("exit").stalls("PluginTrapped", "the puppet was told to leave … exited with code"),
        misbehave("file").stalls("PluginTrapped", "a file: Err("),
        misbehave("socket").stalls("PluginTrapped", "a socket: Err("),
        many("many-children", "children", &config_map("many-$n", "much"), 2_000).stalls(
            "PluginAnswerTooLarge",
            "2000 children … answer with 1000 … limits.children",
        ),
        many("other-kinds", "children", &child("Node", "other-$n"), 900).stalls(
            "ChildRefused",
            "Node other-0:  … may not create objects of the kind v1/Node … and 890 more",
        ),
        many(
            "long-kinds",
            "children",
            &child(&format!("Gadget{long}"), "long-$n"),
            10,
        )
        .stalls(
            "ChildRefused",
            "may not create objects of the kind v1/Gadgetxxx … list it under its `children`",
        ),
        many(
            "long-names",
            "children",
            &child("ConfigMap", &format!("$n{long}")),
            10,
        )
        .stalls(
            "ChildRefused",
            "children[9]: \"9xxx … cannot be its `metadata.name`",
        ),
        // All existing objects, 32 times.
        many("all-needs", "needs", &need, 32).stalls(
            "PluginRequestTooLarge",
            "larger than 4 MiB … objects that it asked to read … limits.request",
        ),
        many("many-needs", "needs", &need, 900).stalls("NeedRefused", "900 needs … the limit is 32"),
        many("events", "events", &event, 30),
        misbehave("log-flood"),
        misbehave("long-line"),
    ]
}

/// Only possible in WebAssembly itself, so written in its text format.
pub const TABLES: &str = "
  (table $table 1 funcref)
  (func $case
    (loop $more
      (br_if $more (i32.ne (table.grow $table (ref.null func) (i32.const 10000)) (i32.const -1))))
    unreachable)";

/// Fails after some 50 µs: too soon to count as a slow call, and again and again.
pub const BRIEF: &str = "
  (func $case (local $left i32)
    (local.set $left (i32.const 40000))
    (loop $more
      (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    unreachable)";

/// One poll of 200,000 clocks, each of which would be an object in the host.
pub const CLOCKS: &str = "
  (func $case
    (drop (memory.grow (i32.const 200)))
    (call $poll)
    unreachable)
  (func $poll
    (drop (call $poll_oneoff (i32.const 65536) (i32.const 65536) (i32.const 200000) (i32.const 256))))";
