//! The configuration changes while the host runs.

use crate::samples::echo::{CONTROLLER as ECHO_CONTROLLER, ECHO, echo};
use crate::support::prelude::*;
use crate::telemetry::get;

const POD: &str = "v1/Pod";

/// Returns how often a controller has started.
fn starts(host: &Host, name: &str) -> usize {
    let log = host.log();
    let of = |line: &&str| line.contains("controller started") && line.contains(&format!("\"{name}\""));
    log.lines().filter(of).count()
}

/// Checks that a controller works: a new puppet becomes ready.
async fn puppet_works(scenario: &Scenario, name: &str) {
    scenario.ready_wants(name, &[config_map(name, "text")]).await;
}

#[tokio::test]
async fn a_controller_is_added_changed_and_removed_without_a_restart() {
    let scenario = Scenario::new("config-changes").await;
    let puppet = controller("puppet.wasm", "");
    let host = scenario.start(&puppet);
    scenario.apply(&echo(1)).await;
    puppet_works(&scenario, "before").await;
    assert!(scenario.names(POD).await.is_empty());

    scenario.config(&format!("{puppet}{ECHO_CONTROLLER}"));
    scenario.until_echo("e").await;
    host.until_log("configuration applied … \"added\":\"echo\"").await;

    // One of the controllers must not create the kind any more.
    let without = ECHO_CONTROLLER.replace("kind: Pod}", "kind: Service}");
    assert_ne!(without, ECHO_CONTROLLER);
    scenario.config(&format!("{puppet}{without}"));
    host.until_log("configuration applied … \"changed\":\"echo\"")
        .await;
    scenario.apply(&echo(2)).await;
    scenario
        .until_condition(ECHO, "e", "Stalled=True ChildRefused: Pod")
        .await;
    assert_eq!(
        host.log().matches("plugin loaded").count(),
        2,
        "what is live stays when something else of its controller changes:\n{}",
        host.log()
    );
    scenario.config(&format!("{puppet}{ECHO_CONTROLLER}"));
    scenario.until_there(POD, "e-pod-1").await;

    scenario.config(&puppet);
    host.until_log("configuration applied … \"removed\":\"echo\"")
        .await;
    let (_, ready) = get(&host, "/readyz?verbose").await;
    assert!(!ready.contains("echo"), "{ready}");
    let (_, metrics) = get(&host, "/metrics").await;
    let info = metrics
        .lines()
        .filter(|line| line.starts_with("operator_host_plugin_info"));
    assert_eq!(info.filter(|line| line.contains("echo")).count(), 0, "{metrics}");
    scenario.apply(&echo(3)).await;
    puppet_works(&scenario, "after").await;
    assert_eq!(
        scenario.names(POD).await,
        ["e-pod-0", "e-pod-1"],
        "nobody's any more, and left alone"
    );
    assert_eq!(starts(&host, "puppet"), 1, "{}", host.log());
    assert_eq!(starts(&host, "echo"), 3, "{}", host.log());
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_bad_configuration_is_refused_as_a_whole_and_reported_everywhere() {
    let scenario = Scenario::new("config-bad").await;
    let puppet = controller("puppet.wasm", "");
    let mut host = scenario.start(&puppet);
    puppet_works(&scenario, "before").await;
    // Echo's part is valid, but is not applied without the rest.
    let bad = puppet.replace("kind: Puppet", "kind: puppet");
    let file = scenario.config(&format!("{ECHO_CONTROLLER}{bad}"));
    let words = "configuration is refused … config.yaml: … the previous one stays in use … \
         expected CamelCase … :10:";
    host.until_log(words).await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{ready}");
    let words = "[+]configuration ok: the previous one is in use:  … config.yaml:10:";
    assert_contains(&ready, words);
    let (_, metrics) = get(&host, "/metrics").await;
    let words = "operator_host_config_reloads_total{result=\"refused\"} 1\n … \
         operator_host_config_reloads_total{result=\"taken\"} 1\n";
    assert_contains(&metrics, words);
    puppet_works(&scenario, "meanwhile").await;
    assert_eq!(starts(&host, "echo"), 0);

    std::fs::remove_file(&file).unwrap();
    host.until_log("configuration is refused … not there").await;
    puppet_works(&scenario, "without").await;

    scenario.config(&puppet);
    host.until_log("matches the configuration in use again").await;
    let (_, ready) = get(&host, "/readyz?verbose").await;
    assert_contains(&ready, "[+]configuration ok\n");
    assert_eq!(starts(&host, "puppet"), 1, "{}", host.log());
    assert!(host.is_alive());
}

/// Regression: the host did not start, and refused every change of the configuration.
#[tokio::test]
async fn a_controller_waits_for_its_plugin_file_and_the_others_run() {
    let scenario = Scenario::new("config-early").await;
    let late = scenario.folder.path().join("late.wasm");
    let waiting = ECHO_CONTROLLER.replace("echo.wasm", &late.display().to_string());
    let host = scenario.start(&format!("{}{waiting}", controller("puppet.wasm", "")));
    puppet_works(&scenario, "first").await;
    scenario.apply(&echo(1)).await;
    let says = "Stalled=True PluginNotLoaded: late.wasm … is not there";
    scenario
        .until_condition("my-operator.dev/v1/Echo", "e", says)
        .await;
    let (_, ready) = get(&host, "/readyz?verbose").await;
    assert_contains(&ready, "plugin/echo … late.wasm");
    // A change of another controller is taken meanwhile.
    scenario.config(&format!(
        "{}{waiting}",
        controller("puppet.wasm", "concurrency: 3")
    ));
    host.until_log("configuration applied … \"changed\":\"puppet\"")
        .await;
    puppet_works(&scenario, "changed").await;
    std::fs::copy(plugin("echo"), &late).unwrap();
    scenario.until_echo("e").await;
}

#[tokio::test]
async fn a_controller_that_comes_later_reads_objects_that_were_kept_as_metadata_only() {
    let scenario = Scenario::new("config-reads").await;
    scenario
        .apply(
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
            "data": {"text": "all of it"}})
            .to_string(),
        )
        .await;
    let both = ECHO_CONTROLLER.replace("kind: Pod}", "kind: Pod}, {apiVersion: v1, kind: ConfigMap}");
    assert_ne!(both, ECHO_CONTROLLER);
    let host = scenario.start(&both);
    scenario.apply(&echo(1)).await;
    scenario.until_echo("e").await;
    let need = json!({"id": "n", "apiVersion": "v1", "kind": "ConfigMap", "name": "settings"});
    scenario
        .puppet(
            "p",
            json!({"response": {"needs": [need], "status": {"read": "$texts"}}}),
        )
        .await;
    let reading = controller(
        "puppet.wasm",
        "children: []\nreads: [{apiVersion: v1, kind: ConfigMap}]",
    );
    scenario.config(&format!("{both}{reading}"));
    let puppet = scenario
        .until(PUPPET, "p", "read", |puppet| {
            !puppet.data["status"]["read"].is_null()
        })
        .await;
    assert_eq!(puppet.data["status"]["read"], json!({"n": ["all of it"]}));
    assert_eq!(starts(&host, "echo"), 1, "{}", host.log());
}

#[tokio::test]
async fn the_configuration_sets_what_is_logged() {
    let scenario = Scenario::new("config-log").await;
    let config = scenario.config_with("log: error", &controller("puppet.wasm", ""));
    let host = scenario.start_with(&config, &[]);
    puppet_works(&scenario, "quiet").await;
    assert_eq!(host.log(), "");
}

/// Regression: a change of `namespaces` stopped every controller and listed everything again.
#[tokio::test]
async fn another_namespace_is_watched_while_the_others_go_on() {
    use control_plane::proxy::{Proxy, Seen};
    let proxy = Proxy::start(&cluster().await.kubeconfig())
        .await
        .expect("a proxy");
    let scenario = Scenario::new("first-namespace")
        .await
        .with_kubeconfig(proxy.kubeconfig());
    let other = Scenario::new("second-namespace").await;
    let config = scenario.config(ECHO_CONTROLLER);
    let text = std::fs::read_to_string(&config).unwrap();
    let with = |namespaces: &str| text.replace("[first-namespace]", namespaces);
    let host = scenario.start_with(&config, &[]);
    scenario.apply(&echo(1)).await;
    scenario.until_echo("e").await;
    other.apply(&echo(1)).await;
    let _ = proxy.take_seen();

    scenario.file("config.yaml", with("[first-namespace, second-namespace]"));
    other.until_echo("e").await;
    assert_eq!(starts(&host, "echo"), 1);
    let seen = proxy.take_seen();
    let first = seen
        .iter()
        .filter(|seen| seen.uri.contains("/namespaces/first-namespace/"));
    let first: Vec<_> = first.map(|seen| &seen.uri).collect();
    assert!(first.is_empty(), "nothing is new there: {first:#?}");

    scenario.file("config.yaml", with("[second-namespace]"));
    host.until_log("the watched namespaces have changed … \"namespaces\":\"second-namespace\"")
        .await;
    scenario.apply(&echo(2)).await;
    other.apply(&echo(2)).await;
    other.until_there(POD, "e-pod-1").await;
    other.until_echo("e").await;
    assert_eq!(
        scenario.names(POD).await,
        ["e-pod-0"],
        "nobody looks after it any more"
    );
    let seen = proxy.take_seen();
    assert!(
        !seen
            .iter()
            .any(|seen| Seen::is_list(seen) && seen.uri.contains("second")),
        "{seen:#?}"
    );
    assert_eq!(starts(&host, "echo"), 1);
}

/// Regression: nothing told that the host had stopped to look after them.
#[tokio::test]
async fn children_of_a_kind_that_is_no_longer_listed_are_named_until_they_are_gone() {
    let scenario = Scenario::new("unlisted").await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    let children = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret}]";
    let host = scenario.start(&controller("puppet.wasm", children));
    let wants = |children: &[serde_json::Value]| json!({"response": {"children": children}});
    scenario
        .ready_with("p", wants(&[config_map("a", "1"), secret]))
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
    scenario.puppet("p", wants(&[config_map("a", "1")])).await;
    let _host = scenario.start(&controller("puppet.wasm", ""));
    let says = "KindNotListed=True KindNotListed: Secret unlisted/s … \"puppet\"";
    scenario.until_told("p", says).await;
    scenario.delete("v1/Secret", "s").await;
    let is_silent = |p: &DynamicObject| condition(p, "KindNotListed").is_none();
    scenario.until(PUPPET, "p", "no complaint", is_silent).await;
}
