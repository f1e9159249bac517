//! The threat model names tests that demonstrate its claims; they must exist.

use crate::support::prelude::*;
use std::fs;

/// Returns the texts between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let text = fs::read_to_string(root().join("host/docs/threat-model.md")).unwrap();
    let mut tests = 0;
    for (file, test) in quoted(&text).filter_map(|name| name.split_once(".rs: ")) {
        let folder = if file.starts_with("host/") { "" } else { "tests" };
        let source = fs::read_to_string(root().join(folder).join(format!("{file}.rs")))
            .unwrap_or_else(|error| panic!("{file}.rs: {error}"));
        assert!(
            source.contains(&format!("fn {test}()")),
            "{file}.rs has no test {test}"
        );
        tests += 1;
    }
    assert!(tests > 20, "{tests}");
    for (at, _) in text.match_indices("fuzz target") {
        let cell = text[at..].split('|').next().unwrap_or_default();
        for name in quoted(cell) {
            let corpus = root().join("tests/fuzz/corpora").join(name);
            assert!(corpus.is_dir(), "there is no fuzz target {name}");
        }
    }
}
