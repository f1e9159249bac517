//! Reads Kubernetes objects from YAML or JSON files.

use std::path::{Path, PathBuf};

use kube::core::DynamicObject;
use serde_json::Value;
use thiserror::Error;

use operator_host_contract::Kind;

/// Why a file is not a series of objects.
#[derive(Debug, Error)]
pub enum DocumentError {
    /// The file cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The text is not YAML.
    #[error("{}: {message}", file.display())]
    Yaml {
        /// The file.
        file: PathBuf,
        /// The problem, with line and column.
        message: String,
    },
    /// A document is not a Kubernetes object.
    #[error("{}, document {number}: {message}", file.display())]
    NoObject {
        /// The file.
        file: PathBuf,
        /// The document's number, from 1.
        number: usize,
        /// What is missing.
        message: String,
    },
}

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
pub fn read(file: &Path) -> Result<Vec<Document>, DocumentError> {
    let text = std::fs::read_to_string(file).map_err(|error| DocumentError::Read {
        file: file.to_owned(),
        error,
    })?;
    let values: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| DocumentError::Yaml {
        file: file.to_owned(),
        message: error.without_snippet().to_string(),
    })?;
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
                return Err(DocumentError::NoObject {
                    file: file.to_owned(),
                    number,
                    message: format!("not a Kubernetes object: {missing} is missing or not a string"),
                });
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
