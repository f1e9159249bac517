//! What a child says about its last change: the generation of its parent, and the version of the plugin.

use std::fmt;

use kube::core::DynamicObject;

use super::annotation;

/// Annotation of every child: a [`Provenance`].
pub const PROVENANCE_ANNOTATION: &str = "operator-host.dev/provenance";

/// The last change of a child, as `generation=3 parent=UID digest=sha256:... trace=00-... plugin=echo 1.2.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provenance<'a> {
    /// The parent's generation and UID; `None` for a parent that is not from the API server.
    pub parent: Option<(i64, &'a str)>,
    /// The digest of the plugin.
    pub digest: &'a str,
    /// The W3C `traceparent` of the reconcile, if that was sampled.
    pub trace: Option<&'a str>,
    /// The name and the version of the plugin, as it describes itself.
    pub plugin: &'a str,
}

impl<'a> Provenance<'a> {
    /// Returns that of a change for this parent.
    pub fn new(parent: &'a DynamicObject, digest: &'a str, trace: Option<&'a str>, plugin: &'a str) -> Self {
        let metadata = &parent.metadata;
        Self {
            parent: metadata.generation.zip(metadata.uid.as_deref()),
            digest,
            trace,
            plugin,
        }
    }

    /// Reads that of a child; `None` when it has none, or somebody wrote another text.
    pub fn of(child: &'a DynamicObject) -> Option<Self> {
        // A plugin's name may be any text.
        let (fields, plugin) = annotation(child, PROVENANCE_ANNOTATION)?.split_once(" plugin=")?;
        let field = |name: &str| {
            let mut fields = fields.split(' ').filter_map(|field| field.split_once('='));
            fields.find_map(|(key, value)| (key == name).then_some(value))
        };
        let generation = field("generation").and_then(|generation| generation.parse().ok());
        Some(Self {
            parent: generation.zip(field("parent")),
            digest: field("digest")?,
            trace: field("trace"),
            plugin,
        })
    }
}

impl fmt::Display for Provenance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((generation, uid)) = self.parent {
            write!(f, "generation={generation} parent={uid} ")?;
        }
        write!(f, "digest={} ", self.digest)?;
        if let Some(trace) = self.trace {
            write!(f, "trace={trace} ")?;
        }
        write!(f, "plugin={}", self.plugin)
    }
}

/// Returns the generation of this parent (by UID) at which a child was last changed, if the child records it.
pub fn made_at(parent: &DynamicObject, child: &DynamicObject) -> Option<i64> {
    let (generation, uid) = Provenance::of(child)?.parent?;
    (parent.metadata.uid.as_deref() == Some(uid)).then_some(generation)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(metadata: &serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn child(text: &str) -> DynamicObject {
        object(&json!({ "annotations": { PROVENANCE_ANNOTATION: text } }))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let parent = object(&json!({ "generation": 3, "uid": "u-1" }));
        for (parent, trace, plugin, text) in [
            (
                &parent,
                None,
                "echo 1.2.0",
                "generation=3 parent=u-1 digest=sha256:ab plugin=echo 1.2.0",
            ),
            (
                &parent,
                Some("00-ab-cd-01"),
                "a plugin=b =",
                "generation=3 parent=u-1 digest=sha256:ab trace=00-ab-cd-01 plugin=a plugin=b =",
            ),
            (
                &object(&json!({})),
                None,
                "echo trace=1",
                "digest=sha256:ab plugin=echo trace=1",
            ),
        ] {
            let written = Provenance::new(parent, "sha256:ab", trace, plugin);
            assert_eq!(written.to_string(), text);
            assert_eq!(Provenance::of(&child(text)), Some(written));
        }
    }

    #[test]
    fn another_text_says_nothing() {
        for text in [
            "",
            "99",
            "generation=99 parent=u-1",
            "plugin=a",
            "generation=9 plugin=a",
        ] {
            assert_eq!(Provenance::of(&child(text)), None, "{text}");
        }
        let parent = object(&json!({ "generation": 3, "uid": "u-1" }));
        for text in [
            "generation=x parent=u-1",
            "generation=9 parent=u-2",
            "generation=9",
        ] {
            assert_eq!(
                made_at(&parent, &child(&format!("{text} digest=d plugin=a"))),
                None,
                "{text}"
            );
        }
    }
}
