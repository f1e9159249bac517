//! What `render` prints.

use std::fmt::Write;

use clap::ValueEnum;
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use super::Failure;
use crate::dry_run::documents::kind_of;
use crate::dry_run::offline::{Rendering, Scene};
use crate::object::ObjectName;
use crate::plugin::contract::Kind;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// The children as YAML documents; the rest in comments
    Yaml,
    /// A `List` of the children; the rest in its field `parents`
    Json,
    /// The children's names, as `kubectl` gives them
    Name,
}

/// All renderings as one text.
pub(super) fn print(output: Output, parent: &Kind, done: &[(Scene, Rendering)]) -> Result<String, Failure> {
    Ok(match output {
        Output::Yaml => {
            let mut text = String::new();
            for (scene, rendering) in done {
                text.push_str(&yaml(parent, scene, rendering)?);
            }
            text
        }
        Output::Json => {
            let items: Vec<&Value> = done.iter().flat_map(|(_, r)| &r.children).collect();
            let parents: Vec<Value> = done.iter().map(|(s, r)| summary(parent, s, r)).collect();
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items, "parents": parents });
            serde_json::to_string_pretty(&list)? + "\n"
        }
        Output::Name => done.iter().fold(String::new(), |mut text, (_, rendering)| {
            for child in &rendering.children {
                text.push_str(&name(&kind_of(child), &child["metadata"]["name"]));
            }
            for secret in &rendering.generate {
                let _ = writeln!(text, "secret/{}", secret.name);
            }
            text
        }),
    })
}

fn name(kind: &Kind, name: &Value) -> String {
    let dot = if kind.group().is_empty() { "" } else { "." };
    format!(
        "{}{dot}{}/{}\n",
        kind.kind.to_lowercase(),
        kind.group(),
        name.as_str().unwrap_or_default()
    )
}

fn summary(kind: &Kind, scene: &Scene, rendering: &Rendering) -> Value {
    let name = ObjectName::of(&scene.parent);
    json!({
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": { "namespace": name.namespace, "name": name.name },
        "status": rendering.status,
        "events": rendering.events,
        "keep": rendering.keep.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "generate": rendering.generate,
        "requeueAfterMs": rendering.requeue_after_ms,
        "cleanedUp": rendering.cleaned_up,
    })
}

/// What is not for `kubectl apply` stands in comments, so that the whole can be piped into it.
fn yaml(kind: &Kind, scene: &Scene, rendering: &Rendering) -> Result<String, Failure> {
    let mut text = format!("# {} {}\n", kind.kind, ObjectName::of(&scene.parent));
    match rendering.cleaned_up {
        Some(true) => text.push_str("# cleanup: done, the parent may go\n"),
        Some(false) => text.push_str("# cleanup: not done yet\n"),
        None => {}
    }
    let status = serde_saphyr::to_string(&json!({ "status": rendering.status }))?;
    for line in status.lines() {
        let _ = writeln!(text, "# {line}");
    }
    for event in &rendering.events {
        let _ = writeln!(
            text,
            "# event: {:?} {}: {}",
            event.type_, event.reason, event.message
        );
    }
    for key in &rendering.keep {
        let _ = writeln!(text, "# stays as it is: {key}");
    }
    for secret in &rendering.generate {
        for entry in &secret.entries {
            let _ = writeln!(
                text,
                "# made by the host: Secret {}, key {}, {} characters",
                secret.name, entry.key, entry.length
            );
        }
    }
    if let Some(ms) = rendering.requeue_after_ms {
        let _ = writeln!(text, "# again after {ms} ms");
    }
    for child in &rendering.children {
        let _ = write!(text, "---\n{}", serde_saphyr::to_string(child)?);
    }
    Ok(text)
}

/// A unified diff between two texts with these names; empty when they are the same.
pub(super) fn diff((from, to): (&str, &str), before: &str, after: &str, colour: bool) -> String {
    let diff = TextDiff::from_lines(before, after);
    let mut text = String::new();
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        if text.is_empty() {
            let _ = write!(text, "--- {from}\n+++ {to}\n");
        }
        let _ = writeln!(text, "{}", hunk.header());
        for change in hunk.iter_changes() {
            let (sign, code) = match change.tag() {
                ChangeTag::Delete => ('-', "31"),
                ChangeTag::Insert => ('+', "32"),
                ChangeTag::Equal => (' ', ""),
            };
            let line = change.value().trim_end_matches('\n');
            let _ = if colour && !code.is_empty() {
                writeln!(text, "\x1b[{code}m{sign}{line}\x1b[0m")
            } else {
                writeln!(text, "{sign}{line}")
            };
            if change.missing_newline() {
                text.push_str("\\ No newline at end of file\n");
            }
        }
    }
    text
}
