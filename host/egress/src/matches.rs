//! Whether an answer contains what an External wants of it.

use std::cell::Cell;

use serde_json::{Number, Value};

/// The most values that one comparison looks at. Lists in any order take many.
const MOST: usize = 4_000_000;

/// Returns the JSON pointer of the first value in `wanted` that the answer does not contain; `None` when it contains all.
///
/// An object contains another one when it has all its fields. A list contains another one of the same length when each of its
/// elements contains a different one of the other's, in any order. `null` is contained in null and in what is absent.
pub(crate) fn difference(wanted: &Value, answer: &Value) -> Option<String> {
    let fuel = Cell::new(MOST);
    if contains(wanted, answer, &fuel) {
        return None;
    }
    fuel.set(MOST);
    let (mut path, mut part) = (String::new(), (wanted, answer));
    while let Some((key, deeper)) = first(part, &fuel) {
        path = path + "/" + &key;
        part = deeper;
    }
    Some(path)
}

fn contains(wanted: &Value, answer: &Value, fuel: &Cell<usize>) -> bool {
    if !spend(1, fuel) {
        return false;
    }
    match (wanted, answer) {
        (Value::Object(wanted), Value::Object(answer)) => {
            wanted.iter().all(|(key, wanted)| match answer.get(key) {
                Some(answer) => contains(wanted, answer, fuel),
                None => wanted.is_null(),
            })
        }
        (Value::Array(wanted), Value::Array(answer)) => {
            wanted.len() == answer.len() && is_matching(wanted, answer, fuel)
        }
        (Value::Number(wanted), Value::Number(answer)) => is_equal(wanted, answer),
        _ => wanted == answer,
    }
}

/// Takes the cost of some steps; returns whether there was enough left.
fn spend(steps: usize, fuel: &Cell<usize>) -> bool {
    let left = fuel.get().checked_sub(steps);
    fuel.set(left.unwrap_or_default());
    left.is_some()
}

/// A part of what is wanted, and what the answer has there.
type Part<'a> = (&'a Value, &'a Value);

/// Returns the first part within one that the answer does not contain, and its key in a pointer.
fn first<'a>(part: Part<'a>, fuel: &Cell<usize>) -> Option<(String, Part<'a>)> {
    match part {
        (Value::Object(wanted), Value::Object(answer)) => {
            let of = |key: &String| answer.get(key).unwrap_or(&Value::Null);
            let mut fields = wanted.iter().map(|(key, wanted)| (key, (wanted, of(key))));
            let (key, part) = fields.find(|(_, (wanted, answer))| !contains(wanted, answer, fuel))?;
            Some((key.replace('~', "~0").replace('/', "~1"), part))
        }
        (Value::Array(wanted), Value::Array(answer)) if wanted.len() == answer.len() => {
            let lacks = |wanted: &Value| !answer.iter().any(|answer| contains(wanted, answer, fuel));
            let mut parts = wanted.iter().zip(answer).enumerate();
            let (index, part) = parts.find(|(_, (wanted, _))| lacks(wanted))?;
            Some((index.to_string(), part))
        }
        _ => None,
    }
}

/// Reports whether each wanted element can have an element of its own: a matching in a bipartite graph.
fn is_matching(wanted: &[Value], answer: &[Value], fuel: &Cell<usize>) -> bool {
    let fits = |of: usize, index: usize| contains(&wanted[of], &answer[index], fuel);
    // Which wanted element each element of the answer is taken by.
    let mut taken: Vec<Option<usize>> = vec![None; answer.len()];
    (0..wanted.len()).all(|start| {
        // Most lists have the same order as before.
        if taken[start].is_none() && fits(start, start) {
            taken[start] = Some(start);
            return true;
        }
        spend(answer.len(), fuel) && augment(start, &mut taken, fits)
    })
}

/// Finds an element for one more wanted element, by a search in breadth along those that are taken.
fn augment(start: usize, taken: &mut [Option<usize>], fits: impl Fn(usize, usize) -> bool) -> bool {
    let mut came_from: Vec<Option<usize>> = vec![None; taken.len()];
    let mut next = vec![start];
    while let Some(of) = next.pop() {
        for index in 0..taken.len() {
            if came_from[index].is_some() || !fits(of, index) {
                continue;
            }
            came_from[index] = Some(of);
            if let Some(other) = taken[index] {
                next.push(other);
                continue;
            }
            // Each on the way here moves on, the last one first.
            let mut free = Some(index);
            while let Some(index) = free {
                free = taken.iter().position(|other| *other == came_from[index]);
                taken[index] = came_from[index];
            }
            return true;
        }
    }
    false
}

fn is_equal(a: &Number, b: &Number) -> bool {
    a == b
        || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a.total_cmp(&b).is_eq())
            && (a.is_f64() || b.is_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_contains_fields_and_lists_of_the_same_length_in_any_order() {
        for (wanted, answer) in [
            (json!({"a": 1}), json!({"a": 1, "b": 2})),
            (json!({"a": 1.0}), json!({"a": 1})),
            (json!({"a": null}), json!({})),
            (json!([1, 2]), json!([2, 1])),
            (
                json!([{"a": 1}, {"a": 1, "b": 2}]),
                json!([{"a": 1, "b": 2}, {"a": 1}]),
            ),
            (
                json!([{}, {"a": 1}, {"b": 2, "a": 1}]),
                json!([{"a": 1, "b": 2}, {"a": 1}, {}]),
            ),
            (json!([[1], [2]]), json!([[2], [1]])),
            (json!([]), json!([])),
        ] {
            assert_eq!(difference(&wanted, &answer), None, "{wanted} {answer}");
        }
        for (wanted, answer, pointer) in [
            (json!({"a": {"b~/": 1}}), json!({"a": {}}), "/a/b~0~1"),
            (
                json!({"r": [{"ttl": 300}]}),
                json!({"r": [{"ttl": 60}]}),
                "/r/0/ttl",
            ),
            (json!({"rrsets": [1]}), json!({"rrsets": []}), "/rrsets"),
            (json!([1, 1]), json!([1, 2]), ""),
            (json!([{"a": 1}, {"a": 1}]), json!([{"a": 1}, {"b": 1}]), ""),
            (json!([1, 3]), json!([1, 2]), "/1"),
            (json!({"a": "1"}), json!({"a": 1}), "/a"),
            (
                json!([9_007_199_254_740_993_i64]),
                json!([9_007_199_254_740_992_i64]),
                "/0",
            ),
            (json!({"a": 1}), json!("a"), ""),
        ] {
            let found = difference(&wanted, &answer);
            assert_eq!(found.as_deref(), Some(pointer), "{wanted} {answer}");
        }
    }

    #[test]
    fn a_hostile_answer_cannot_keep_a_worker_busy() {
        let wanted = json!((0..3000).map(|i| json!({"a": i})).collect::<Vec<_>>());
        let answer = json!((0..3000).map(|i| json!({"a": i + 1})).rev().collect::<Vec<_>>());
        let start = std::time::Instant::now();
        assert!(difference(&wanted, &answer).is_some());
        let many = json!(vec![0; 200_000]);
        assert_eq!(difference(&many, &many), None);
        assert!(start.elapsed().as_secs() < 30);
    }
}
