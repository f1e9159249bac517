//! Reads Kubernetes objects from YAML or JSON files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use kube::core::DynamicObject;
use serde_json::Value;

use crate::Failure;
use operator_host_contract::Kind;

/// One object of a file. Displayed, it is its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The file, and the document's number in it, from 1; the items of a list share one.
    pub place: String,
    /// The object, with `apiVersion`, `kind` and `metadata.name`.
    pub object: Value,
}

impl Document {
    /// The object's kind.
    pub fn kind(&self) -> Kind {
        operator_host_core::object::kind_of(&self.object)
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Returns the object in the type that the rest of the host uses.
    ///
    /// # Errors
    /// When the metadata is not that of an object.
    pub fn dynamic(&self) -> anyhow::Result<Arc<DynamicObject>> {
        serde_json::from_value(self.object.clone()).with_context(|| self.to_string())
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.place, self.kind().kind, self.name())
    }
}

/// Reads every object of some files: their documents, and the items of lists. Skips empty documents.
///
/// # Errors
/// When a file cannot be read, is not YAML, or contains something other than objects.
pub fn read(files: &[PathBuf]) -> Result<Vec<Document>, Failure> {
    let documents: anyhow::Result<Vec<_>> = files.iter().map(|file| read_one(file)).collect();
    let documents = documents.map_err(Failure::Usage)?;
    Ok(documents.into_iter().flatten().collect())
}

fn read_one(file: &Path) -> anyhow::Result<Vec<Document>> {
    let place = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {place}"))?;
    let values: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| anyhow!("{place}: {}", error.without_snippet()))?;
    let mut documents = Vec::new();
    for (index, mut value) in values.into_iter().enumerate() {
        let place = format!("{place}, document {}", index + 1);
        let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        if value.is_null() {
            continue;
        }
        let objects = match value.get_mut("items") {
            Some(Value::Array(items)) if is_list => std::mem::take(items),
            _ => vec![value],
        };
        for object in objects {
            if let Some(missing) = missing(&object) {
                bail!("{place}: not a Kubernetes object: `{missing}` is missing or not a string");
            }
            let place = place.clone();
            documents.push(Document { place, object });
        }
    }
    Ok(documents)
}

fn missing(object: &Value) -> Option<&'static str> {
    let names = ["apiVersion", "kind", "metadata.name"];
    let values = [
        &object["apiVersion"],
        &object["kind"],
        &object["metadata"]["name"],
    ];
    let is_missing = |value: &&Value| value.as_str().is_none_or(str::is_empty);
    values.iter().position(is_missing).map(|place| names[place])
}
