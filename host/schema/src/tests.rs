//! Compares the host's judgement with that of a real API server.
//!
//! `tests/verdicts` has what kube-apiserver said, and the program that asked it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{schema, structural};
use crate::cel;

/// Rows of `[group, schema, value, old value, [verdict, message]]`.
const ROWS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/verdicts/rules-1.36.json"
);

/// What only the API server judges: a text in its message, and what it is about. `host/docs/authors.md` has the same
/// list.
const LEFT: [(&str, &str); 2] = [
    (
        "estimated rule cost exceeds budget",
        "what a rule could cost at most",
    ),
    (
        "estimated messageExpression cost exceeds budget",
        "what its message could cost at most",
    ),
];

/// What the host says: the verdict in the API server's words, with the reason.
type Judgement = (&'static str, String);

/// Judges as `check` and `render` do: first the definition, then the old value as one that is created, then the value.
fn judge(of: &Value, value: &Value, old: &Value) -> Judgement {
    let whole = json!({
        "type": "object",
        "properties": { "spec": { "type": "object", "properties": { "c": of } } },
    });
    let mut problems: Vec<String> = structural::problems(&whole, "")
        .iter()
        .map(ToString::to_string)
        .collect();
    problems.extend(
        cel::problems(&whole, "")
            .into_iter()
            .map(|(path, why)| format!("{path}: {why}")),
    );
    if !problems.is_empty() {
        return ("schema", problems.join("; "));
    }
    let object = |value: &Value| {
        let mut object = json!({ "apiVersion": "a.b/v1", "kind": "K", "metadata": { "name": "n" }, "spec": { "c": value } });
        schema::fill_defaults(&mut object, &whole);
        object
    };
    let says = |object: &Value, old: Option<&Value>| {
        let problems = schema::validate_resource(object, &whole);
        // A client that validates strictly refuses unknown fields, the API server drops them.
        let problems: Vec<String> = problems
            .iter()
            .map(ToString::to_string)
            .filter(|problem| !problem.contains("unknown field"))
            .collect();
        if !problems.is_empty() {
            return Some(("refused", problems.join("; ")));
        }
        let verdict = cel::validate(&whole, object, old);
        if !verdict.violations.is_empty() {
            return Some(("refused", verdict.violations.join("; ")));
        }
        (!verdict.left.is_empty()).then(|| ("left", verdict.left.join("; ")))
    };
    let before = (!old.is_null()).then(|| object(old));
    match before.as_ref().and_then(|before| says(before, None)) {
        Some(("refused", why)) => return ("old refused", why),
        Some(other) => return other,
        None => {}
    }
    says(&object(value), before.as_ref()).unwrap_or_default()
}

#[test]
fn the_host_judges_as_the_api_server_does() {
    let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(ROWS).unwrap()).unwrap();
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut otherwise = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let (Some(group), Some(wanted), Some(words)) = (
            row[0].as_str(),
            row[4][0].as_str(),
            row[4][1].as_str().or(Some("")),
        ) else {
            panic!("row {index} is {row}");
        };
        let wanted = if wanted == "ok" { "" } else { wanted };
        let (verdict, why) = judge(&row[1], &row[2], &row[3]);
        let is_left = verdict == "left" || LEFT.iter().any(|(words_of, _)| words.contains(words_of));
        let sort = if verdict == wanted {
            0
        } else if is_left {
            1
        } else {
            2
        };
        counts.entry(group).or_default()[sort] += 1;
        if sort == 2 {
            let (rule, value) = (&row[1]["x-kubernetes-validations"], &row[2]);
            otherwise.push(format!("{index} {group}: {rule} {} of {value}\n  {wanted:?}: {words:.300}\n  {verdict:?}: {why:.300}", row[1].to_string().chars().take(160).collect::<String>()));
        }
    }
    for (group, [alike, left, otherwise]) in &counts {
        println!("{group}: {alike} alike, {left} left to the API server, {otherwise} otherwise");
    }
    assert!(
        otherwise.is_empty(),
        "{} otherwise:\n{}",
        otherwise.len(),
        otherwise.join("\n")
    );
}
