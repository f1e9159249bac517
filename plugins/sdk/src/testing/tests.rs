use super::*;
use crate::prelude::*;

const PLUGIN: Plugin<Value, Value> = Plugin::new("example.com/v1", "Shop", reconcile)
    .cleanup(cleanup)
    .makes(&[DEPLOYMENT])
    .reads(&[CONFIG_MAP, SECRET]);

fn needs() -> [Need; 2] {
    [
        Need::object("settings", CONFIG_MAP, "settings"),
        Need::selected("keys", SECRET, "app=shop,tier=front"),
    ]
}

fn reconcile(request: &Request<Value, Value>) -> Result<Response<Value>, Failure> {
    let [settings, keys] = needs();
    let (Some(found), Some(selected)) = (request.answer(&settings), request.answer(&keys)) else {
        return Ok(Response::needs_first([settings, keys]));
    };
    let names = |objects: &[Object]| {
        objects
            .iter()
            .map(|object| object.name().to_owned())
            .collect::<Vec<_>>()
    };
    Ok(
        Response::new(json!({ "settings": names(found), "keys": names(selected) }))
            .condition(Condition::ready(false, "Waiting", "for the pods"))
            .requeue_after(Duration::from_secs(30))
            .need(settings)
            .need(keys),
    )
}

fn cleanup(_: &Request<Value, Value>) -> Result<CleanupResponse<Value>, Failure> {
    Ok(CleanupResponse::not_yet()
        .condition(Condition::new("BackedUp", false, "Running", "the backup runs"))
        .requeue_after(Duration::from_millis(5)))
}

const SAMPLE: &str = "
metadata: {name: shop}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: others}}
---
{apiVersion: v1, kind: Secret, metadata: {name: a, labels: {app: shop, tier: front, more: x}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: b, labels: {app: shop}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: c, namespace: elsewhere, labels: {app: shop, tier: front}}}
";

#[test]
fn the_further_documents_of_a_sample_answer_needs() {
    let outcome = Case::new(SAMPLE).run(&PLUGIN).unwrap();
    assert_eq!(outcome.status, json!({ "settings": ["settings"], "keys": ["a"] }));
    // Without them the test sees the needs, and answers them itself.
    let alone = Case::new("metadata: {name: shop}").run(&PLUGIN).unwrap();
    assert_eq!((alone.needs.len(), alone.status), (2, Value::Null));
}

#[test]
fn an_outcome_shows_its_conditions_and_when_it_wants_the_next_call() {
    let outcome = Case::new(SAMPLE).run(&PLUGIN).unwrap();
    assert_eq!(outcome.condition("Ready").reason, "Waiting");
    assert_eq!(outcome.requeue_after, Some(Duration::from_secs(30)));
    let cleanup = Case::new(SAMPLE).clean_up(&PLUGIN).unwrap();
    assert_eq!(cleanup.condition("BackedUp").message, "the backup runs");
    assert_eq!(cleanup.requeue_after, Some(Duration::from_millis(5)));
}

#[test]
#[should_panic(expected = "there is no condition Synced among")]
fn a_condition_that_a_test_asks_for_and_is_missing_is_named() {
    let _ = Case::new(SAMPLE).run(&PLUGIN).unwrap().condition("Synced");
}
