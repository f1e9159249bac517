//! Replaces the answer in a record. The rest of the file stays as it is written, so that a diff shows the answer only.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{LIMIT, shown, tidy};
use operator_host_core::{files, json_text};
use operator_host_instruments::record::{Record, Version};

/// Writes a new answer, and the version that gave it if the record names one, unless the file is no longer the record that was read.
pub(super) fn accept(file: &Path, record: &Record, answer: &Value, version: &Version) -> anyhow::Result<()> {
    let mut text = String::from_utf8(files::read(file, LIMIT)?)?;
    let now: Record = serde_json::from_str(&text).context("the file has changed")?;
    ensure!(
        now.output == record.output,
        "the file has changed while it was replayed"
    );
    let mut parts = vec![("output", new_output(record, answer)?)];
    if record.plugin.is_some() {
        parts.push(("plugin", serde_json::to_value(version)?));
    }
    for (name, value) in parts {
        let place = place(&text, name).with_context(|| format!("the record has no {name:?}"))?;
        let value = if text.trim_end().contains('\n') {
            // A level deeper than the record itself. A string of JSON contains no line break.
            serde_json::to_string_pretty(&value)?.replace('\n', "\n  ")
        } else {
            value.to_string()
        };
        text.replace_range(place, &value);
    }
    std::fs::write(file, text)?;
    Ok(())
}

/// Returns the answer as the file shows it: with the values of Secrets masked, unless they are in the request in clear.
/// Then the answer must contain them in clear, too, to be the same in the next replay.
fn new_output(record: &Record, answer: &Value) -> anyhow::Result<Value> {
    let masked = shown(record, answer)?;
    let accepted = Record {
        output: masked.clone(),
        ..record.clone()
    };
    if shown(&accepted, &accepted.output)? == shown(&accepted, answer)? {
        return Ok(masked);
    }
    let mut clear = answer.clone();
    tidy(&mut clear);
    Ok(clear)
}

/// Returns the place of a value in a JSON object, by its name.
fn place(text: &str, name: &str) -> Option<Range<usize>> {
    let members = json_text::members(text).ok()?;
    let value = members.get(name)?.get();
    let start = value.as_ptr().addr() - text.as_ptr().addr();
    Some(start..start + value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_found_beside_and_below_values_that_look_like_it() {
        let text = r#"{ "a": "output", "input": {"output": 1, "x\"}": ["output"]},
            "output" : {"b": "}"}, "c": 2 }"#;
        let found = |name| place(text, name).map(|place| &text[place]);
        assert_eq!(found("output"), Some(r#"{"b": "}"}"#));
        assert_eq!(found("a"), Some("\"output\""));
        assert_eq!(found("c"), Some("2"));
        assert_eq!(found("b"), None);
    }
}
