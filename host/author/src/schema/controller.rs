//! The CustomResourceDefinition of Controller, made of the types that read it.

use serde_json::{Map, Value, json};

use super::{READY, conditions, text, time};
use operator_host_config::object;

/// Returns the definition.
pub(super) fn definition() -> Value {
    let mut spec = object::spec_schema().to_value();
    make_structural(&mut spec);
    let schema = json!({
        "type": "object",
        "description": "A controller that operator-host runs: a kind of custom resource, and the WebAssembly plugin that reconciles \
                        it.",
        "required": ["spec"],
        "properties": {"spec": spec, "status": status()},
    });
    let names = json!({
        "kind": object::KIND,
        "listKind": format!("{}List", object::KIND),
        "plural": object::PLURAL,
        "singular": "controller",
    });
    let held_back = r#".status.conditions[?(@.type=="PluginHeldBack")].status"#;
    let columns = [
        ("Ready", "string", READY),
        ("Parent", "string", ".spec.parent.kind"),
        ("Plugin", "string", ".status.live.name"),
        ("Version", "string", ".status.live.version"),
        ("Held-Back", "string", held_back),
        ("Objects", "integer", ".status.objects.total"),
        ("Not-Ready", "integer", ".status.objects.notReady"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ];
    super::definition("Cluster", &names, &columns, &schema)
}

/// Makes what schemars writes a structural schema, as Kubernetes documents it under "Specifying a structural schema". Unknown
/// fields need no mention, and defaults are the host's business.
fn make_structural(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            flatten_choice(fields);
            for unused in [
                "$schema",
                "title",
                "default",
                "nullable",
                "format",
                "additionalProperties",
                "uniqueItems",
            ] {
                // A property may have such a name.
                if fields.get(unused).is_none_or(|field| field.get("type").is_none()) {
                    fields.remove(unused);
                }
            }
            fields.values_mut().for_each(make_structural);
        }
        Value::Array(values) => values.iter_mut().for_each(make_structural),
        _ => {}
    }
}

/// An enum with documented variants is a choice of constants: makes it a list of values.
fn flatten_choice(fields: &mut Map<String, Value>) {
    for choice in ["oneOf", "anyOf"] {
        let Some(Value::Array(choices)) = fields.remove(choice) else {
            continue;
        };
        let mut values = Vec::new();
        for mut choice in choices {
            if let Some(inner) = choice.as_object_mut() {
                flatten_choice(inner);
            }
            values.extend(choice.get("const").cloned());
            values.extend(choice["enum"].as_array().cloned().unwrap_or_default());
        }
        values.retain(|value| !value.is_null());
        fields.insert("type".to_owned(), "string".into());
        fields.insert("enum".to_owned(), values.into());
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}

fn status() -> Value {
    let version = |more: Value| {
        let mut properties = json!({
            "version": text("The plugin's own version."),
            "digest": text("The SHA-256 of its file."),
            "since": time("Since when it has this state."),
        });
        if let (Some(properties), Value::Object(more)) = (properties.as_object_mut(), more) {
            properties.extend(more);
        }
        json!({"type": "object", "properties": properties})
    };
    let first = json!({
        "type": "array",
        "description": "The first objects that are decorated and not ready; those of a kind of its own say so themselves.",
        "items": {
            "type": "object",
            "properties": {
                "kind": text("Its kind."),
                "name": text("As `namespace/name`."),
                "reason": text("The reason in one word; the object's Events say more."),
            },
        },
    });
    let types = "Ready, Progressing, Stalled or PluginHeldBack.";
    let [generation, conditions] = conditions(types, "The reason for people.");
    json!({
        "type": "object",
        "description": "What the host says about it.",
        "properties": {
            "observedGeneration": generation,
            "conditions": conditions,
            "live": version(json!({
                "name": text("The plugin's own name."),
                "because": text("Why it became live."),
                "by": text("Who ordered it, if someone did."),
            })),
            "proposed": version(json!({
                "state": text("proving, heldBack, putAside or refused."),
                "reason": text("Why it is held back, in one word."),
                "message": text("The same for people."),
            })),
            "kept": {
                "type": "array",
                "items": version(json!({})),
                "description": "Versions that were live and can be pinned, the last first.",
            },
            "objects": {
                "type": "object",
                "description": "The objects of the kind.",
                "properties": {"total": {"type": "integer"}, "notReady": {"type": "integer"}, "first": first},
            },
            "lastError": text("What is wrong now, if anything is."),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_structural_and_explains_every_field() {
        let definition = definition();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &schema["properties"]["spec"];
        assert_eq!(spec["required"], json!(["plugin"]));
        assert_eq!(
            spec["properties"]["children"]["items"]["properties"]["onRemoval"]["enum"],
            json!(["delete", "retain"])
        );
        let fields = spec["properties"].as_object().unwrap();
        for (name, field) in fields {
            assert!(field["description"].is_string(), "{name}: {field}");
        }
        let text = definition.to_string();
        for word in ["anyOf", "oneOf", "$ref", "nullable", "uniqueItems", "\"const\""] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }
}
