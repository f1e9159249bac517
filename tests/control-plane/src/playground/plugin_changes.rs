//! Reports plugin changes from the host's log in readable form.

use serde_json::Value;

use crate::screen::{Mood, Screen};

/// Shows a line of the log if it is about a plugin that took over or was held back. Returns whether it was.
pub(crate) fn show(line: &str, screen: &Screen) -> bool {
    let Some((mood, name, text, diff)) = read(line) else {
        return false;
    };
    screen.object(false, &name, &text, mood);
    for line in diff.lines() {
        let mood = match line.as_bytes().first() {
            Some(b'-') => Mood::Bad,
            Some(b'+') => Mood::Good,
            _ => Mood::Faint,
        };
        screen.detail(line, mood);
    }
    true
}

fn read(line: &str) -> Option<(Mood, String, String, String)> {
    // Most lines are about something else.
    if !line.contains("plugin loaded") && !line.contains("plugin held back") {
        return None;
    }
    let line: Value = serde_json::from_str(line).ok()?;
    let text = |field: &str| line[field].as_str().unwrap_or_default();
    let name = format!("plugin {}", text("controller"));
    let digest = text("digest").trim_start_matches("sha256:");
    let digest = &digest[..digest.len().min(12)];
    let message = text("message");
    if let Some(why) = message.strip_prefix("plugin held back: ") {
        return Some((
            Mood::Bad,
            name,
            format!("held back: {why}"),
            text("diff").to_owned(),
        ));
    }
    // The first version of each plugin is not reported.
    line["before"].as_str()?;
    let took = line["reload_ms"].as_u64().map(|took| format!(" after {took} ms"));
    let (version, because) = (text("version"), text("because"));
    let state = format!(
        "version {version} ({digest}) is live{}; {because}",
        took.unwrap_or_default()
    );
    (message == "plugin loaded").then_some((Mood::Good, name, state, String::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_takes_over_and_one_that_does_not_are_reported() {
        let line = r#"{"level":"INFO","message":"plugin loaded","controller":"echo","version":"0.1.0",
            "digest":"sha256:0123456789abcdef","before":"sha256:00","reload_ms":180,"because":"proved: 1 object"}"#;
        let (mood, name, text, _) = read(line).unwrap();
        assert_eq!((mood, name.as_str()), (Mood::Good, "plugin echo"));
        assert_eq!(
            text,
            "version 0.1.0 (0123456789ab) is live after 180 ms; proved: 1 object"
        );
        let line = r#"{"level":"WARN","message":"plugin held back: it fails on 1 object","controller":"echo","diff":"-a\n+b"}"#;
        let (mood, _, text, diff) = read(line).unwrap();
        assert_eq!(
            (mood, text.as_str(), diff.as_str()),
            (Mood::Bad, "held back: it fails on 1 object", "-a\n+b")
        );
        let first = r#"{"message":"plugin loaded","controller":"echo"}"#;
        assert!(read(first).is_none() && read("plugin loaded").is_none());
    }
}
