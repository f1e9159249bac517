//! Plugins that violate a rule during a call, in both binary forms: existing children stay unchanged, and the
//! resource's status contains the reason.

use std::collections::BTreeMap;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::samples::echo;
use crate::support::puppet::{CONFIG_MAP, FORMS, PUPPET, assert_contains, config_map, controller, is_true};
use crate::support::{Scenario, condition};

struct Case {
    how: &'static str,
    reason: &'static str,
    /// The required parts of the message, including advice where it is not obvious.
    words: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        how: "trap",
        reason: "PluginTrapped",
        words: &["the plugin stopped", "unreachable"],
    },
    Case {
        how: "panic",
        reason: "PluginTrapped",
        words: &["the puppet was told to panic"],
    },
    Case {
        how: "loop",
        reason: "PluginTimedOut",
        words: &["within 300ms", "limits.deadline"],
    },
    Case {
        how: "memory",
        reason: "PluginOutOfMemory",
        words: &["the limit is 16 MiB", "limits.memory"],
    },
    Case {
        how: "recursion",
        reason: "PluginTrapped",
        words: &["the plugin stopped"],
    },
    Case {
        how: "exit",
        reason: "PluginTrapped",
        words: &["the puppet was told to leave", "exited with code"],
    },
    Case {
        how: "file",
        reason: "PluginTrapped",
        words: &["a file: Err("],
    },
    Case {
        how: "socket",
        reason: "PluginTrapped",
        words: &["a socket: Err("],
    },
    Case {
        how: "flood",
        reason: "PluginAnswerTooLarge",
        words: &["more than 0.3 MiB", "limits.response"],
    },
    Case {
        how: "not-utf8",
        reason: "PluginAnswerInvalid",
        words: &["not UTF-8"],
    },
    Case {
        how: "not-json",
        reason: "PluginAnswerInvalid",
        words: &["line 1"],
    },
    Case {
        how: "deep-json",
        reason: "PluginAnswerInvalid",
        words: &["recursion limit exceeded"],
    },
];

fn good(how: &str, text: &str) -> Value {
    json!({"response": {
        "children": [config_map(&format!("{how}-1"), text), config_map(&format!("{how}-2"), text)],
        "status": {"note": "as it was"},
    }})
}

async fn versions(scenario: &Scenario, how: &str) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for name in [format!("{how}-1"), format!("{how}-2")] {
        versions.insert(name.clone(), scenario.version(CONFIG_MAP, &name).await);
    }
    versions
}

/// The resource is valid, becomes bad, and is corrected.
async fn run(scenario: &Scenario, case: &Case) {
    let how = case.how;
    scenario.puppet(how, good(how, "before")).await;
    scenario.until_ready(how).await;
    let before = versions(scenario, how).await;

    scenario
        .puppet(how, json!({"misbehave": how, "response": {}}))
        .await;
    let message = scenario.until_stalled(how, case.reason).await;
    assert_contains(&message, case.words);
    let note = scenario.until_event(how, "Warning", case.reason).await;
    assert_contains(&note, case.words);
    let puppet = scenario.get(PUPPET, how).await.unwrap();
    assert_eq!(puppet.data["status"]["note"], "as it was", "{how}");
    assert_eq!(condition(&puppet, "Ready").unwrap()["status"], "False", "{how}");
    assert_eq!(versions(scenario, how).await, before, "{how}");

    scenario.puppet(how, good(how, "after")).await;
    let puppet = scenario.until_ready(how).await;
    assert!(!is_true(&puppet, "Stalled"), "{how}");
    let child = scenario.get(CONFIG_MAP, &format!("{how}-1")).await.unwrap();
    assert_eq!(child.data["data"]["text"], "after", "{how}");
}

async fn a_form_that_misbehaves(form: &str, file: &str) {
    let scenario = Scenario::new(&format!("bad-calls-{form}")).await;
    let limits = "limits: {deadline: 300ms, memory: 16Mi, response: 256Ki}";
    let controllers = format!("{}{}", controller(file, limits), echo::CONTROLLER);
    let mut host = scenario.start(&controllers);
    // Stays bad while the others run, so that it could block them.
    scenario.puppet("bad", json!({"misbehave": "loop"})).await;
    let others = async {
        scenario.until_stalled("bad", "PluginTimedOut").await;
        scenario.apply(&echo::echo(1)).await;
        scenario.until("v1/Pod", "e-pod-0", "there", |_| true).await;
        scenario
            .patch(echo::ECHO, "e", json!({"spec": {"replicas": 2}}))
            .await;
        scenario.until("v1/Pod", "e-pod-1", "there", |_| true).await;
    };
    let cases = join_all(CASES.iter().map(|case| run(&scenario, case)));
    futures::future::join(others, cases).await;
    assert!(host.is_alive());
    assert!(!host.log().contains("internal error: "), "{}", host.log());
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_component_that_misbehaves_changes_nothing_and_the_reason_is_reported() {
    let (form, file) = FORMS[0];
    a_form_that_misbehaves(form, file).await;
}

#[tokio::test]
async fn a_command_that_misbehaves_changes_nothing_and_the_reason_is_reported() {
    let (form, file) = FORMS[1];
    a_form_that_misbehaves(form, file).await;
}

#[tokio::test]
async fn a_plugin_that_floods_the_log_answers_and_the_log_is_cut() {
    for (form, file) in FORMS {
        let scenario = Scenario::new(&format!("log-flood-{form}")).await;
        let host = scenario.start(&controller(file, ""));
        let mut spec = good("flood", "a");
        spec["misbehave"] = "log-flood".into();
        scenario.puppet("flood", spec).await;
        scenario.until_ready("flood").await;
        // Two calls: the second sees the children that the first created.
        let lines = host.log().matches("flood ").count();
        assert!((100..=1000).contains(&lines), "{lines} lines");
    }
}
