//! Label selectors: each that is taken picks what kubectl's grammar says it picks.

use std::collections::BTreeMap;

use kube::core::{DynamicObject, SelectorExt as _};
use operator_host::config::ControllerConfig;
use operator_host::desired::selectors;
use operator_host::plugin::contract::Need;
use operator_host::reconcile::needs::{self, Rights};
use serde_json::json;

use crate::answer;
use crate::draw::Draw;

/// One requirement, as this target means it.
#[derive(Clone, Debug)]
enum Requirement {
    Is(&'static str, &'static str),
    IsNot(&'static str, &'static str),
    In(&'static str, Vec<&'static str>),
    NotIn(&'static str, Vec<&'static str>),
    Exists(&'static str),
    IsMissing(&'static str),
}

const KEYS: [&str; 5] = ["a", "app.kubernetes.io/name", "in", "notin", "a-b_c.D"];
const VALUES: [&str; 5] = ["", "1", "in", "A.b-c_d", "x"];
const BLANKS: [&str; 3] = ["", " ", "  "];

type Labels = BTreeMap<String, String>;

pub(crate) fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let config = answer::config(false);
    if draw.chance(2) {
        any_text(&config, draw);
    } else {
        a_selector(&config, draw);
    }
}

/// What picks something is a selector; asking for it twice gives the same, and never what the policy forbids.
fn any_text(config: &ControllerConfig, mut draw: Draw<'_>) {
    let labels = labels(&mut draw);
    let namespace = draw.pick(&[None, Some("default"), Some("spare"), Some("other")]);
    let kind = draw.pick(&["ConfigMap", "Secret"]);
    let Ok(text) = std::str::from_utf8(draw.rest()) else {
        return;
    };
    let mut need = need(text);
    need.namespace = namespace.map(str::to_owned);
    kind.clone_into(&mut need.kind);
    let parent = answer::parent(Some("default"));
    match needs::check(Rights::Configured(config), true, &parent, &need) {
        Ok(wanted) => {
            assert_eq!(kind, "ConfigMap", "a kind that may not be read");
            assert!(
                matches!(wanted.namespace.as_deref(), Some("default" | "spare")),
                "{:?}",
                wanted.namespace
            );
            let _ = wanted.selector.matches(&labels);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A selector that is written out is read as it was meant.
fn a_selector(config: &ControllerConfig, mut draw: Draw<'_>) {
    let labels = labels(&mut draw);
    let mut text = String::new();
    let mut picks = true;
    for number in 0..=draw.below(4) {
        if number > 0 {
            text.push(',');
        }
        let requirement = requirement(&mut draw);
        picks &= holds(&requirement, &labels);
        write(&requirement, &mut draw, &mut text);
    }
    let need = need(&text);
    let parent = answer::parent(Some("default"));
    let wanted = needs::check(Rights::Configured(config), true, &parent, &need)
        .unwrap_or_else(|error| panic!("{text:?}: {error}"));
    assert_eq!(wanted.selector.matches(&labels), picks, "{text:?} on {labels:?}");

    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "default", "labels": labels},
    }))
    .expect("an object");
    let kind = answer::kind("v1", "ConfigMap");
    let name = operator_host::object::ObjectName::of(&parent);
    assert_eq!(
        selectors::selects(&need, &name, &kind, &object),
        picks,
        "{text:?}"
    );
}

fn need(selector: &str) -> Need {
    Need {
        id: "n".to_owned(),
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        namespace: None,
        name: None,
        label_selector: Some(selector.to_owned()),
    }
}

fn labels(draw: &mut Draw<'_>) -> Labels {
    (0..draw.below(4))
        .map(|_| (draw.pick(&KEYS).to_owned(), draw.pick(&VALUES).to_owned()))
        .collect()
}

fn requirement(draw: &mut Draw<'_>) -> Requirement {
    let key = draw.pick(&KEYS);
    let mut values = || {
        (0..=draw.below(3))
            .map(|_| draw.pick(&VALUES))
            .collect::<Vec<_>>()
    };
    let values = values();
    match draw.below(6) {
        0 => Requirement::Is(key, values[0]),
        1 => Requirement::IsNot(key, values[0]),
        2 => Requirement::In(key, values),
        3 => Requirement::NotIn(key, values),
        4 => Requirement::Exists(key),
        _ => Requirement::IsMissing(key),
    }
}

/// Source: Kubernetes, "Labels and Selectors": what is negated also holds of an object without the key.
fn holds(requirement: &Requirement, labels: &Labels) -> bool {
    let value = |key: &str| labels.get(key).map(String::as_str);
    match requirement {
        Requirement::Is(key, wanted) => value(key) == Some(*wanted),
        Requirement::IsNot(key, other) => value(key) != Some(*other),
        Requirement::In(key, set) => value(key).is_some_and(|value| set.contains(&value)),
        Requirement::NotIn(key, set) => !value(key).is_some_and(|value| set.contains(&value)),
        Requirement::Exists(key) => value(key).is_some(),
        Requirement::IsMissing(key) => value(key).is_none(),
    }
}

fn write(requirement: &Requirement, draw: &mut Draw<'_>, text: &mut String) {
    let mut blank = || draw.pick(&BLANKS);
    let (before, after) = (blank(), blank());
    text.push_str(before);
    text.push_str(&match requirement {
        Requirement::Is(key, value) if before.is_empty() => format!("{key}{after}={after}{value}"),
        Requirement::Is(key, value) => format!("{key}{after}=={after}{value}"),
        Requirement::IsNot(key, value) => format!("{key}{after}!={after}{value}"),
        Requirement::In(key, set) => format!("{key} {after}in{after}({})", set.join(&format!(",{after}"))),
        Requirement::NotIn(key, set) => format!("{key} {after}notin{after}({})", set.join(",")),
        Requirement::Exists(key) => (*key).to_owned(),
        Requirement::IsMissing(key) => format!("!{after}{key}"),
    });
    text.push_str(after);
}
