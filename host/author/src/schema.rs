//! `operator-host schema`: prints the JSON Schema of the contract's documents, and the definitions of Controller and External.

mod controller;
mod external;

use clap::ValueEnum;
use schemars::schema_for;
use serde_json::{Value, json};

use super::Failure;
use operator_host_config::object::{GROUP, VERSION};
use operator_host_contract::{CommandInput, CommandOutput};

/// The options of `schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The document that the plugin reads (request) or writes (response), or the CustomResourceDefinition of Controller or
    /// External
    document: Document,
}

/// A document of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// The document that a WASI command reads from standard input
    Request,
    /// The document that a WASI command writes to standard output
    Response,
    /// The CustomResourceDefinition of Controller, as YAML
    Controller,
    /// The CustomResourceDefinition of External, as YAML
    External,
}

/// Prints the schema.
///
/// # Errors
/// Never at present.
pub fn run(args: &Args) -> Result<(), Failure> {
    let text = match args.document {
        Document::Request => serde_json::to_string_pretty(&schema_for!(CommandInput))? + "\n",
        Document::Response => serde_json::to_string_pretty(&schema_for!(CommandOutput))? + "\n",
        Document::Controller => serde_saphyr::to_string(&controller::definition())?,
        Document::External => serde_saphyr::to_string(&external::definition())?,
    };
    print!("{text}");
    Ok(())
}

/// How the API server prints the status of a condition.
const READY: &str = r#".status.conditions[?(@.type=="Ready")].status"#;

/// Returns the definition of a kind of the host. `names` and `scope` are as in its `spec`, and a column is a name, a type and a
/// path.
fn definition(scope: &str, names: &Value, columns: &[(&str, &str, &str)], schema: &Value) -> Value {
    let plural = names["plural"].as_str().unwrap_or_default();
    let column = |(name, type_, path): &_| json!({"name": name, "type": type_, "jsonPath": path});
    let columns: Vec<Value> = columns.iter().map(column).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": scope,
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn time(description: &str) -> Value {
    json!({"type": "string", "format": "date-time", "description": description})
}

/// Returns the schema of `observedGeneration` and of the conditions of these types.
fn conditions(types: &str, message: &str) -> [Value; 2] {
    let generation = "The generation that the rest is about.";
    let condition = json!({
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": text(types),
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text("The reason in one word."),
            "message": text(message),
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": time("Since when it has this status."),
        },
    });
    [
        json!({"type": "integer", "format": "int64", "description": generation}),
        json!({
            "type": "array",
            "items": condition,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        }),
    ]
}
