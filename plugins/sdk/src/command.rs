//! The command form: one JSON document on standard input, one on standard output.
//!
//! The documents have the format of the host's `CommandInput` and `CommandOutput`.

use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use crate::bindings::operator_host::plugin::types as wit;
use crate::plugin::{Reconciler, Registered};
use crate::request::about;
use crate::response::Failure;

/// Answers one call. If the input violates the contract, writes the reason to standard error and returns a nonzero
/// exit code.
pub fn run<R: Registered>() -> ExitCode {
    let Err(message) = answer::<R>() else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{message}");
    ExitCode::FAILURE
}

fn answer<R: Registered>() -> Result<(), String> {
    let mut input = Vec::new();
    stdin()
        .read_to_end(&mut input)
        .map_err(|error| format!("standard input: {error}"))?;
    let input: Value =
        serde_json::from_slice(&input).map_err(|error| format!("standard input is not JSON: {error}"))?;
    let plugin = R::plugin();
    let request = || request(&input["request"]);
    let output = match input["call"].as_str() {
        Some("describe") => {
            let mut description = document(plugin.describe(R::NAME, R::VERSION, R::CRD));
            description["contract"] = "1.0.0".into();
            json!({ "description": description })
        }
        Some("validate") => {
            let old_parent = Some(&input["oldParent"]).filter(|old| !old.is_null());
            let old_parent = old_parent.map(Value::to_string);
            let errors = plugin.validate(&input["parent"].to_string(), old_parent.as_deref());
            json!({ "validated": document(errors) })
        }
        Some("reconcile") => responded(plugin.reconcile(request()?)),
        Some("cleanup") => responded(plugin.cleanup(request()?)),
        Some("convert") => {
            let conversion = &input["conversion"];
            let results = plugin.convert(&text(&conversion["apiVersion"]), &texts(&conversion["objects"]));
            let results = results.into_iter().map(|result| match result {
                Ok(object) => json!({ "object": parse(object) }),
                Err(message) => json!({ "error": message }),
            });
            json!({ "converted": results.collect::<Value>() })
        }
        Some("default") => match plugin.default(&input["parent"].to_string()) {
            Ok(spec) => json!({ "defaulted": parse(spec) }),
            Err(error) => failure(error),
        },
        _ => {
            let calls = "describe, validate, reconcile, cleanup, convert, default";
            return Err(format!("standard input: `call` is none of {calls}"));
        }
    };
    stdout()
        .write_all(output.to_string().as_bytes())
        .map_err(|error| format!("standard output: {error}"))
}

/// Converts the contract's JSON to the record of the world.
fn request(request: &Value) -> Result<wit::Request, String> {
    let mut record = serde_json::to_value(about(String::new())).unwrap_or_default();
    // The host omits what is false or absent.
    for (name, value) in record.as_object_mut().into_iter().flatten() {
        if let given @ (Value::String(_) | Value::Bool(_) | Value::Number(_)) = &request[renamed(name)] {
            value.clone_from(given);
        }
    }
    let plain = serde_json::from_value(record).map_err(|error| format!("standard input: {error}"))?;
    let related = items(&request["related"]).map(|related| wit::Related {
        id: text(&related["id"]),
        objects: texts(&related["objects"]),
    });
    Ok(wit::Request {
        parent: request["parent"].to_string(),
        children: texts(&request["children"]),
        related: related.collect(),
        ..plain
    })
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

/// The fields of a record that are JSON text in the world, and objects here.
const OBJECTS: [&str; 4] = ["children", "status", "parent", "crd"];

/// Converts a record of the world to the contract's JSON.
fn document(record: impl Serialize) -> Value {
    let mut document = camel_case(serde_json::to_value(record).unwrap_or_default());
    for field in OBJECTS {
        match document.get_mut(field) {
            Some(Value::Array(texts)) => texts.iter_mut().for_each(parse_in_place),
            Some(text) => parse_in_place(text),
            None => {}
        }
    }
    document
}

fn parse_in_place(text: &mut Value) {
    if let Value::String(json) = text {
        *text = parse(std::mem::take(json));
    }
}

/// Renames the fields, and omits those without a value, as the contract requires.
fn camel_case(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(camel_case).collect(),
        Value::Object(fields) => {
            let present = fields.into_iter().filter(|(_, value)| !value.is_null());
            let renamed = present.map(|(name, value)| (renamed(&name), camel_case(value)));
            renamed.collect()
        }
        other => other,
    }
}

/// Returns a name in camel case. The bindings append `_` to keywords.
fn renamed(name: &str) -> String {
    let mut words = name.trim_end_matches('_').split('_');
    let mut renamed = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1);
        renamed.push_str(&first.to_ascii_uppercase());
        renamed.push_str(rest);
    }
    renamed
}

fn responded(answer: Result<wit::Response, Failure>) -> Value {
    match answer {
        Ok(response) => json!({ "response": document(response) }),
        Err(error) => failure(error),
    }
}

fn failure(failure: Failure) -> Value {
    match failure {
        Failure::Invalid(invalid) => json!({ "failure": { "invalid": document(invalid) } }),
        Failure::Retry(retry) => json!({ "failure": { "retry": document(retry) } }),
    }
}
