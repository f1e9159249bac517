use serde_json::json;

use super::*;
use operator_host_core::object::NamespacedName;

fn child(annotation: &str, text: impl Into<Value>) -> Value {
    json!({ "metadata": { "annotations": { annotation: text.into() } } })
}

#[test]
fn the_words_of_an_update_are_read() {
    let read = |text: &str| update(&child(UPDATE_ANNOTATION, text));
    assert_eq!(update(&json!({})), Ok(Update::default()));
    let replaced = read("replace").unwrap();
    assert!(replaced.replace && !replaced.foreground && replaced.one.is_none());
    let all = read("min-ready=30, one,last-first, replace, foreground").unwrap();
    let turn = Turn {
        last_first: true,
        min_ready: Duration::from_secs(30),
    };
    assert!(all.replace && all.foreground);
    assert_eq!(all.one, Some(turn));
}

#[test]
fn a_wrong_word_is_refused_with_the_right_ones() {
    for (text, says) in [
        (
            "replce",
            "says \"replce\", which is none of its words: replace, foreground, one, last-first, min-ready=30",
        ),
        ("One", "says \"One\""),
        ("one,lastfirst", "says \"lastfirst\""),
        ("", "says \"\""),
        ("minready=5", "says \"minready=5\""),
        ("one,min-ready=soon", "write a number of seconds up to 3600"),
        ("one,min-ready=3601", "write a number of seconds up to 3600"),
        ("foreground", "says `foreground`, which is about `replace`"),
        ("replace,min-ready=1", "says `min-ready`, which is about `one`"),
        ("last-first", "says `last-first`, which is about `one`"),
    ] {
        let refused = update(&child(UPDATE_ANNOTATION, text)).unwrap_err();
        assert!(refused.contains(says), "{text}: {refused}");
    }
    assert_eq!(update(&child(UPDATE_ANNOTATION, 1)), Err("is no text".to_owned()));
    let refused = removal(&child(ON_REMOVAL_ANNOTATION, "orphaned"), Removal::Delete).unwrap_err();
    assert!(
        refused.ends_with("none of its words: delete, retain, orphan"),
        "{refused}"
    );
}

#[test]
fn a_plugin_may_keep_more_than_the_configuration_and_not_less() {
    let read = |text: &str, configured| removal(&child(ON_REMOVAL_ANNOTATION, text), configured);
    for configured in [Removal::Delete, Removal::Retain] {
        assert_eq!(removal(&json!({}), configured), Ok(configured));
        assert_eq!(read("retain", configured), Ok(Removal::Retain));
        assert_eq!(read("orphan", configured), Ok(Removal::Retain));
    }
    assert_eq!(read("delete", Removal::Delete), Ok(Removal::Delete));
    let refused = read("delete", Removal::Retain).unwrap_err();
    assert!(
        refused.contains("set `onRemoval: delete` for the kind there"),
        "{refused}"
    );
}

fn key(kind: &str, name: &str) -> ChildRef {
    ChildRef::new(Kind::new("v1", kind), NamespacedName::parse(name))
}

fn taking_turns(kind: &str, name: &str, last_first: bool) -> Desired {
    let mut desired = Desired::new(key(kind, name), Value::Null);
    desired.update.one = Some(Turn {
        last_first,
        ..Turn::default()
    });
    desired
}

/// Decides about Pods of which the text gives the state, in the order of an answer: done, pending, outdated and ready (`o`) or not
/// (`u`), blocked. Returns those that wait, and the one that the others wait for.
fn wait(states: &str, last_first: bool) -> (String, Option<String>) {
    let desired = states.chars().enumerate().map(|(place, state)| Desired {
        place,
        ..taking_turns("Pod", &format!("{place}{state}"), last_first)
    });
    let turns = turns(&desired.collect::<Vec<_>>(), &[], |child, _| {
        match child.key.name.name.chars().last() {
            Some('d') => Member::Done,
            Some('p') => Member::Pending("it is new".to_owned()),
            Some('b') => Member::Blocked,
            state => Member::Outdated {
                is_ready: state == Some('o'),
            },
        }
    });
    let mut waiting: Vec<_> = turns.waiting.keys().map(|key| key.name.name.clone()).collect();
    waiting.sort();
    let pending = turns.pending.first().map(|(key, _)| key.name.name.clone());
    (waiting.join(" "), pending)
}

#[test]
fn one_child_is_changed_at_a_time_and_one_that_is_not_ready_first() {
    let next = |states: &str| wait(states, false).0;
    assert_eq!(next("ooo"), "1o 2o");
    assert_eq!(next("doo"), "2o");
    assert_eq!(next("dd"), "");
    assert_eq!(next("ouou"), "0o 2o 3u");
    assert_eq!(next("bo"), "0b", "what comes after others waits, and keeps none");
    assert_eq!(next("bb"), "");
    assert_eq!(wait("ooo", true).0, "0o 1o");
    assert_eq!(wait("uou", true).0, "0u 1o");
}

#[test]
fn nothing_is_changed_while_one_that_is_as_wanted_is_not_ready() {
    assert_eq!(wait("pou", false), ("1o 2u".to_owned(), Some("0p".to_owned())));
    assert_eq!(wait("pd", false), (String::new(), None), "nobody waits for it");
}

#[test]
fn kinds_take_turns_apart_from_each_other() {
    let desired = [("Pod", "a"), ("ConfigMap", "b"), ("ConfigMap", "c")];
    let desired = desired.map(|(kind, name)| taking_turns(kind, name, false));
    let state = |child: &Desired, _| match child.key.kind.kind.as_str() {
        "Pod" => Member::Pending("it is new".to_owned()),
        _ => Member::Outdated { is_ready: true },
    };
    let waiting = turns(&desired, &[], state);
    assert_eq!(waiting.pending, []);
    let waiting: Vec<_> = waiting.waiting.values().collect();
    assert_eq!(waiting, ["ConfigMap c waits for its turn after ConfigMap b"]);
    // What the plugin keeps until it is gone.
    let waiting = turns(&desired, &[key("ConfigMap", "a")], state).waiting;
    assert_eq!(waiting.len(), 2, "{waiting:?}");
}
