//! Reads Kubernetes objects from YAML or JSON files.

use std::path::Path;

use anyhow::{Context, anyhow};
use kube::core::DynamicObject;
use serde_json::Value;

use operator_host_contract::Kind;

/// One object of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The document's number in the file, from 1; the items of a list share one.
    pub number: usize,
    /// The object, with `apiVersion`, `kind` and `metadata.name`.
    pub object: Value,
}

impl Document {
    /// The object's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        operator_host_core::object::kind_of(&self.object)
    }

    /// Returns the object in the type that the rest of the host uses.
    ///
    /// # Errors
    /// When the metadata is not that of an object.
    pub fn dynamic(&self) -> Result<DynamicObject, serde_json::Error> {
        serde_json::from_value(self.object.clone())
    }
}

/// Reads every object of a file: its documents, and the items of lists. Skips empty documents.
///
/// # Errors
/// When the file cannot be read, is not YAML, or contains something other than objects.
pub fn read(file: &Path) -> anyhow::Result<Vec<Document>> {
    let place = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {place}"))?;
    let values: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| anyhow!("{place}: {}", error.without_snippet()))?;
    let mut documents = Vec::new();
    for (index, value) in values.into_iter().enumerate() {
        let number = index + 1;
        let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        let objects = match value {
            Value::Null => continue,
            Value::Object(mut list) if is_list && list.get("items").is_some_and(Value::is_array) => {
                match list.remove("items") {
                    Some(Value::Array(items)) => items,
                    _ => Vec::new(),
                }
            }
            other => vec![other],
        };
        for object in objects {
            if let Some(missing) = missing(&object) {
                return Err(anyhow!(
                    "{place}, document {number}: not a Kubernetes object: {missing} is missing or not a string"
                ));
            }
            documents.push(Document { number, object });
        }
    }
    Ok(documents)
}

fn missing(object: &Value) -> Option<&'static str> {
    let has = |pointer: &str| {
        let text = object.pointer(pointer).and_then(Value::as_str);
        text.is_some_and(|text| !text.is_empty())
    };
    [
        ("/apiVersion", "`apiVersion`"),
        ("/kind", "`kind`"),
        ("/metadata/name", "`metadata.name`"),
    ]
    .into_iter()
    .find_map(|(pointer, name)| (!has(pointer)).then_some(name))
}
