//! The CustomResourceDefinition of External.

use serde_json::{Value, json};

use super::{READY, conditions, time};
use operator_host_config::external::{KIND, PLURAL};

/// Returns the definition.
pub(super) fn definition() -> Value {
    let columns = [
        ("Endpoint", "string", ".spec.endpoint"),
        ("Ready", "string", READY),
        ("Code", "integer", ".status.code"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ];
    let names = json!({
        "kind": KIND,
        "listKind": format!("{KIND}List"),
        "plural": PLURAL,
        "singular": "external",
        "shortNames": ["ext"],
    });
    let schema = json!({
        "type": "object",
        "description": "A resource outside of the cluster, which `operator-host egress` makes so.",
        "required": ["spec"],
        "properties": {"spec": spec(), "status": status()},
    });
    super::definition("Namespaced", &names, &columns, &schema)
}

fn immutable(mut schema: Value) -> Value {
    schema["x-kubernetes-validations"] =
        json!([{"rule": "self == oldSelf", "message": "it cannot be changed: make another External"}]);
    schema
}

fn text(description: &str, most: usize) -> Value {
    json!({"type": "string", "description": description, "minLength": 1, "maxLength": most})
}

fn anything(description: &str) -> Value {
    json!({"description": description, "x-kubernetes-preserve-unknown-fields": true})
}

fn headers() -> Value {
    json!({
        "type": "object",
        "description": "Headers of the request: Accept, Content-Type and If-Match.",
        "maxProperties": 3,
        "additionalProperties": {"type": "string", "maxLength": 256},
        "x-kubernetes-validations": [{
            "rule": "self.all(name, name in ['Accept', 'Content-Type', 'If-Match'])",
            "message": "only Accept, Content-Type and If-Match can be set",
        }],
    })
}

fn path() -> Value {
    let words = "What follows the endpoint's URL: a path, and a query if needed.";
    let mut path = text(words, 2048);
    path["pattern"] = "^/[!-~]*$".into();
    path
}

fn request(description: &str) -> Value {
    json!({
        "type": "object",
        "description": description,
        "required": ["method", "path"],
        "properties": {
            "method": {
                "type": "string",
                "enum": ["POST", "PUT", "PATCH", "DELETE"],
                "description": "The method, which the endpoint must allow.",
            },
            "path": path(),
            "body": anything(
                "The body, as JSON. In that of `set`, `{{secret NAME/KEY}}` in a text stands for that value of a Secret with the \
                 label `operator-host.dev/endpoint`.",
            ),
            "headers": headers(),
        },
    })
}

fn spec() -> Value {
    let words = "The name of an endpoint in the file of `operator-host egress`.";
    let mut endpoint = text(words, 63);
    endpoint["pattern"] = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$".into();
    let mut every = text("When to look again, at least 5s. Default: 60s.", 32);
    every["x-kubernetes-validations"] = json!([{
        "rule": "duration(self) >= duration('5s')",
        "message": "it must be at least 5s",
    }]);
    let pointer = json!({"type": "string", "maxLength": 256, "pattern": "^/"});
    json!({
        "type": "object",
        "required": ["endpoint", "observe"],
        "properties": {
            "endpoint": immutable(endpoint),
            "observe": {
                "type": "object",
                "description": "How to look: a GET. With `endpoint`, its path is what the External stands for.",
                "required": ["path"],
                "properties": {"path": immutable(path()), "headers": headers()},
            },
            "matches": anything(
                "What the answer must contain. A list must have the same length, in any order. Default: any answer.",
            ),
            "set": request("What to send when the answer does not contain `matches`. Default: nothing, it is only read."),
            "unset": request("What to send when the External is deleted. Default: nothing, it is left behind."),
            "every": every,
            "report": {
                "type": "array",
                "description": "JSON pointers into the answer; their values go into `status.values`, at most 16 KiB in all.",
                "maxItems": 32,
                "items": pointer,
            },
            "save": {
                "type": "object",
                "description": "Values of the answer that go into a Secret, which this object owns.",
                "required": ["secret", "entries"],
                "properties": {
                    "secret": text("The name of the Secret.", 253),
                    "entries": {
                        "type": "object",
                        "description": "For each key of the Secret, a JSON pointer into the answer.",
                        "maxProperties": 32,
                        "additionalProperties": pointer,
                    },
                },
            },
        },
    })
}

fn status() -> Value {
    let types = "Ready, Reconciling or Stalled.";
    let [generation, conditions] = conditions(types, "The reason for people; never text of an answer.");
    json!({
        "type": "object",
        // An object that nobody has looked at yet is not Ready, although it has no status of its own.
        "default": {"conditions": [{
            "type": "Ready",
            "status": "Unknown",
            "reason": "Pending",
            "message": "operator-host egress has not looked at it yet",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }]},
        "properties": {
            "observedGeneration": generation,
            "conditions": conditions,
            "values": {
                "type": "object",
                "description": "What `report` names, by its pointer.",
                "x-kubernetes-preserve-unknown-fields": true,
            },
            "code": {"type": "integer", "description": "The HTTP code of the last answer."},
            "lastObserved": time("When the rest of the status was first seen to be so."),
            "lastSet": time("When `set` was sent last."),
            "identity": {"type": "string", "description": "The endpoint and the path that this object stands for."},
            "secrets": {
                "type": "object",
                "description": "The versions of the Secrets whose values were sent last.",
                "additionalProperties": {"type": "string"},
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use operator_host_schema::schema::{fill_defaults, validate_resource};
    use operator_host_schema::{cel, structural};

    use super::*;

    #[test]
    fn the_schema_is_structural_and_an_unseen_object_is_not_ready() {
        let definition = definition();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(structural::problems(schema, ""), []);
        assert_eq!(cel::problems(schema, ""), []);
        let mut external = json!({
            "apiVersion": "operator-host.dev/v1alpha1", "kind": "External", "metadata": {"name": "www"},
            "spec": {"endpoint": "dns", "observe": {"path": "/zones"}, "every": "5s"},
        });
        fill_defaults(&mut external, schema);
        external["status"] = schema["properties"]["status"]["default"].clone();
        assert_eq!(external["status"]["conditions"][0]["status"], "Unknown");
        let problems = |external: &Value, old: Option<&Value>| {
            let shape = validate_resource(external, schema);
            let rules = cel::validate(schema, external, old);
            assert!(rules.left.is_empty(), "{rules:?}");
            let shape = shape.iter().map(ToString::to_string);
            shape.chain(rules.violations).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(problems(&external, Some(&external)), "");
        for (field, value, words) in [
            ("every", json!("4s"), "at least 5s"),
            ("every", json!("soon"), "every"),
            ("observe", json!({"path": "zones"}), "path"),
            ("observe", json!({"path": "/a b"}), "path"),
            (
                "observe",
                json!({"path": "/zones", "headers": {"Host": "evil"}}),
                "only Accept",
            ),
            ("observe", json!({"path": "/others"}), "cannot be changed"),
            ("observe", Value::Null, "observe"),
            ("set", json!({"method": "GET", "path": "/a"}), "method"),
            ("endpoint", json!("a/b"), "endpoint"),
            ("endpoint", json!("other"), "cannot be changed"),
        ] {
            let mut wrong = external.clone();
            wrong["spec"][field] = value;
            let problems = problems(&wrong, Some(&external));
            assert!(problems.contains(words), "{field}: {problems}");
        }
    }
}
