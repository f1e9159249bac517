//! The page on troubleshooting explains every reason that the host writes into conditions and Events, and no other.

use crate::support::prelude::*;
use std::collections::BTreeSet;
use std::fs;

use super::release::sources;

/// The code that precedes a reason in the sources, without white space.
const BEFORE: [&str; 30] = [
    "stalled(\"",
    "reconciling(\"",
    "held(\"",
    "(Question::Conversion,\"",
    "(Question::Defaults,\"",
    "HeldBack::new(\"",
    "Reason::new(\"",
    "EventType::Normal,\"",
    "EventType::Warning,\"",
    "warn(parent,\"",
    "reason:\"",
    "EVENT:&str=\"",
    "FIELD_CONTESTED:&str=\"",
    "FIELDS_DROPPED:&str=\"",
    "FIELDS_REFUSED:&str=\"",
    "NO_PLUGIN:&str=\"",
    "WAITING:&str=\"",
    "WATCH_FAILED:&str=\"",
    "NOT_TAKEN:&str=\"",
    "RETRYING:&str=\"",
    "KIND_NOT_LISTED:&str=\"",
    "BACK_OFF:&str=\"",
    "refused(\"",
    "::failed(\"",
    "Refused::new(\"",
    "PLUGIN_REFUSED:&str=\"",
    "FORBIDDEN:&str=\"",
    "UNMATCHED_PIN:&str=\"",
    "STAGE_FAILED:&str=\"",
    "unwrap_or(\"",
];

/// Reports whether a word is in CamelCase.
fn is_reason(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.contains(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
}

fn written() -> BTreeSet<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join("host")).unwrap() {
        let folder = entry.unwrap().path();
        if folder.ends_with("src") {
            sources(&folder, &mut files);
        } else if folder.join("src").is_dir() {
            sources(&folder.join("src"), &mut files);
        }
    }
    let texts = files.iter().map(|file| {
        let text = fs::read_to_string(file).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        product.split_whitespace().collect::<String>()
    });
    let mut reasons = BTreeSet::new();
    for text in texts {
        // The reasons for the classes of failed calls are in one table, and those of errors in another: `=> ("api", "ApplyFailed", …)`.
        let is_table = text.contains("fault(class:Class)");
        let of_errors = text.split("=>(\"").skip(1).filter(|_| is_table);
        let of_errors = of_errors.filter_map(|row| row.split('"').nth(2));
        let of_classes = is_table.then_some("=>\"");
        let others = BEFORE.into_iter().chain(of_classes).flat_map(|before| {
            let rest = text.split(before).skip(1);
            rest.filter_map(|rest| rest.split('"').next())
        });
        let words = of_errors.chain(others).filter(|word| is_reason(word));
        reasons.extend(words.map(str::to_owned));
    }
    reasons
}

#[test]
fn the_page_on_troubleshooting_has_an_entry_for_every_reason_that_the_host_writes() {
    let page = fs::read_to_string(root().join("host/docs/troubleshooting.md")).unwrap();
    let entries: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'))
        .collect();
    let explained: BTreeSet<_> = entries.iter().map(|&entry| entry.to_owned()).collect();
    assert_eq!(
        entries.len(),
        explained.len(),
        "an entry is there twice: {entries:?}"
    );
    let written = written();
    assert!(written.len() > 30, "{written:?}");
    let missing: Vec<_> = written.difference(&explained).collect();
    assert!(
        missing.is_empty(),
        "host/docs/troubleshooting.md has no entry for {missing:?}"
    );
    let stale: Vec<_> = explained.difference(&written).collect();
    assert!(
        stale.is_empty(),
        "host/docs/troubleshooting.md explains {stale:?}, which no source writes"
    );
}
