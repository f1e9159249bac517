//! All callers of a plugin call it again until its needs settle, with the same limits and the same messages: a
//! reconcile, the proof of a new version, `render` and `diff`.

use crate::support::prelude::*;

const FILE: &str = "puppet.wasm";

/// A plugin's request, and the expected result.
struct Case {
    name: &'static str,
    spec: Value,
    /// The condition's reason.
    reason: &'static str,
    words: &'static str,
    /// Whether it is known without a configuration.
    is_rendered: bool,
}

fn cases() -> [Case; 8] {
    let need = |more: Value| {
        let mut need = json!({"id": "n", "apiVersion": "v1", "kind": "ConfigMap", "name": "c"});
        need.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        need
    };
    let refused = |name, needs: &[Value], words| Case {
        name,
        spec: json!({"response": {"needs": needs}}),
        reason: "NeedRefused",
        words,
        is_rendered: true,
    };
    [
        Case {
            spec: json!({"response": {"needs": [need(json!({"id": "n$n"}))]}, "many": {"needs": 33}}),
            ..refused("many", &[], "the plugin has 33 needs; the limit is 32")
        },
        refused(
            "endless",
            &[need(json!({"id": "$another"}))],
            "the needs did not settle: the plugin asked for different objects",
        ),
        refused(
            "twice",
            &[need(json!({})), need(json!({"name": "d"}))],
            "two needs have the id \"n\"",
        ),
        refused(
            "name",
            &[need(json!({"name": "no/name"}))],
            "\"no/name\" cannot be a name",
        ),
        Case {
            is_rendered: false,
            ..refused(
                "kind",
                &[need(json!({"kind": "Secret"}))],
                "may not read the kind v1/Secret",
            )
        },
        refused(
            "selector",
            &[need(json!({"name": null, "labelSelector": "a of (b)"}))],
            "is not a label selector",
        ),
        Case {
            is_rendered: false,
            ..refused(
                "namespace",
                &[need(json!({"namespace": "kube-system"}))],
                "the namespace \"kube-system\" may not be read",
            )
        },
        Case {
            spec: json!({"response": {"needs": [need(json!({"name": null, "labelSelector": "size=large"}))]}}),
            reason: "PluginRequestTooLarge",
            is_rendered: false,
            ..refused(
                "large",
                &[],
                "larger than 1 MiB: 0 children and 2 objects that it asked to read are too much",
            )
        },
    ]
}

fn render(scenario: &Scenario, spec: &Value) -> String {
    let puppet = json!({
        "apiVersion": "test.operator-host.dev/v1", "kind": "Puppet", "metadata": {"name": "p"}, "spec": spec,
    });
    let resource = scenario.file("p.yaml", puppet.to_string());
    let mut command = program(&["render", "--plugin"]);
    command
        .arg(plugin("puppet"))
        .arg("-f")
        .arg(resource)
        .call()
        .expect(1)
        .err
}

#[tokio::test]
async fn needs_that_one_caller_refuses_are_refused_by_all_with_the_same_words() {
    let scenario = Scenario::new("evaluate").await;
    let mut mount = Mount::new(&scenario.folder.path().join("mount"), FILE, &variant(0));
    let more = "reads: [{apiVersion: v1, kind: ConfigMap}]\nlimits: {request: 1Mi}";
    let config = scenario.config_in(&mount.path, &controller(FILE, more));
    let running = scenario.start_with(&config, &[]);
    running.until_log("controller started").await;
    for name in ["c-1", "c-2"] {
        let large = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"size": "large"}},
            "data": {"text": "x".repeat(700_000)},
        });
        scenario.apply(&large.to_string()).await;
    }

    let mut messages = Vec::new();
    for case in cases() {
        let Case { name, spec, .. } = &case;
        scenario.puppet(name, spec.clone()).await;
        let message = scenario
            .until_stalled(name, &format!("{}: {}", case.reason, case.words))
            .await;
        if case.is_rendered {
            assert_contains(&render(&scenario, spec), &format!("Puppet p: {message}\n"));
        }
        messages.push((case, message));
    }
    let text = scenario.program(&["diff", "--config"]).arg(&config).ends(2);
    for (case, message) in &messages {
        let line = format!("Puppet {}/{}: {message}\n", scenario.namespace, case.name);
        assert_contains(&text, &line);
    }

    // The same for a version that is to take over.
    for (case, _) in &messages {
        scenario
            .ready_with(case.name, json!({"variants": {"1": case.spec}}))
            .await;
    }
    mount.put(FILE, &variant(1));
    for (case, message) in &messages {
        let says = format!("PluginHeldBack=True Fails: {message}");
        scenario.until_told(case.name, &says).await;
    }
}
