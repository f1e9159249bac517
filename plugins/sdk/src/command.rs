//! The command form: one JSON document on standard input, one on standard output.
//!
//! The documents have the format of the host's `CommandInput` and `CommandOutput`.

use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use crate::bindings::operator_host::plugin::types as wit;
use crate::plugin::{Reconciler, Registered};
use crate::response::{
    Condition, ConditionStatus, Event, EventType, Failure, FieldError, GeneratedSecret, Need, ObjectRef,
};

/// Answers one call. If the input violates the contract, writes the reason to standard error and returns a nonzero
/// exit code.
pub fn run<R: Registered>() -> ExitCode {
    match answer::<R>() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn answer<R: Registered>() -> Result<(), String> {
    let mut document = Vec::new();
    stdin()
        .read_to_end(&mut document)
        .map_err(|error| format!("standard input: {error}"))?;
    let input: Value =
        serde_json::from_slice(&document).map_err(|error| format!("standard input is not JSON: {error}"))?;
    let plugin = R::plugin();
    let request = || request(&input["request"]);
    let output = match input["call"].as_str() {
        Some("describe") => {
            json!({ "description": description(plugin.describe(R::NAME, R::VERSION, R::CRD)) })
        }
        Some("validate") => {
            let old_parent = Some(&input["oldParent"]).filter(|old| !old.is_null());
            let old_parent = old_parent.map(Value::to_string);
            let errors = plugin.validate(&input["parent"].to_string(), old_parent.as_deref());
            json!({ "validated": array(errors, field_error) })
        }
        Some("reconcile") => match plugin.reconcile(request()) {
            Ok(answer) => json!({ "response": response(answer) }),
            Err(error) => json!({ "failure": failure(error) }),
        },
        Some("cleanup") => match plugin.cleanup(request()) {
            Ok(answer) => json!({ "cleanup": cleanup(answer) }),
            Err(error) => json!({ "failure": failure(error) }),
        },
        Some("convert") => {
            let conversion = &input["conversion"];
            let results = plugin.convert(&text(&conversion["apiVersion"]), &texts(&conversion["objects"]));
            json!({ "converted": array(results, converted) })
        }
        Some("default") => match plugin.default(&input["parent"].to_string()) {
            Ok(spec) => json!({ "defaulted": parse(spec) }),
            Err(error) => json!({ "failure": failure(error) }),
        },
        _ => {
            return Err(
                "standard input: `call` is none of describe, validate, reconcile, cleanup, convert, default"
                    .to_owned(),
            );
        }
    };
    stdout()
        .write_all(output.to_string().as_bytes())
        .map_err(|error| format!("standard output: {error}"))
}

fn request(request: &Value) -> wit::Request {
    wit::Request {
        parent: request["parent"].to_string(),
        children: texts(&request["children"]),
        related: items(&request["related"])
            .map(|related| wit::Related {
                id: text(&related["id"]),
                objects: texts(&related["objects"]),
            })
            .collect(),
        now: text(&request["now"]),
        traceparent: request["traceparent"].as_str().map(str::to_owned),
        namespace_terminating: request["namespaceTerminating"] == true,
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn texts(values: &Value) -> Vec<String> {
    items(values).map(Value::to_string).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The crate itself serialized the text from a value.
fn parse(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

/// Creates an object that omits fields without a value, as the contract requires.
fn record<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let present = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(
        present
            .map(|(name, value)| (name.to_owned(), value))
            .collect::<Map<_, _>>(),
    )
}

fn array<T>(items: Vec<T>, item: fn(T) -> Value) -> Value {
    Value::Array(items.into_iter().map(item).collect())
}

fn description(description: wit::Description) -> Value {
    record([
        ("contract", "1.0.0".into()),
        ("name", description.name.into()),
        ("version", description.version.into()),
        ("parent", kind(description.parent)),
        ("makes", array(description.makes, kind)),
        ("reads", array(description.reads, kind)),
        ("finalizer", description.finalizer.into()),
        ("crd", description.crd.map(parse).into()),
        ("versions", description.versions.into()),
        ("defaults", description.defaults.into()),
        ("validates", description.validates.into()),
    ])
}

fn kind(kind: wit::Kind) -> Value {
    record([
        ("apiVersion", kind.api_version.into()),
        ("kind", kind.kind.into()),
    ])
}

fn response(response: wit::Response) -> Value {
    record([
        ("children", array(response.children, parse)),
        ("keep", array(response.keep, object_ref)),
        ("generate", array(response.generate, generated_secret)),
        ("status", response.status.map(parse).into()),
        ("conditions", array(response.conditions, condition)),
        ("events", array(response.events, event)),
        ("requeueAfterMs", response.requeue_after_ms.into()),
        ("requeueAt", response.requeue_at.into()),
        ("needs", array(response.needs, need)),
    ])
}

fn cleanup(response: wit::CleanupResponse) -> Value {
    record([
        ("done", response.done.into()),
        ("children", array(response.children, parse)),
        ("status", response.status.map(parse).into()),
        ("conditions", array(response.conditions, condition)),
        ("events", array(response.events, event)),
        ("requeueAfterMs", response.requeue_after_ms.into()),
        ("requeueAt", response.requeue_at.into()),
        ("needs", array(response.needs, need)),
    ])
}

fn object_ref(object: ObjectRef) -> Value {
    record([
        ("apiVersion", object.api_version.into()),
        ("kind", object.kind.into()),
        ("namespace", object.namespace.into()),
        ("name", object.name.into()),
    ])
}

fn generated_secret(secret: GeneratedSecret) -> Value {
    let entries = array(secret.entries, |value| {
        record([
            ("key", value.key.into()),
            ("length", value.length.into()),
            ("alphabet", value.alphabet.into()),
        ])
    });
    record([("name", secret.name.into()), ("entries", entries)])
}

fn condition(condition: Condition) -> Value {
    let status = match condition.status {
        ConditionStatus::True => "True",
        ConditionStatus::False => "False",
        ConditionStatus::Unknown => "Unknown",
    };
    record([
        ("type", condition.type_.into()),
        ("status", status.into()),
        ("reason", condition.reason.into()),
        ("message", condition.message.into()),
    ])
}

fn event(event: Event) -> Value {
    let type_ = match event.type_ {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    record([
        ("type", type_.into()),
        ("reason", event.reason.into()),
        ("message", event.message.into()),
    ])
}

fn field_error(error: FieldError) -> Value {
    record([("path", error.path.into()), ("message", error.message.into())])
}

fn need(need: Need) -> Value {
    record([
        ("id", need.id.into()),
        ("apiVersion", need.api_version.into()),
        ("kind", need.kind.into()),
        ("namespace", need.namespace.into()),
        ("name", need.name.into()),
        ("labelSelector", need.label_selector.into()),
    ])
}

fn converted(result: Result<String, String>) -> Value {
    match result {
        Ok(object) => json!({ "object": parse(object) }),
        Err(message) => json!({ "error": message }),
    }
}

fn failure(failure: Failure) -> Value {
    match failure {
        Failure::Invalid(invalid) => record([(
            "invalid",
            record([
                ("reason", invalid.reason.into()),
                ("message", invalid.message.into()),
                ("status", invalid.status.map(parse).into()),
                ("conditions", array(invalid.conditions, condition)),
            ]),
        )]),
        Failure::Retry(retry) => record([(
            "retry",
            record([
                ("message", retry.message.into()),
                ("afterMs", retry.after_ms.into()),
                ("status", retry.status.map(parse).into()),
                ("conditions", array(retry.conditions, condition)),
            ]),
        )]),
    }
}
