//! What the schema of a status has for the fields that the host writes into it.

use serde_json::{Map, Value, json};

use crate::pruned;

/// The fields of a condition that the host sets.
const CONDITION: [&str; 6] = [
    "type",
    "status",
    "reason",
    "message",
    "lastTransitionTime",
    "observedGeneration",
];

/// The fields of a status that the host sets, as far as the schema has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusFields {
    /// The fields of an element of `conditions`, in the order of [`CONDITION`]. Without `type` and `status` there are none.
    condition: [bool; CONDITION.len()],
    /// `observedGeneration`.
    observed_generation: bool,
}

impl StatusFields {
    /// Both, for a definition that the host may not read.
    pub const ALL: Self = Self {
        condition: [true; CONDITION.len()],
        observed_generation: true,
    };

    /// Returns those that an API server with this schema of the resource keeps.
    #[must_use]
    pub fn of(schema: &Value) -> Self {
        let keeps = |status: Value| pruned::first(&json!({ "status": status }), schema).is_none();
        Self {
            condition: CONDITION.map(|field| keeps(json!({ "conditions": [{ field: "" }] }))),
            observed_generation: keeps(json!({ "observedGeneration": 1 })),
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
