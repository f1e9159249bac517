use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::answer::SecretValues;
use operator_host_core::object::Identity;

fn key(name: &str) -> Identity {
    Identity {
        group: String::new(),
        kind: "Pod".into(),
        name: NamespacedName::parse(name),
    }
}

fn effect(answer: Value, deleted: &[&str], left: &[&str]) -> Effect {
    let keys = |names: &[&str]| names.iter().map(|name| key(name)).collect::<BTreeSet<_>>();
    Effect {
        answer: ComparedAnswer::new(answer, &mut SecretValues::default()),
        deleted: keys(deleted),
        left: keys(left),
        refused: BTreeSet::new(),
    }
}

fn answers(text: &str) -> Result<Effect, String> {
    Ok(effect(json!({"status": {"text": text}}), &[], &[]))
}

fn object(name: &str) -> NamespacedName {
    NamespacedName::parse(name)
}

/// Returns the result of a proof with these findings, for objects with ten children each.
fn result(findings: impl IntoIterator<Item = Finding>) -> ProofResult {
    let mut all = Findings::default();
    for (index, finding) in findings.into_iter().enumerate() {
        all.objects += 1;
        all.add(&object(&format!("n/o{index}")), 10, finding);
    }
    all.decide(20)
}

fn held(result: ProofResult) -> HeldBack {
    match result {
        ProofResult::HeldBack(held) => *held,
        ProofResult::Proved { on, .. } | ProofResult::NotCompared(on) => panic!("proved: {on}"),
    }
}

fn deletes(names: &[&str]) -> Finding {
    let live = effect(json!({"children": [{"name": "a"}]}), &[], &[]);
    let candidate = effect(json!({"children": []}), names, &[]);
    find(Some(Ok(live)), Ok(candidate.clone()), Some(Ok(candidate)))
}

#[test]
fn the_same_answer_is_unchanged_and_another_one_is_changed() {
    assert_eq!(
        find(Some(answers("a")), answers("a"), Some(answers("a"))),
        Finding::Unchanged
    );
    let changed = find(Some(answers("a")), answers("b"), Some(answers("b")));
    assert!(matches!(changed, Finding::Changed { .. }));
    let ProofResult::Proved { on, diff } = result([Finding::Unchanged, changed]) else {
        panic!("a change of the status deletes nothing");
    };
    assert_eq!(on, "2 objects: 1 unchanged, 1 changed");
    assert!(diff.contains("-  text: a\n+  text: b"), "{diff}");
}

#[test]
fn what_is_refused_is_a_failure_unless_it_was_refused_before() {
    let refused = |names: &[&str]| {
        let mut effect = effect(json!({}), &[], &[]);
        effect.refused = names.iter().map(ToString::to_string).collect();
        Ok(effect)
    };
    let find = |live, names: &[&str]| find(live, refused(names), Some(refused(names)));
    assert_eq!(find(Some(refused(&["a"])), &["a"]), Finding::Unchanged);
    let more = find(Some(refused(&["a"])), &["a", "b"]);
    assert_eq!(more, Finding::Fails("b".into()));
    assert_eq!(find(None, &["a", "b"]), Finding::Fails("a; b".into()));
    let before = find(Some(Err("a".into())), &["a"]);
    assert!(matches!(before, Finding::Changed { .. }));
}

#[test]
fn what_failed_before_may_fail_again_or_work() {
    let fails = || Err("no".to_owned());
    assert_eq!(find(Some(fails()), fails(), None), Finding::Unchanged);
    let works = find(Some(fails()), answers("a"), Some(answers("a")));
    assert!(matches!(result([works]), ProofResult::Proved { .. }));
}

#[test]
fn without_a_live_version_the_answers_are_judged_alone() {
    let alone = |finding| {
        let mut findings = Findings::of(1, true);
        findings.add(&object("o"), 2, finding);
        findings.decide(20)
    };
    let ProofResult::Proved { on, diff } = alone(find(None, answers("a"), Some(answers("a")))) else {
        panic!("it deletes nothing");
    };
    assert_eq!(
        (on.as_str(), diff.as_str()),
        ("1 object, without the version that was live", "")
    );
    let fails = held(alone(find(None, Err("it trapped".into()), None)));
    assert_eq!(fails.message, "it fails on 1 object: o: it trapped");
    let candidate = effect(json!({}), &["a"], &[]);
    let deletes = find(None, Ok(candidate.clone()), Some(Ok(candidate)));
    assert_eq!(held(alone(deletes)).reason, "WouldDelete");
}

#[test]
fn after_enough_failures_no_more_objects_are_asked_about() {
    let mut all = Findings::default();
    for index in 0..MAX_BLAMED {
        assert!(!all.is_settled());
        all.add(&object(&format!("o{index}")), 0, Finding::Fails("no".into()));
    }
    assert!(all.is_settled());
}

#[test]
fn a_fifth_of_the_children_may_go_and_no_more() {
    // Of 20 children each time.
    let four = result([deletes(&["a", "b", "c", "d"]), Finding::Unchanged]);
    let ProofResult::Proved { on, .. } = four else {
        panic!("{four:?}")
    };
    assert_eq!(on, "2 objects: 1 unchanged, 1 changed, 4 of 20 children deleted");
    let five = held(result([deletes(&["a", "b", "c", "d", "e"]), Finding::Unchanged]));
    assert_eq!(five.reason, "WouldDelete");
    assert!(
        five.message.contains("5 of 20 children, more than 20 %") && five.message.contains("Pod a, Pod b"),
        "{}",
        five.message
    );
    assert!(five.diff.contains("n/o0, candidate"), "{}", five.diff);
}

#[test]
fn what_the_live_version_deletes_too_does_not_count() {
    let names = ["a", "b", "c"];
    let live = effect(json!({"children": ["x"]}), &names, &[]);
    let candidate = effect(json!({"children": ["y"]}), &names, &[]);
    let finding = find(Some(Ok(live)), Ok(candidate.clone()), Some(Ok(candidate)));
    assert!(matches!(result([finding]), ProofResult::Proved { .. }));
}

#[test]
fn deletions_count_also_where_the_live_version_fails() {
    let candidate = effect(json!({}), &["a", "b", "c"], &[]);
    let finding = find(Some(Err("no".into())), Ok(candidate.clone()), Some(Ok(candidate)));
    assert_eq!(held(result([finding])).reason, "WouldDelete");
}

/// Returns what is shown of two answers.
fn diff_of(live: &Value, candidate: &Value) -> String {
    let mut values = SecretValues::default();
    let [live, candidate] = [live, candidate].map(|answer| ComparedAnswer::new(answer.clone(), &mut values));
    difference(["live", "candidate"], Some(&live), &candidate)
}

#[test]
fn a_diff_has_its_bounds_and_no_secret_in_it() {
    let secret = |value: &str, other: &str| {
        json!({"children": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
            "stringData": {"password": value, "other": other}}]})
    };
    let hides_both = |diff: &str| !diff.contains("swordfish") && !diff.contains("trustno1");
    let diff = diff_of(&secret("swordfish", "b"), &secret("trustno1", "b"));
    assert!(hides_both(&diff), "{diff}");
    assert!(diff.contains("+    password: (hidden, another)"), "{diff}");
    assert!(!diff.contains("+    other"), "{diff}");

    // Secrets that the API server would refuse, and a copy of the values.
    for (live, candidate) in [
        (json!("swordfish"), json!("trustno1")),
        (json!(["swordfish"]), json!({"password": "trustno1"})),
        (
            json!({"password": {"nested": "swordfish"}}),
            json!({"password": ["trustno1"]}),
        ),
    ] {
        let secret = |data: &Value| {
            let copy = "kubectl.kubernetes.io/last-applied-configuration";
            json!({"children": [{"apiVersion": "v1", "kind": "Secret", "data": data, "stringData": data,
                "metadata": {"name": "s", "annotations": {copy: data.to_string()}}}]})
        };
        let (live, candidate) = (secret(&live), secret(&candidate));
        let diff = diff_of(&live, &candidate);
        assert!(hides_both(&diff), "{diff}");
        assert!(diff.contains("(hidden"), "{diff}");
    }

    let many = |prefix: &str| json!((0..500).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>());
    let many = |prefix: &str| ComparedAnswer::new(many(prefix), &mut SecretValues::default());
    let diff = difference(["a", "b"], Some(&many("a")), &many("b"));
    assert!(diff.lines().count() <= MAX_LINES + 1 && diff.len() <= MAX_BYTES);
    assert!(diff.ends_with("more lines"), "{diff}");
}

/// Regression: the message for each parent contained the differences of all.
#[test]
fn each_object_is_blamed_with_its_own_difference_and_no_other() {
    let deletes = |image: &str| {
        let live = effect(json!({"children": [{"name": "a", "image": image}]}), &[], &[]);
        let candidate = effect(json!({}), &["a", "b", "c", "d", "e"], &[]);
        find(Some(Ok(live)), Ok(candidate.clone()), Some(Ok(candidate)))
    };
    let held = held(result([deletes("one"), deletes("two")]));
    let [first, second] = held.objects.as_slice() else {
        panic!("{held:?}")
    };
    for (blamed, own, other) in [(first, "one", "two"), (second, "two", "one")] {
        assert!(blamed.diff.contains(own), "{}", blamed.diff);
        assert!(!format!("{blamed:?}").contains(other), "{blamed:?}");
    }
    assert!(held.diff.contains("one") && held.diff.contains("two"));
}
