//! The rules in CEL of a plugin's definition, for an API server that does not evaluate them itself.

use serde_json::Value;

use super::{NoDecision, unreadable};
use operator_host_contract::Kind;
use operator_host_core::crd::definition;
use operator_host_runtime::Plugin;
use operator_host_schema::cel::{Verdict, validate};
use operator_host_schema::schema;

/// Maximum number of warnings in an answer, and of characters of each: clients show no more of them.
const WARNINGS: usize = 5;
const WARNING: usize = 240;

/// Applies the rules of the live plugin's definition to an object, and to the one that it replaces. Returns what is held
/// meanwhile: an evaluation goes on when the caller no longer waits.
///
/// # Errors
/// When one of them is no JSON that can be read, or the host is stopping.
pub(super) async fn verdict<Held: Send + 'static>(
    plugin: &Plugin,
    object: &str,
    old: Option<&str>,
    held: Held,
) -> Result<(Verdict, Held), NoDecision> {
    let crd = plugin.description().crd.as_ref();
    if !crd.is_some_and(|crd| schema::may_have_rules(crd.text())) {
        return Ok((Verdict::default(), held));
    }
    let (object, old) = (object.to_owned(), old.map(str::to_owned));
    let plugin = plugin.clone();
    let evaluate = move || {
        let crd = plugin.description().definition().unwrap_or_default();
        if !definition::versions(&crd).any(schema::has_rules) {
            return Ok((Verdict::default(), held));
        }
        let object: Value = serde_json::from_str(&object)?;
        let old: Option<Value> = old.map(|old| serde_json::from_str(&old)).transpose()?;
        let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let kind = Kind {
            api_version: text("apiVersion"),
            kind: text("kind"),
        };
        let schema = definition::schema(&crd, &kind);
        let verdict = schema.map(|schema| validate(schema, &object, old.as_ref()));
        Ok((verdict.unwrap_or_default(), held))
    };
    // Rules come from plugins, and may take as long as their limit allows.
    let verdict: Result<_, serde_json::Error> = tokio::task::spawn_blocking(evaluate)
        .await
        .map_err(|_| NoDecision::new("the host is stopping"))?;
    verdict.map_err(|error| unreadable(&error))
}

/// Returns what the user should know of rules that nobody evaluates.
pub(super) fn warnings(left: Vec<String>) -> Vec<String> {
    let left = left.into_iter().take(WARNINGS);
    left.map(|rule| operator_host_core::object::shorten(&rule, WARNING))
        .collect()
}
