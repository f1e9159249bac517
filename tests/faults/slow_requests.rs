//! An admission webhook that never answers holds the requests that it concerns, and nothing else.

use futures::future::join_all;
use k8s_openapi::ByteString;

use crate::support::prelude::*;
use crate::webhook::reviewer::serve;
use crate::webhook::{Authority, label_namespace};

const WEBHOOK: &str = "admissionregistration.k8s.io/v1/ValidatingWebhookConfiguration";

/// How many parents have a child behind the webhook: more than a controller has workers, and more than it lets wait.
const SLOW: usize = 60;

/// How many parents are measured. The median counts.
const OTHERS: usize = 9;

/// Installs a webhook that never answers, for these resources in the namespace of the scenario with the label `slow`.
async fn hold(scenario: &Scenario, operations: &[&str], group: &str, resource: &str) {
    let authority = Authority::new(scenario, "ca");
    let url = serve(&authority, |_review| std::future::pending()).await;
    install(scenario, &authority, &url, operations, group, resource).await;
}

async fn install(
    scenario: &Scenario,
    authority: &Authority,
    url: &str,
    operations: &[&str],
    group: &str,
    resource: &str,
) {
    label_namespace(scenario).await;
    let authority = ByteString(std::fs::read(authority.0.join("ca.crt")).unwrap());
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": scenario.namespace },
        "webhooks": [{
            "name": "slow.operator-host.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "url": url, "caBundle": authority }, "timeoutSeconds": 30,
            "rules": [{ "apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": [resource] }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": scenario.namespace } },
            "objectSelector": { "matchLabels": { "slow": "yes" } },
        }],
    });
    scenario.apply(&webhook.to_string()).await;
}

/// Waits until the webhook holds a ConfigMap that a user creates, too.
async fn until_held(scenario: &Scenario) {
    let object: DynamicObject = serde_json::from_value(slow("probe")).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until_true("the webhook takes effect", async || {
        let api = scenario.api(CONFIG_MAP);
        let create = api.create(&dry_run, &object);
        let held = tokio::time::timeout(Duration::from_secs(2), create).await;
        held.is_err()
    })
    .await;
}

fn slow(name: &str) -> Value {
    let mut child = config_map(name, "a");
    child["metadata"]["labels"] = json!({ "slow": "yes" });
    child
}

async fn want_slow(scenario: &Scenario) {
    for number in 0..SLOW {
        let name = format!("slow-{number}");
        scenario.wants(&name, &[slow(&name)]).await;
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Returns two median times of this controller: from a new parent to its child, and from the deletion of a child to the next one.
/// All are measured at the same time, so that one that waits for all workers does not spare the others the wait.
async fn times(scenario: &Scenario, round: &str) -> [Duration; 2] {
    let one = |number: usize| async move {
        let name = format!("{round}-{number}");
        let start = Instant::now();
        scenario.wants(&name, &[config_map(&name, "a")]).await;
        let child = scenario.until_there(CONFIG_MAP, &name).await;
        let new = start.elapsed();
        let start = Instant::now();
        scenario.remove(CONFIG_MAP, &name).await;
        let is_new = |map: &DynamicObject| map.metadata.uid != child.metadata.uid;
        scenario.until(CONFIG_MAP, &name, "there again", is_new).await;
        (new, start.elapsed())
    };
    let (new, repaired) = join_all((0..OTHERS).map(one)).await.into_iter().unzip();
    [median(new), median(repaired)]
}

/// Twice the usual, and what a shared machine adds now and then.
fn assert_usual(what: &str, times: [Duration; 2], usual: [Duration; 2]) {
    for (time, usual) in times.into_iter().zip(usual) {
        assert!(
            time <= usual * 2 + Duration::from_millis(700),
            "{what}: {times:?}, usually {usual:?}"
        );
    }
}

/// Regression: each such child took one of eight workers for 30 s at a time, so all other parents waited for minutes.
#[tokio::test]
async fn children_behind_a_webhook_that_never_answers_delay_no_other_parent() {
    let scenario = Scenario::new("slow-applies").await;
    hold(&scenario, &["CREATE", "UPDATE"], "", "configmaps").await;
    until_held(&scenario).await;
    let host = scenario.start(&controller("puppet.wasm", "backoff: {initial: 1s, max: 5m}"));
    host.until_log("controller started").await;
    let usual_times = times(&scenario, "before").await;

    want_slow(&scenario).await;
    // Of its children, only the one behind the webhook waits.
    scenario.wants("both", &[slow("a"), config_map("b", "b")]).await;
    assert_usual("new", times(&scenario, "after").await, usual_times);
    let says = "Reconciling=True ApplyFailed: ConfigMap slow-applies/a … although it answers reads … admission webhook";
    scenario.until_told("both", says).await;
    scenario.until_text("b", "b").await;
    scenario.remove(CONFIG_MAP, "b").await;
    scenario.until_text("b", "b").await;
    assert_usual("in the back-off", times(&scenario, "later").await, usual_times);

    scenario.delete(WEBHOOK, "slow-applies").await;
    scenario.until_ready("both").await;
    scenario.until_ready("slow-59").await;
}

#[tokio::test]
async fn children_behind_a_webhook_that_takes_a_moment_are_all_applied_at_the_first_try() {
    let scenario = Scenario::new("slow-answers").await;
    let authority = Authority::new(&scenario, "ca");
    let url = serve(&authority, |_review| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        json!({ "allowed": true })
    });
    let url = url.await;
    install(&scenario, &authority, &url, &["CREATE"], "", "configmaps").await;
    let host = scenario.start(&controller("puppet.wasm", "backoff: {initial: 1s, max: 5m}"));
    host.until_log("controller started").await;
    want_slow(&scenario).await;
    for number in 0..SLOW {
        scenario.until_ready(&format!("slow-{number}")).await;
    }
    let log = host.log();
    assert!(!log.contains("too many other writes"), "{}", scenario.log_tail());
    scenario.delete(WEBHOOK, "slow-answers").await;
}

/// Regression: with an API server that was slow for all, each reconcile gave up its turn to the next one, until 64 writes were on
/// their way, each with a connection of its own, and all took longer.
#[tokio::test]
async fn an_api_server_that_is_slow_for_all_gets_no_more_writes_at_a_time() {
    const DELAY: Duration = Duration::from_millis(300);
    const WORKERS: usize = 8;
    let scenario = Scenario::new("slow-for-all").await;
    let proxy = Proxy::start(scenario.kubeconfig()).await.expect("a proxy");
    let scenario = scenario.with_kubeconfig(proxy.kubeconfig());
    proxy.set_mode_of("/configmaps", Mode::Delay(DELAY));
    for number in 0..SLOW {
        let name = format!("p-{number}");
        scenario.wants(&name, &[config_map(&name, "a")]).await;
    }
    let _host = scenario.start(&controller("puppet.wasm", &format!("concurrency: {WORKERS}")));
    for number in 0..SLOW {
        scenario.until_ready(&format!("p-{number}")).await;
    }
    let mut seen = proxy.take_seen();
    seen.retain(|seen| seen.is_write() && seen.uri.contains("/configmaps"));
    let mut at: Vec<_> = seen.into_iter().map(|seen| seen.at).collect();
    at.sort();
    let is_within = |first: Instant, at: Instant| at >= first && at - first < DELAY;
    let within = |first: &Instant| at.iter().filter(|at| is_within(*first, **at)).count();
    let mut at_a_time: Vec<_> = at.iter().map(within).collect();
    at_a_time.sort_unstable();
    // A machine that stands still for a second makes some of them slow.
    let usual = at_a_time[at_a_time.len() / 2];
    assert!((2..=WORKERS + 2).contains(&usual), "{at_a_time:?} at a time");
}

#[tokio::test]
async fn deletions_and_statuses_behind_a_webhook_that_never_answers_delay_no_other_parent() {
    for (namespace, operations, group, resource) in [
        ("slow-deletes", &["DELETE"], "", "configmaps"),
        (
            "slow-statuses",
            &["UPDATE"],
            "test.operator-host.dev",
            "puppets/status",
        ),
    ] {
        let scenario = Scenario::new(namespace).await;
        let host = scenario.start(&controller("puppet.wasm", "backoff: {initial: 1s, max: 5m}"));
        host.until_log("controller started").await;
        let usual_times = times(&scenario, "before").await;
        let name = |number: usize| format!("slow-{number}");
        for number in 0..24 {
            let name = name(number);
            scenario.wants(&name, &[slow(&name)]).await;
            let label = json!({ "metadata": { "labels": { "slow": "yes" } } });
            scenario.patch(PUPPET, &name, label).await;
        }
        for number in 0..24 {
            scenario.until_ready(&name(number)).await;
        }
        hold(&scenario, operations, group, resource).await;
        // It concerns no creation, so a change shows that it takes effect.
        let probe = async || {
            let (maps, puppets) = (scenario.api(CONFIG_MAP), scenario.api(PUPPET));
            let patch = Patch::Merge(json!({ "status": { "note": "probe" } }));
            let (params, delete) = (PatchParams::default(), DeleteParams::default().dry_run());
            let probe = async {
                match group {
                    "" => drop(maps.delete("slow-0", &delete).await),
                    _ => drop(puppets.patch_status("slow-0", &params, &patch).await),
                }
            };
            let held = tokio::time::timeout(Duration::from_secs(2), probe).await;
            held.is_err()
        };
        until_true("the webhook takes effect", probe).await;
        let spec = json!({ "response": { "children": [], "status": { "note": "changed" } } });
        for number in 0..24 {
            scenario.puppet(&name(number), spec.clone()).await;
        }
        assert_usual(namespace, times(&scenario, "after").await, usual_times);
        scenario.delete(WEBHOOK, namespace).await;
        scenario.until_gone(CONFIG_MAP, &name(23)).await;
        let is_changed = |puppet: &DynamicObject| puppet.data["status"]["note"] == "changed";
        scenario.until(PUPPET, &name(23), "changed", is_changed).await;
    }
}
