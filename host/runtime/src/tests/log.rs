//! A guest's output is written to the host's log.

use std::sync::Once;

use plugin_fixtures::{FORMS, Form, cases};
use tracing::Instrument as _;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;

/// Has a subscriber for all threads. Without one, a place in the code that another test reaches first, on a thread without a
/// subscriber, can stay switched off for every thread.
fn keep_switched_on() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let all = tracing_subscriber::registry().with(LevelFilter::INFO);
        tracing::subscriber::set_global_default(all).expect("the only one");
    });
}

/// Returns the log of a call, and the message of its error.
async fn log_and_error(form: Form, case: &str) -> (String, String) {
    keep_switched_on();
    let plugin = plugin(form, case, Limits::default()).await;
    let kept = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(kept.reopen().unwrap())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let span = tracing::info_span!("reconcile", parent = "Fixture/default/one");
    let call = reconcile(&plugin).instrument(span).await;
    drop(guard);
    let log = std::fs::read_to_string(kept.path()).unwrap();
    let error = call.outcome.err().map(|error| error.to_string());
    (log, error.unwrap_or_default())
}

async fn log_of(form: Form, case: &str) -> String {
    log_and_error(form, case).await.0
}

fn lines(log: &str) -> Vec<serde_json::Value> {
    let parse = |line| serde_json::from_str(line).unwrap();
    log.lines()
        .map(parse)
        .filter(|line: &serde_json::Value| line["target"] == super::super::LOG_TARGET)
        .collect()
}

#[tokio::test]
async fn a_line_comes_with_its_plugin_its_digest_and_the_span_of_the_call() {
    for form in FORMS {
        let log = log_of(form, cases::ANSWER).await;
        let lines = lines(&log);
        assert_eq!(lines.len(), 1, "{form:?}: {log}");
        let line = &lines[0];
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["fields"]["message"], "name");
        assert_eq!(line["fields"]["plugin"], "fixture");
        assert!(
            line["fields"]["digest"].as_str().unwrap().starts_with("sha256:"),
            "{line}"
        );
        // The outermost span: at the level `trace` the WASI implementation adds its own.
        assert_eq!(line["spans"][0]["parent"], "Fixture/default/one", "{line}");
    }
}

#[tokio::test]
async fn a_line_over_the_cap_is_cut_at_the_cap() {
    for form in FORMS {
        let log = log_of(form, cases::LONG_LINE).await;
        let message = lines(&log)[0]["fields"]["message"].as_str().unwrap().len();
        assert_eq!(message, Limits::default().log_line, "{form:?}");
    }
}

#[tokio::test]
async fn advice_about_a_variable_that_a_plugin_does_not_have_is_not_logged() {
    for form in FORMS {
        let log = log_of(form, cases::PANIC).await;
        assert!(!log.contains("RUST_BACKTRACE"), "{form:?}: {log}");
    }
}

/// Regression: it stood in the log as a line of the plugin, and again in the host's line about the failure.
#[tokio::test]
async fn what_the_error_of_a_call_says_is_not_a_line_of_the_log_too() {
    for form in FORMS {
        let (log, error) = log_and_error(form, cases::PANIC).await;
        assert!(error.contains("no image"), "{form:?}: {error}");
        assert!(!log.contains("no image"), "{form:?}: {log}");
    }
}
