//! What the schema of a status allows of what the host writes into it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{Problem, cel, pruned, schema};

/// The fields of a condition that the host sets.
const CONDITION: [&str; 6] = [
    "type",
    "status",
    "reason",
    "message",
    "lastTransitionTime",
    "observedGeneration",
];

/// The schema of a status, and which of the fields that the host sets it has.
#[derive(Clone, Debug)]
pub struct StatusFields {
    /// The fields of an element of `conditions`, in the order of [`CONDITION`]. Without `type` and `status` there are none.
    condition: [bool; CONDITION.len()],
    /// `observedGeneration`.
    observed_generation: bool,
    schema: Arc<Value>,
}

/// Two are equal when they say the same about the host's own fields, and require the same.
impl PartialEq for StatusFields {
    fn eq(&self, other: &Self) -> bool {
        let own =
            |fields: &Self| ["conditions", "observedGeneration"].map(|name| fields.property(name).cloned());
        let flags = |fields: &Self| (fields.condition, fields.observed_generation);
        let required = |fields: &Self| fields.schema.get("required").cloned();
        flags(self) == flags(other) && own(self) == own(other) && required(self) == required(other)
    }
}

impl StatusFields {
    /// Everything, for a definition that the host may not read.
    #[must_use]
    pub fn all() -> Self {
        Self::of(&json!({ "x-kubernetes-preserve-unknown-fields": true }))
    }

    /// Returns those that an API server with this schema of the resource keeps.
    #[must_use]
    pub fn of(resource: &Value) -> Self {
        let keeps = |status: Value| pruned::first(&json!({ "status": status }), resource).is_none();
        let open = json!({ "x-kubernetes-preserve-unknown-fields": true });
        Self {
            condition: CONDITION.map(|field| keeps(json!({ "conditions": [{ field: "" }] }))),
            observed_generation: keeps(json!({ "observedGeneration": 1 })),
            schema: Arc::new(resource["properties"].get("status").cloned().unwrap_or(open)),
        }
    }

    fn property(&self, name: &str) -> Option<&Value> {
        self.schema["properties"].get(name)
    }

    /// Whether it has conditions.
    #[must_use]
    pub const fn has_conditions(&self) -> bool {
        self.condition[0] && self.condition[1]
    }

    /// Removes the other fields from a status that the host has composed. An API server refuses an apply that has them.
    pub fn restrict(&self, status: &mut Map<String, Value>) {
        if !self.observed_generation {
            status.remove("observedGeneration");
        }
        if !self.has_conditions() {
            status.remove("conditions");
        }
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
            condition.retain(|name, _| {
                let mut known = CONDITION.iter().zip(self.condition);
                known.all(|(field, is_there)| field != name || is_there)
            });
        }
    }

    /// Removes from such a status what the schema does not allow, and returns the fields of the schema that do not. With
    /// `is_given`, the fields beside the host's are the plugin's of this moment: these are left to the API server.
    pub fn fit(&self, status: &mut Map<String, Value>, is_given: bool) -> Vec<Problem> {
        let mut left_out = Vec::new();
        let names: Vec<String> = status.keys().cloned().collect();
        for name in names {
            let Some(schema) = self.property(&name) else {
                continue;
            };
            let value = &mut status[&name];
            let problem = match name.as_str() {
                "conditions" => fit_conditions(value, schema, &mut left_out),
                _ if is_given && name != "observedGeneration" => None,
                _ => schema::validate(value, schema).into_iter().next(),
            };
            if let Some(problem) = problem {
                left_out.push(at(&format!("status.{name}"), problem));
                status.remove(&name);
            }
        }
        self.fit_rules(status, &mut left_out);
        // What is required and not there: an API server takes nothing of this status.
        let rest = schema::validate(&Value::Object(status.clone()), &self.schema);
        let mut missing = rest
            .into_iter()
            .filter(|problem| problem.message.contains(REQUIRED));
        let is_missing = |problem: &Problem| !is_given && !status.contains_key(&problem.path);
        if let Some(problem) = missing.find(is_missing) {
            left_out.push(at("status", problem));
            status.clear();
        }
        left_out
    }

    /// Removes the conditions that violate rules in CEL.
    fn fit_rules(&self, status: &mut Map<String, Value>, left_out: &mut Vec<Problem>) {
        if !schema::has_rules(&self.schema) {
            return;
        }
        let resource = json!({ "type": "object", "properties": { "status": *self.schema } });
        while let Some(Value::Array(conditions)) = status.get("conditions") {
            let object = json!({ "status": status });
            let violations = cel::validate(&resource, &object, None).violations;
            let Some(violation) = violations.iter().find(|it| it.starts_with("status.conditions")) else {
                return;
            };
            let (path, message) = violation.split_once(": ").unwrap_or((violation, ""));
            let index = path
                .strip_prefix("status.conditions[")
                .and_then(|rest| rest.split(']').next());
            let index = index.and_then(|index| index.parse().ok());
            let rest = conditions.iter().enumerate().filter(|(at, _)| Some(*at) != index);
            let rest: Vec<Value> = rest.map(|(_, condition)| condition.clone()).collect();
            let path = if index.is_some() {
                "status.conditions[]"
            } else {
                "status.conditions"
            };
            left_out.push(Problem::new(
                path,
                format!("{message} (x-kubernetes-validations)"),
            ));
            match index {
                Some(index) if index < conditions.len() => status.insert("conditions".into(), rest.into()),
                _ => status.remove("conditions"),
            };
        }
    }
}

/// The end of the message about a field that is missing.
const REQUIRED: &str = "(required)";

/// Returns a problem with its path below another one.
fn at(path: &str, problem: Problem) -> Problem {
    match problem.path.as_str() {
        "" => Problem::new(path, problem.message),
        below if below.starts_with('[') => Problem::new(format!("{path}{below}"), problem.message),
        below => Problem::new(format!("{path}.{below}"), problem.message),
    }
}

/// Removes what the schema does not allow of a list of conditions. Returns a problem of the whole list that is left.
fn fit_conditions(conditions: &mut Value, schema: &Value, left_out: &mut Vec<Problem>) -> Option<Problem> {
    if let (Some(list), Some(items)) = (conditions.as_array_mut(), schema.get("items")) {
        list.retain_mut(|condition| fit_condition(condition, items, left_out));
        let most = schema["maxItems"]
            .as_u64()
            .and_then(|most| usize::try_from(most).ok());
        if let Some(most) = most.filter(|most| list.len() > *most) {
            let message = format!("{} items are more than {most} (maxItems)", list.len());
            left_out.push(Problem::new("status.conditions", message));
            // `Ready` says most. The host's other conditions come last.
            list.sort_by_key(|condition| condition["type"] != "Ready");
            list.truncate(most);
        }
    }
    schema::validate(conditions, schema).into_iter().next()
}

/// Removes the fields that the schema does not allow from a condition, and cuts a message. Returns whether the rest is allowed.
fn fit_condition(condition: &mut Value, schema: &Value, left_out: &mut Vec<Problem>) -> bool {
    while let Some(problem) = schema::validate(condition, schema).into_iter().next() {
        let name = problem
            .path
            .split(['.', '['])
            .next()
            .unwrap_or_default()
            .to_owned();
        let most = schema["properties"][&name]["maxLength"].as_u64();
        let value = condition.get(&name).cloned();
        left_out.push(at("status.conditions[]", problem));
        let (Some(value), Some(fields)) = (value, condition.as_object_mut()) else {
            return false;
        };
        match (
            name.as_str(),
            value.as_str(),
            most.and_then(|most| usize::try_from(most).ok()),
        ) {
            ("message", Some(text), Some(most)) if text.chars().count() > most => {
                fields.insert(name, text.chars().take(most).collect::<String>().into());
            }
            ("type" | "status", ..) => return false,
            _ => drop(fields.remove(&name)),
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a status, and where it does not fit, when the conditions or their fields have these schemas.
    fn fitted(conditions: &Value, fields: &Value, status: &Value) -> (Value, Vec<String>) {
        let text = json!({ "type": "string" });
        let mut items = json!({ "type": "object", "required": ["type", "status"], "properties": {
            "type": text, "status": text, "reason": text, "message": text } });
        for (name, schema) in fields.as_object().unwrap() {
            items["properties"][name] = schema.clone();
            if schema["required"] == true {
                items["required"] = json!(["type", name]);
            }
        }
        let mut list = json!({ "type": "array", "items": items });
        list.as_object_mut()
            .unwrap()
            .extend(conditions.as_object().unwrap().clone());
        let schema = json!({ "type": "object", "required": ["phase"], "properties": {
            "phase": { "type": "string", "enum": ["Up"] }, "observedGeneration": { "type": "string" }, "conditions": list } });
        let mut status = status.as_object().unwrap().clone();
        let fields = StatusFields::of(&json!({ "type": "object", "properties": { "status": schema } }));
        let left_out = fields.fit(&mut status, false);
        (
            status.into(),
            left_out.into_iter().map(|problem| problem.path).collect(),
        )
    }

    #[test]
    fn what_a_narrower_schema_allows_is_written_and_the_rest_is_named() {
        let condition = |type_: &str, reason: &str| json!({ "type": type_, "status": "True", "reason": reason, "message": "long" });
        let both = [condition("Synced", "Applied"), condition("Ready", "Up")];
        let (synced, ready) = (&both[0], &both[1]);
        let without = |condition: &Value, name: &str| {
            let mut condition = condition.clone();
            condition.as_object_mut().unwrap().remove(name);
            condition
        };
        let mut cut = both.clone();
        for condition in &mut cut {
            condition["message"] = "lo".into();
        }
        let none = json!({});
        let text = |key: &str, value: Value| json!({ "type": "string", key: value });
        for (list, fields, expected, path) in [
            (
                none.clone(),
                json!({ "type": text("enum", json!(["Ready"])) }),
                json!([ready]),
                "[].type",
            ),
            (
                none.clone(),
                json!({ "message": text("maxLength", json!(2)) }),
                json!(cut),
                "[].message",
            ),
            (
                none.clone(),
                json!({ "reason": text("enum", json!(["Up"])) }),
                json!([without(synced, "reason"), ready]),
                "[].reason",
            ),
            (
                none.clone(),
                json!({ "severity": { "required": true } }),
                json!([]),
                "[].severity",
            ),
            (json!({ "maxItems": 1 }), none.clone(), json!([ready]), ""),
            (
                json!({ "x-kubernetes-validations": [{ "rule": "self.all(c, c.type == 'Ready')" }] }),
                none.clone(),
                Value::Null,
                "",
            ),
        ] {
            let (status, paths) = fitted(&list, &fields, &json!({ "phase": "Up", "conditions": both }));
            assert_eq!(status["conditions"], expected, "{fields}");
            assert_eq!(paths[0], format!("status.conditions{path}"));
        }
        let rule = json!([{ "rule": "self.type == 'Ready'" }]);
        let mut status = json!({ "conditions": both }).as_object().unwrap().clone();
        let items = json!({ "x-kubernetes-preserve-unknown-fields": true, "type": "object",
            "properties": { "type": { "type": "string" } }, "x-kubernetes-validations": rule });
        let status_schema =
            json!({ "type": "object", "properties": { "conditions": { "type": "array", "items": items } } });
        let fields = StatusFields::of(&json!({ "properties": { "status": status_schema } }));
        assert_eq!(fields.fit(&mut status, true).len(), 1);
        assert_eq!(status["conditions"], json!([ready]));
    }

    #[test]
    fn other_fields_are_left_out_unless_the_plugin_gives_them_now() {
        let none = json!({});
        let of = |status: &Value| fitted(&none, &none, status);
        let (status, paths) = of(&json!({ "phase": "Up", "observedGeneration": 3 }));
        assert_eq!(
            (status, paths),
            (
                json!({ "phase": "Up" }),
                vec!["status.observedGeneration".to_owned()]
            )
        );
        let (status, paths) = of(&json!({ "phase": "Down", "conditions": [] }));
        assert_eq!((status, paths), (json!({}), vec!["status.phase".to_owned(); 2]));
        let schema = json!({ "properties": { "status": { "properties": { "phase": { "enum": ["Up"] } } } } });
        let mut given = json!({ "phase": "Down" }).as_object().unwrap().clone();
        assert!(StatusFields::of(&schema).fit(&mut given, true).is_empty());
        assert_eq!(given["phase"], "Down");
    }

    #[test]
    fn only_what_the_schema_keeps_is_written() {
        let status = json!({ "phase": "x", "observedGeneration": 1, "conditions": [
            { "type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "t", "observedGeneration": 1, "mine": 1 },
        ] });
        let written = |schema: &Value| {
            let mut status = status.as_object().unwrap().clone();
            StatusFields::of(schema).restrict(&mut status);
            Value::Object(status)
        };
        let of = |properties: Value| {
            let schema = json!({ "type": "object", "properties": properties });
            written(&json!({ "type": "object", "properties": { "status": schema } }))
        };
        let open = json!({ "x-kubernetes-preserve-unknown-fields": true });
        assert_eq!(written(&open), status);
        assert_eq!(written(&json!({ "properties": { "status": open } })), status);
        let none = json!({ "phase": "x" });
        assert_eq!(of(json!({})), none);
        assert_eq!(written(&json!({ "type": "object" })), none);
        let text = json!({ "type": "string" });
        let conditions = |items: &Value| json!({ "type": "array", "items": items });
        let all = json!({ "observedGeneration": { "type": "integer" }, "conditions": conditions(&open) });
        assert_eq!(of(all), status);
        // Conditions of another form, and some with fewer fields.
        assert_eq!(of(json!({ "conditions": conditions(&text) })), none);
        let fields =
            json!({ "type": "object", "properties": { "type": text, "status": text, "reason": text } });
        let fewer = json!({ "phase": "x", "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "mine": 1 }] });
        assert_eq!(of(json!({ "conditions": conditions(&fields) })), fewer);
    }
}
