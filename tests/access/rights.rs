//! `operator-host rbac`: with the printed roles everything works; without any one verb of them something fails, and
//! the host reports it.

use crate::support::prelude::*;
use std::collections::BTreeSet;

use control_plane::AuditEvent;
use futures::StreamExt;

use crate::samples::many_echoes::{BUDGET_NOT_SERVED, complaints};

const ECHO: &str = "my-operator.dev/v1/Echo";
const POD: &str = "v1/Pod";
const SECRET: &str = "v1/Secret";

/// A sample: its kind and name, its controller, and the kinds of children of which it could own a stray one.
type Sample = (&'static str, &'static str, &'static str, &'static [&'static str]);

pub const SAMPLES: [Sample; 4] = [
    (ECHO, "hello-echo", "echo", &["v1/Pod"]),
    (
        "database.example.com/v2/MySQLCluster",
        "shop-db",
        "mysql",
        &["v1/Pod", "v1/Service"],
    ),
    (
        "example.com/v1/MyApp",
        "hello-app",
        "myapp",
        &["v1/Service", "apps/v1/Deployment"],
    ),
    ("fraim.co.jp/v1/Hello", "hello", "hello", &["apps/v1/Deployment"]),
];

/// Runs `operator-host rbac` and returns its output; it must succeed.
pub fn rbac(config: &Path, account: &str, more: &[&str]) -> String {
    let mut command = program(&["rbac", "--service-account", account, "--config"]);
    command.arg(config).args(more).env("KUBECONFIG", "/dev/null");
    let answer = command.call().expect(0);
    let is_remark = |line: &&str| !line.starts_with("operator-host: warning: ");
    assert_eq!(answer.err.lines().find(is_remark), None, "nothing to remark");
    answer.out
}

/// Returns the deployed configuration for one namespace, with one or all of its controllers.
fn config(scenario: &Scenario, only: Option<&str>) -> PathBuf {
    let file = root().join("manifests/deploy/base/config/config.yaml");
    let text = std::fs::read_to_string(file).expect("the deployed configuration");
    let (head, controllers) = text.split_once("controllers:\n").expect("controllers");
    let plugins = root().join("plugins/target/plugins");
    let mut text = head.replace("../plugins", &plugins.display().to_string());
    // The first leader waits for the duration of a lease; a leader must outlive a pause of a busy machine.
    text.push_str("lease: {duration: 6s, renewDeadline: 5s, retryPeriod: 500ms}\n");
    text.push_str(&format!("namespaces: [{}]\ncontrollers:\n", scenario.namespace));
    for controller in controllers.split("  - name: ").skip(1) {
        let name = controller.lines().next().unwrap();
        if only.is_none_or(|only| only == name) {
            text.push_str(&format!("  - name: {controller}"));
        }
    }
    scenario.file("config.yaml", text)
}

/// Returns the roles and bindings for a scenario's host, whose account has the name of the namespace.
pub fn roles(scenario: &Scenario, config: &Path) -> Vec<Value> {
    let account = format!("{0}/{0}", scenario.namespace);
    let list: Value = serde_json::from_str(&rbac(config, &account, &["-o", "json"])).expect("JSON");
    list["items"].as_array().expect("items").clone()
}

/// Reports whether an object is a ClusterRole.
pub fn is_cluster_role(role: &Value) -> bool {
    role["kind"] == "ClusterRole"
}

/// A host that runs as a ServiceAccount with these roles.
struct Limited {
    scenario: Scenario,
    host: Host,
}

impl Limited {
    async fn start(scenario: Scenario, config: &Path, roles: &[Value]) -> Self {
        let scenario = scenario.with_account(cluster().await, roles).await;
        let host = scenario.start_with(config, &[]);
        Self { scenario, host }
    }

    async fn create_samples(&self, samples: &[Sample]) {
        for (kind, _, _, _) in samples {
            let sample = kind.rsplit_once('/').unwrap().1.to_lowercase();
            let file = root().join(format!("manifests/samples/{sample}.yaml"));
            let text = std::fs::read_to_string(file).expect("a sample");
            let own = format!("namespace: {}", self.scenario.namespace);
            let text = text.replace("namespace: default", &own);
            self.scenario.apply(&text).await;
        }
    }

    async fn until_ready(&self) {
        for (kind, name, _, _) in SAMPLES {
            let is_ready = |object: &DynamicObject| is_true(object, "Ready");
            self.scenario.until(kind, name, "ready", is_ready).await;
        }
    }

    /// Creates an object that a sample's parent owns and does not want.
    async fn stray(&self, parent: (&str, &str, &str), kind: &str) -> String {
        let (parent_kind, parent, controller) = parent;
        let (api_version, kind_of_parent) = parent_kind.rsplit_once('/').unwrap();
        let kind = kind.rsplit_once('/').unwrap();
        let owner = self.scenario.until_there(parent_kind, parent).await;
        let name = format!("{parent}-stray-{}", kind.1.to_lowercase());
        let pod = json!({ "containers": [{ "name": "c", "image": "stray:1" }] });
        let spec = match kind.1 {
            "Pod" => pod,
            "Service" => json!({ "ports": [{ "port": 80, "protocol": "TCP" }] }),
            _ => json!({
                "replicas": 0, "selector": { "matchLabels": { "app": name } },
                "template": { "metadata": { "labels": { "app": name } }, "spec": pod },
            }),
        };
        let stray = json!({
            "apiVersion": kind.0, "kind": kind.1, "spec": spec,
            "metadata": {
                "name": name, "labels": { "operator-host.dev/controller": controller },
                "ownerReferences": [{
                    "apiVersion": api_version, "kind": kind_of_parent, "name": parent, "uid": owner.uid(),
                    "controller": true,
                }],
            },
        });
        self.scenario.apply(&stray.to_string()).await;
        name
    }

    /// Recreates the same pod twice, which causes one Event and its repetition.
    async fn repeat_an_event(&self) {
        let pod = "hello-echo-pod-1";
        let mut last = None;
        for _ in 0..3 {
            let other = |object: &DynamicObject| object.uid() != last;
            last = self.scenario.until(POD, pod, "recreated", other).await.uid();
            self.scenario.delete(POD, pod).await;
        }
    }

    /// Removes a value of the generated Secret, which the host generates again by order.
    async fn lose_the_password(&self) {
        let name = "shop-db-root";
        let secret = self.scenario.until_there(SECRET, name).await;
        let order = format!("{}/password", secret.metadata.uid.unwrap());
        let order = json!({ "metadata": { "annotations": { "operator-host.dev/generate-again": order } } });
        let (cluster, name_of_cluster, _, _) = SAMPLES[1];
        self.scenario.patch(cluster, name_of_cluster, order).await;
        let patch = json!({ "data": { "password": null } });
        self.scenario.patch(SECRET, name, patch).await;
    }
}

/// Removes one verb on one resource from all rules. A rule or a role without any is left empty.
fn without(roles: &[Value], resource: &str, verb: &str) -> Vec<Value> {
    let mut roles = roles.to_vec();
    for role in &mut roles {
        let Some(rules) = role.get_mut("rules").and_then(Value::as_array_mut) else {
            continue;
        };
        let mut kept = Vec::new();
        for rule in rules.drain(..) {
            let [resources, verbs] = ["resources", "verbs"].map(|field| texts(&rule[field]));
            for one in resources {
                let mut verbs = verbs.clone();
                verbs.retain(|other| !(one == resource && other == verb));
                if !verbs.is_empty() {
                    kept.push(json!({ "apiGroups": rule["apiGroups"], "resources": [one], "verbs": verbs }));
                }
            }
        }
        *rules = kept;
    }
    roles
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Returns every verb on every resource in the rules.
fn permissions(roles: &[Value]) -> BTreeSet<(String, String)> {
    let rules = roles.iter().filter_map(|role| role["rules"].as_array());
    let mut all = BTreeSet::new();
    for rule in rules.flatten() {
        for resource in texts(&rule["resources"]) {
            let verbs = texts(&rule["verbs"]).into_iter();
            all.extend(verbs.map(|verb| (resource.clone(), verb)));
        }
    }
    all
}

#[tokio::test]
async fn with_the_printed_rights_everything_works_and_without_any_one_of_them_the_host_names_it() {
    let scenario = Scenario::new("rights").await;
    let file = config(&scenario, None);
    let all = roles(&scenario, &file);
    everything_works(scenario, &file, &all).await;

    // Each verb on each resource once, with the first controller that needs it.
    let scenario = Scenario::new("rights-cases").await;
    let mut cases = Vec::new();
    for sample in SAMPLES {
        let config = config(&scenario, Some(sample.2));
        for (resource, verb) in permissions(&roles(&scenario, &config)) {
            if !cases.iter().any(|(_, r, v)| (r, v) == (&resource, &verb)) {
                cases.push((sample, resource, verb));
            }
        }
    }
    let cased = cases
        .iter()
        .map(|(_, resource, verb)| (resource.clone(), verb.clone()));
    let cased: BTreeSet<_> = cased.collect();
    assert_eq!(
        cased,
        permissions(&all),
        "the controllers need together what all need"
    );
    // Only an admission plugin that this control plane does not have checks it.
    cases.retain(|(_, resource, _)| !resource.ends_with("/finalizers"));
    // Asked for only where the namespace does not exist.
    cases.retain(|(_, resource, _)| resource != "namespaces");
    // The samples do without, and an API server before Kubernetes 1.21 does not serve it.
    cases.retain(|(_, resource, _)| resource != "poddisruptionbudgets");
    let cases = futures::stream::iter(cases.into_iter().enumerate());
    let one = async |(number, (sample, resource, verb)): (usize, (Sample, String, String))| {
        let scenario = Scenario::new(&format!("rights-{number}")).await;
        let config = config(&scenario, Some(sample.2));
        let roles = without(&roles(&scenario, &config), &resource, &verb);
        let limited = Limited::start(scenario, &config, &roles).await;
        one_is_missing(&limited, sample, &resource, &verb).await;
    };
    cases.for_each_concurrent(6, one).await;
}

async fn everything_works(scenario: Scenario, config: &Path, roles: &[Value]) {
    let limited = Limited::start(scenario, config, roles).await;
    let scenario = &limited.scenario;
    limited.create_samples(&SAMPLES).await;
    limited.until_ready().await;
    limited.repeat_an_event().await;
    limited.lose_the_password().await;
    let is_drawn = |secret: &DynamicObject| secret.data["data"]["password"].is_string();
    scenario
        .until(SECRET, "shop-db-root", "drawn again", is_drawn)
        .await;
    for (kind, name, controller, children) in SAMPLES {
        for child in children {
            let stray = limited.stray((kind, name, controller), child).await;
            scenario.until_gone(child, &stray).await;
        }
    }
    for (kind, name, _, _) in SAMPLES {
        scenario.remove(kind, name).await;
    }
    let mut complaints = complaints(&limited.host);
    complaints.retain(|line| !line.contains(BUDGET_NOT_SERVED));
    assert!(complaints.is_empty(), "{complaints:#?}");
    let account = format!("system:serviceaccount:{0}:{0}", scenario.namespace);
    assert_eq!(limited.host.stop().await.code(), Some(0));
    nothing_was_forbidden_to(&account).await;
}

/// Checks the shared cluster's audit log.
async fn nothing_was_forbidden_to(user: &str) {
    let events = cluster().await.audit_events_about(user).expect("the audit log");
    let own = events.iter().filter(|event| event.user.username == user);
    let mut own: Vec<_> = own.collect();
    let reads = own.iter().any(|event| event.verb == "watch");
    assert!(reads, "reads are in the log");
    let code = |event: &AuditEvent| event.response_status.as_ref().map(|status| status.code);
    own.retain(|event| code(event) == Some(403));
    assert!(own.is_empty(), "{own:#?}");
}

/// Triggers an action that needs this verb on this resource, and waits until the host reports the missing
/// permission.
async fn one_is_missing(limited: &Limited, sample: Sample, resource: &str, verb: &str) {
    limited.create_samples(&[sample]).await;
    match (resource, verb) {
        ("events", "patch") => limited.repeat_an_event().await,
        ("secrets", "patch") => limited.lose_the_password().await,
        (_, "delete") => {
            let kind = match resource {
                "pods" => "v1/Pod",
                "services" => "v1/Service",
                "deployments" => "apps/v1/Deployment",
                _ => panic!("no stray of {resource}"),
            };
            let (parent, name, controller, _) = sample;
            limited.stray((parent, name, controller), kind).await;
        }
        _ => {}
    }
    let missing = format!("cannot {verb} resource \\\"{resource}\\\"");
    let words = format!("WARN … {missing} … give the host's role");
    limited.host.until_log(&words).await;
}

#[tokio::test]
async fn a_configuration_that_cannot_be_resolved_names_what_to_give() {
    let scenario = Scenario::new("rights-unknown").await;
    let config = scenario.config(
        "- {name: echo, parent: {apiVersion: my-operator.dev/v1, kind: Echo}, plugin: echo.wasm,\n  \
         children: [{apiVersion: v1, kind: Pod}, {apiVersion: unknown.dev/v1, kind: Riddle}]}",
    );
    let run = |more: &[&str], kubeconfig: &Path, code: i32| {
        let mut command = program(&["rbac", "--config"]);
        command.arg(&config).args(more);
        command.env("KUBECONFIG", kubeconfig).ends(code)
    };
    let nowhere = Path::new("/nonexistent");
    let printed = run(&[], nowhere, 2);
    let words = "unknown.dev/v1/Riddle … --crd FILE … connect to a cluster that serves it";
    assert_contains(&printed, words);
    let printed = run(&[], scenario.kubeconfig(), 2);
    assert_contains(&printed, "the current cluster does not serve it");

    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "riddlia.unknown.dev"}, "spec": {
            "group": "unknown.dev", "scope": "Namespaced", "names": {"kind": "Riddle", "plural": "riddlia"},
            "versions": [{"name": "v1"}],
        },
    });
    let definition = scenario.file("riddle.yaml", definition.to_string());
    let definition = definition.display().to_string();
    let printed = run(&["--crd", &definition], nowhere, 0);
    assert_contains(&printed, "riddlia … which the plugin does not create");
    let printed = run(&["--service-account", "nobody"], nowhere, 2);
    assert_contains(&printed, "NAMESPACE/NAME");
}

#[test]
fn the_file_of_a_plugin_in_a_config_map_is_given_by_option() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let text = "controllers: [{name: echo, parent: {apiVersion: my-operator.dev/v1, kind: Echo}, \
                plugin: {configMap: {name: echo-plugin}}, children: [{apiVersion: v1, kind: Pod}]}]";
    std::fs::write(&config, text).unwrap();
    for (command, reach, words) in [
        ("rbac", &[][..], "echoes"),
        (
            "webhook-manifests",
            &["--url", "https://host"][..],
            "it needs no webhook",
        ),
    ] {
        let run = |more: &[&str], code: i32| {
            let mut command = program(&[command, "--config"]);
            command.arg(&config).args(more);
            command.env("KUBECONFIG", "/dev/null").ends(code)
        };
        let printed = run(reach, 2);
        assert_contains(&printed, "give its file with --plugin echo=FILE");
        let file = format!("echo={}", plugin("echo").display());
        let printed = run(&[reach, &["--plugin", &file]].concat(), 0);
        assert_contains(&printed, words);
    }
}
