//! Compares two schemas of one version: whether one accepts and keeps everything that the other does. A negative answer
//! is not certain: then the objects themselves must be checked.
//!
//! Rules in CEL are not compared, and neither are defaults.

use serde_json::Value;

use super::properties;

/// Reports whether `after` certainly accepts and keeps every value that `before` accepts and keeps.
#[must_use]
pub fn everything(after: &Value, before: &Value) -> bool {
    let is = |schema: &Value, name: &str| schema[name] == true;
    let flag = |name: &str| is(after, name) || !is(before, name);
    is_type_kept(after, before)
        && flag("nullable")
        && flag("x-kubernetes-preserve-unknown-fields")
        && is(after, "x-kubernetes-embedded-resource") == is(before, "x-kubernetes-embedded-resource")
        && fields(after, before)
        && limits(after, before)
        && (before["items"].is_null()
            || !after["items"].is_null() && everything(&after["items"], &before["items"]))
}

fn is_type_kept(after: &Value, before: &Value) -> bool {
    let mixed = |schema: &Value| schema["x-kubernetes-int-or-string"] == true;
    match (mixed(after), mixed(before)) {
        (true, true) => true,
        (false, true) => false,
        (true, false) => before["type"] == "integer" || before["type"] == "string",
        (false, false) => {
            let (new, old) = (&after["type"], &before["type"]);
            new == old || new == "number" && old == "integer"
        }
    }
}

/// Compares what is known of the fields of an object.
fn fields(after: &Value, before: &Value) -> bool {
    let keeps_all = after["x-kubernetes-preserve-unknown-fields"] == true;
    let others = |schema: &Value| {
        let others = &schema["additionalProperties"];
        (!others.is_null() && *others != false).then(|| others.clone())
    };
    let was_open = before["x-kubernetes-preserve-unknown-fields"] == true || others(before).is_some();
    let had = properties(before).all(|(name, old)| match after["properties"].get(name) {
        Some(new) => everything(new, old),
        None => {
            keeps_all || others(after).is_some_and(|others| others.is_object() && everything(&others, old))
        }
    });
    // Where a field could have any value, a schema for it is a new rule.
    let has = !was_open || properties(after).all(|(name, _)| before["properties"].get(name).is_some());
    let rest = match (others(before), others(after)) {
        (None, _) => true,
        (Some(_), None) => keeps_all,
        (Some(old), Some(new)) => old == new || new.is_object() && old.is_object() && everything(&new, &old),
    };
    had && has && rest
}

/// Compares the rules for single values.
fn limits(after: &Value, before: &Value) -> bool {
    let bound =
        |name: &str, is_wider: fn(f64, f64) -> bool| match (after[name].as_f64(), before[name].as_f64()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(new), Some(old)) => is_wider(new, old),
        };
    let upper = ["maximum", "maxLength", "maxItems", "maxProperties"];
    let lower = ["minimum", "minLength", "minItems", "minProperties"];
    let same = [
        "pattern",
        "format",
        "multipleOf",
        "uniqueItems",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
    ];
    let list = |schema: &Value, name: &str| schema[name].as_array().cloned().unwrap_or_default();
    let (allowed, was_allowed) = (list(after, "enum"), list(before, "enum"));
    let (required, was_required) = (list(after, "required"), list(before, "required"));
    upper.iter().all(|name| bound(name, |new, old| new >= old))
        && lower.iter().all(|name| bound(name, |new, old| new <= old))
        && same
            .iter()
            .all(|name| after[*name].is_null() || after[*name] == before[*name])
        && (allowed.is_empty()
            || !was_allowed.is_empty() && was_allowed.iter().all(|value| allowed.contains(value)))
        && required.iter().all(|name| was_required.contains(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(fields: &Value) -> Value {
        json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": fields } } })
    }

    #[test]
    fn new_fields_and_weaker_rules_need_no_question() {
        let text = || json!({ "type": "string" });
        for (before, after) in [
            (json!({ "a": text() }), json!({ "a": text(), "b": text() })),
            (
                json!({ "a": { "type": "integer" } }),
                json!({ "a": { "type": "number" } }),
            ),
            (
                json!({ "a": text() }),
                json!({ "a": { "x-kubernetes-int-or-string": true } }),
            ),
            (
                json!({ "a": { "type": "string", "enum": ["x"], "maxLength": 3, "description": "old" } }),
                json!({ "a": { "type": "string", "enum": ["x", "y"], "maxLength": 4, "description": "new" } }),
            ),
            (
                json!({ "a": { "type": "object", "required": ["x"] } }),
                json!({ "a": { "type": "object", "required": null } }),
            ),
            (
                json!({ "a": { "type": "object", "properties": { "x": text() } } }),
                json!({ "a": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } }),
            ),
        ] {
            assert!(everything(&spec(&after), &spec(&before)), "{before} to {after}");
            assert!(!everything(&spec(&before), &spec(&after)), "{after} to {before}");
            assert!(everything(&spec(&before), &spec(&before)));
        }
    }

    #[test]
    fn what_may_lose_something_needs_a_question() {
        let map = |values: Value| json!({ "type": "object", "additionalProperties": values });
        let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let closed = json!({ "type": "object", "properties": { "x": { "type": "string" } } });
        for (before, after) in [
            (
                map(json!({ "type": "string" })),
                map(json!({ "type": "integer" })),
            ),
            (map(json!(true)), map(json!({ "type": "string" }))),
            (open.clone(), map(json!(true))),
            (open, closed.clone()),
            (map(json!({ "type": "string" })), closed),
            (
                json!({ "type": "array", "items": { "type": "string" } }),
                json!({ "type": "array" }),
            ),
            (
                json!({ "type": "string" }),
                json!({ "type": "string", "pattern": "^a" }),
            ),
            (
                json!({ "type": "string", "nullable": true }),
                json!({ "type": "string" }),
            ),
            (
                json!({ "type": "object", "x-kubernetes-embedded-resource": true }),
                json!({ "type": "object" }),
            ),
        ] {
            let (old, new) = (spec(&json!({ "a": before })), spec(&json!({ "a": after })));
            assert!(!everything(&new, &old), "{before} to {after}");
        }
    }
}
