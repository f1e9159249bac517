use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::*;
use crate::reconcile::needs::{Rights, Wanted};
use operator_host_contract::{Description, Kind, Related};
use operator_host_core::object::Selector;

/// Objects by name; the one called `locked` cannot be read.
struct Shelf(Description);

impl Shelf {
    fn new() -> Self {
        let kind = |kind: &str| json!({"apiVersion": "v1", "kind": kind});
        let description = json!({
            "contract": "1.0.0", "name": "shop", "version": "1", "parent": kind("Shop"), "makes": [], "reads": [kind("ConfigMap")],
        });
        Self(serde_json::from_value(description).unwrap())
    }
}

impl RelatedObjects for Shelf {
    fn rights(&self) -> Rights<'_> {
        Rights::Announced(&self.0)
    }

    fn is_namespaced(&self, _: &Kind) -> bool {
        true
    }

    async fn namespaces(&self, _: &Wanted<'_>, _: &Selector) -> Result<BTreeSet<String>, NeedError> {
        Ok(BTreeSet::new())
    }

    async fn read(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
        match wanted.need.name.as_deref() {
            Some("locked") => Err(wanted.unreadable("it is locked")),
            name => Ok(vec![object(name.unwrap_or_default())]),
        }
    }
}

fn object(name: &str) -> Arc<DynamicObject> {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "x"}});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn need(name: &str) -> Need {
    Need {
        id: name.to_owned(),
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        namespace: None,
        name: Some(name.to_owned()),
        namespace_selector: None,
        names: Vec::new(),
        label_selector: None,
    }
}

/// The result, the related objects of each call, and the remembered needs, by ids.
type Evaluated = (Result<Response, String>, Vec<Vec<String>>, Vec<Vec<String>>);

/// Evaluates with a plugin that answers each call, by its number, with these needs.
async fn evaluate_with(known: &[&str], plugin: impl Fn(usize) -> Result<Vec<Need>, CallError>) -> Evaluated {
    let (calls, remembered) = (Mutex::new(Vec::new()), RefCell::new(Vec::new()));
    let parent = object("parent");
    let subject = Request::about(parent, Vec::new(), Timestamp::UNIX_EPOCH);
    let call = |request: Request| {
        let shown = |related: &Related| {
            assert_eq!(related.objects[0].name_any(), related.id);
            related.id.clone()
        };
        let mut calls = calls.lock().unwrap();
        let outcome = plugin(calls.len());
        calls.push(request.related.iter().map(shown).collect::<Vec<_>>());
        let response = |needs| Response {
            needs,
            ..Response::default()
        };
        std::future::ready((outcome.map(response), None))
    };
    let remember = |needs: &[Need]| {
        let ids = needs.iter().map(|need| need.id.clone()).collect::<Vec<_>>();
        remembered.borrow_mut().push(ids);
    };
    let known = known.iter().map(|name| need(name)).collect();
    let outcome = evaluate(&subject, &Shelf::new(), known, call, remember).await;
    let outcome = outcome
        .map(|(answer, _)| answer)
        .map_err(|error| error.to_string());
    (outcome, calls.into_inner().unwrap(), remembered.into_inner())
}

/// Returns an answer with these needs.
fn needs(names: &[&str]) -> Result<Vec<Need>, CallError> {
    Ok(names.iter().map(|name| need(name)).collect())
}

#[tokio::test]
async fn the_answer_counts_whose_request_held_all_that_it_needs() {
    let (outcome, calls, remembered) =
        evaluate_with(&[], |call| needs([&["a"][..], &["a", "b"], &["b"]][call])).await;
    assert_eq!(outcome.unwrap().needs, [need("b")]);
    assert_eq!(calls, [&[][..], &["a"], &["a", "b"]]);
    assert_eq!(remembered, [&["a"][..], &["a", "b"], &["b"]]);

    // Known needs save a call.
    let (outcome, calls, _) = evaluate_with(&["a", "b"], |_| needs(&["b"])).await;
    assert_eq!(
        (outcome.is_ok(), calls),
        (true, vec![vec!["a".into(), "b".into()]])
    );
}

#[tokio::test]
async fn known_needs_that_cannot_be_read_are_forgotten_and_new_ones_are_an_error() {
    let (outcome, calls, remembered) = evaluate_with(&["a", "locked"], |_| needs(&["a"])).await;
    assert_eq!(outcome.unwrap().needs, [need("a")]);
    assert_eq!(calls, [&[][..], &["a"]]);
    assert_eq!(remembered, [&[][..], &["a"], &["a"]]);

    let (outcome, calls, remembered) = evaluate_with(&[], |_| needs(&["locked"])).await;
    assert_eq!(outcome.unwrap_err(), "need \"locked\": it is locked");
    assert_eq!(calls.len(), 1);
    assert_eq!(
        remembered,
        [&["locked"][..], &[]],
        "the next evaluation asks again"
    );
}

#[tokio::test]
async fn needs_that_are_too_much_for_a_request_are_forgotten() {
    let full = |call| match call {
        0 => needs(&["a"]),
        _ => Err(CallError::request(1 << 20, 0, 1)),
    };
    let (outcome, _, remembered) = evaluate_with(&[], full).await;
    assert!(outcome.unwrap_err().contains("larger than 1 MiB"));
    assert_eq!(remembered, [&["a"][..], &[]]);
}

#[tokio::test]
async fn needs_that_never_settle_are_an_error_after_the_last_iteration() {
    let endless = |call: usize| needs(&[["a", "b"][call % 2]]);
    let (outcome, calls, _) = evaluate_with(&[], endless).await;
    assert!(
        outcome
            .unwrap_err()
            .starts_with("the needs did not settle: the plugin asked for different objects")
    );
    assert_eq!(calls.len(), MAX_NEED_ROUNDS + 1);
    // The last call in which it may settle.
    let late = |call: usize| needs(&[["a", "b", "c", "d", "d"][call]]);
    assert!(evaluate_with(&[], late).await.0.is_ok());
}

#[tokio::test]
async fn needs_are_checked_also_in_an_answer_that_would_count() {
    let (outcome, ..) = evaluate_with(&["a"], |_| needs(&["a", "a"])).await;
    let expected = "two needs have the id \"a\"; each must have its own";
    assert_eq!(outcome.unwrap_err(), expected);
}
