//! `manifests/deploy` and the Helm chart: their contents, that the API server accepts them, and that the host works
//! with the permissions that they grant.

mod backup;
pub mod chart;
mod configuration;
mod process;
pub mod uninstall;

use crate::support::prelude::*;
use std::collections::BTreeMap;
use std::sync::Once;

use control_plane::manifests::without_rules;
use control_plane::{deployed, manifests};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use tempfile::TempDir;

use crate::access::rights::{SAMPLES, rbac};
use crate::samples::many_echoes::{BUDGET_NOT_SERVED, complaints};

const NAME: &str = "operator-host";
const ACCOUNT: &str = "operator-host/operator-host";
const USER: &str = "system:serviceaccount:operator-host:operator-host";

fn base() -> PathBuf {
    root().join("manifests/deploy/base")
}

/// Returns the text of a file of the repository.
fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the deployed configuration with the built plugins next to it.
fn configuration() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let built = plugin("echo");
    std::os::unix::fs::symlink(built.parent().unwrap(), folder.path().join("plugins")).unwrap();
    std::fs::create_dir(folder.path().join("config")).unwrap();
    let file = folder.path().join("config/config.yaml");
    std::fs::copy(base().join("config/config.yaml"), &file).unwrap();
    (folder, file)
}

/// Returns the objects of a kustomization. The plugins of the base are packed first, once, as its script does.
fn kustomized(folder: &str) -> Vec<DynamicObject> {
    static PACKED: Once = Once::new();
    PACKED.call_once(|| {
        let script = root().join("manifests/deploy/plugins.sh");
        let program = env!("CARGO_BIN_EXE_operator-host");
        let status = Command::new(script).env("OPERATOR_HOST", program).status();
        assert!(status.expect("the script runs").success());
    });
    let into = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    deployed::kustomize(&root().join(folder), into.path()).expect("the manifests")
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// Returns the spec of the pods of the Deployment.
fn pod_of(objects: &[DynamicObject]) -> &Value {
    let deployment = objects.iter().find(|object| kind(object) == "Deployment");
    &deployment.unwrap().data["spec"]["template"]["spec"]
}

#[test]
fn the_roles_are_what_rbac_prints_for_the_deployed_configuration() {
    let (_folder, config) = configuration();
    let printed = rbac(&config, ACCOUNT, &[]);
    let committed = text("manifests/deploy/base/rbac.yaml");
    assert_eq!(committed, printed, "make manifests writes it again");
}

#[test]
fn the_roles_of_egress_are_what_rbac_prints_for_its_file_of_endpoints() {
    let endpoints = root().join("manifests/deploy/components/egress/config/endpoints.yaml");
    let printed = program(&["rbac", "--endpoints"]).arg(endpoints).prints();
    let committed = text("manifests/deploy/components/egress/rbac.yaml");
    assert_eq!(committed, printed, "make manifests writes it again");
}

#[test]
fn the_webhooks_are_what_is_printed_for_the_deployed_configuration_with_a_webhook() {
    let (_folder, config) = configuration();
    let with_webhook = text("manifests/deploy/components/webhook/config/config.yaml");
    let base = text("manifests/deploy/base/config/config.yaml");
    let base: String = base
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    let (_remark, rest) = with_webhook.split_once('\n').unwrap();
    let webhook = rest.strip_prefix(&base).expect("make manifests writes it again");
    assert!(webhook.starts_with("\nwebhook:\n"), "{webhook}");
    std::fs::write(&config, &with_webhook).unwrap();
    let arguments =
        "webhook-manifests --service operator-host/operator-host-webhook --no-definitions --config";
    let arguments: Vec<_> = arguments.split(' ').collect();
    let printed = program(&arguments).arg(&config).prints();
    let committed = text("manifests/deploy/components/webhook/webhooks.yaml");
    assert_eq!(committed, printed, "make manifests writes it again");
}

#[test]
fn the_definitions_that_need_the_webhook_are_what_is_printed_for_the_plugins_that_convert() {
    let service = "operator-host/operator-host-webhook";
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let webhook =
        format!("controllers: []\nwebhook: {{certificate: a.crt, key: a.key, service: {service}}}\n");
    std::fs::write(&config, webhook).unwrap();
    let print = |reach: [&str; 2]| {
        let mut crd = program(&["crd", "--inject-ca-from", service]);
        crd.args(reach).arg(plugin("mysql")).prints()
    };
    let committed = text("manifests/deploy/components/webhook/definitions.yaml");
    let (_, committed) = committed.split_once("---\n").unwrap();
    assert_eq!(
        committed,
        print(["--service", service]),
        "make manifests writes it again"
    );
    assert_eq!(committed, print(["--config", config.to_str().unwrap()]));
}

/// Sends each object as a dry run, which goes through defaulting, validation and admission.
async fn dry_run(client: &Client, object: &DynamicObject) {
    let types = object.types.as_ref().unwrap();
    let gvk = GroupVersionKind::try_from(types).unwrap();
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk)
        .await
        .expect("a kind that is served");
    let api: Api<DynamicObject> = match (capabilities.scope, object.namespace()) {
        (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), &namespace, &resource),
        _ => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::apply("kubectl").force()
    };
    let name = object.name_any();
    let mut taken = api.patch(&name, &params, &Patch::Apply(object)).await;
    let plain = without_rules(object);
    let mut object = object;
    // An API server before Kubernetes 1.23 refuses the rules of a definition.
    if taken
        .as_ref()
        .is_err_and(|error| error.to_string().contains("x-kubernetes-validations"))
    {
        taken = api.patch(&name, &params, &Patch::Apply(&plain)).await;
        object = &plain;
    }
    let taken = taken.unwrap_or_else(|error| panic!("{} {name}: {error}", types.kind));
    // The server silently drops an unknown field.
    let differs = lost(
        "",
        &serde_json::to_value(object).unwrap(),
        &serde_json::to_value(&taken).unwrap(),
    );
    assert_eq!(differs, Vec::<String>::new(), "{} {name}", types.kind);
}

/// Returns the paths that are in `sent` but not in `taken`.
fn lost(path: &str, sent: &Value, taken: &Value) -> Vec<String> {
    match (sent, taken) {
        (Value::Object(sent), Value::Object(taken)) => sent
            .iter()
            .flat_map(|(key, value)| {
                lost(
                    &format!("{path}.{key}"),
                    value,
                    taken.get(key).unwrap_or(&Value::Null),
                )
            })
            .collect(),
        (Value::Array(sent), Value::Array(taken)) if sent.len() == taken.len() => {
            let pairs = sent.iter().zip(taken).enumerate();
            pairs
                .flat_map(|(i, (sent, taken))| lost(&format!("{path}[{i}]"), sent, taken))
                .collect()
        }
        (sent, taken) if sent == taken || path == ".metadata.creationTimestamp" => Vec::new(),
        (sent, taken) => vec![format!("{path}: {sent} became {taken}")],
    }
}

/// Kinds in the overlays whose definitions are not in this repository: they are served without a schema.
const FOREIGN: [(&str, &str); 4] = [
    ("monitoring.coreos.com", "PrometheusRule"),
    ("monitoring.coreos.com", "ServiceMonitor"),
    ("cert-manager.io", "Certificate"),
    ("cert-manager.io", "Issuer"),
];

fn definition(group: &str, kind: &str) -> String {
    let plural = format!("{}s", kind.to_lowercase());
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {plural}.{group}}}\nspec:\n  \
         group: {group}\n  scope: Namespaced\n  names: {{kind: {kind}, plural: {plural}}}\n  versions:\n    - name: v1\n      \
         served: true\n      storage: true\n      \
         schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}\n"
    )
}

async fn bare_cluster() -> (ControlPlane, Client, TempDir) {
    let cluster = ControlPlane::start(Options::bare())
        .await
        .expect("a control plane");
    let client = cluster.client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let definitions = FOREIGN.map(|(group, kind)| definition(group, kind));
    crate::support::install(&client, folder.path(), &definitions.join("---\n")).await;
    for name in [NAME, "shop"] {
        control_plane::create_namespace(&client, name).await.unwrap();
    }
    (cluster, client, folder)
}

/// Kubernetes 1.29 and later do.
async fn serves_priority_levels(client: &Client) -> bool {
    let served = client
        .list_api_group_resources("flowcontrol.apiserver.k8s.io/v1")
        .await;
    served.is_ok()
}

#[tokio::test]
async fn the_api_server_takes_every_manifest_as_it_is() {
    let (_cluster, client, _folder) = bare_cluster().await;
    let objects = kustomized("manifests/deploy/overlays/monitoring");
    let kinds: Vec<_> = objects.iter().map(kind).map(str::to_owned).collect();
    let wanted = "Namespace ServiceAccount ClusterRole ClusterRoleBinding ConfigMap Deployment \
        PodDisruptionBudget NetworkPolicy Service ServiceMonitor";
    for expected in wanted.split(' ') {
        let there = kinds.iter().any(|kind| kind == expected);
        assert!(there, "{expected} is not in {kinds:?}");
    }
    let mut overlays = vec!["egress", "webhook", "versions", "registry", "everything"];
    if serves_priority_levels(&client).await {
        overlays.push("priority");
    }
    let overlays = overlays
        .iter()
        .flat_map(|name| kustomized(&format!("manifests/deploy/overlays/{name}")));
    for object in objects.iter().cloned().chain(overlays) {
        // Both versions of `policy` are the same for the fields used here.
        let mut object = [object];
        deployed::for_server(&client, &mut object).await.unwrap();
        dry_run(&client, &object[0]).await;
    }
}

/// Checks the rules of the Pod Security Standards' restricted profile, which the namespace enforces but a server of
/// 1.20 does not know. Source: Kubernetes, "Pod Security Standards".
#[test]
fn the_pod_keeps_to_the_restricted_profile() {
    let objects = kustomized("manifests/deploy/base");
    let pod = pod_of(&objects);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_ne!(pod["securityContext"]["runAsUser"], 0);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[field].is_null(), "{field}");
    }
    for container in pod["containers"].as_array().unwrap() {
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }));
        assert!(security["privileged"].is_null());
    }
    for volume in pod["volumes"].as_array().unwrap() {
        let allowed = ["configMap", "emptyDir", "projected", "secret"];
        assert!(allowed.iter().any(|kind| !volume[kind].is_null()), "{volume}");
    }
}

/// A user who may change the ConfigMap of one plugin can replace only that plugin's files, and the ConfigMap of
/// telemetry can set only telemetry variables.
#[test]
fn a_config_map_can_neither_replace_another_plugin_nor_set_any_variable() {
    let objects = kustomized("manifests/deploy/base");
    let pod = pod_of(&objects);
    let volumes = pod["volumes"].as_array().unwrap().iter();
    let plugins = volumes.filter(|volume| volume["name"] == "plugins");
    let sources: Vec<&Value> = plugins
        .flat_map(|volume| volume["projected"]["sources"].as_array().unwrap())
        .map(|source| &source["configMap"])
        .collect();
    assert!(sources.len() > 4);
    for source in sources {
        let name = source["name"].as_str().unwrap();
        let (stem, _) = name.split_once("-plugin").unwrap();
        let items = source["items"]
            .as_array()
            .unwrap_or_else(|| panic!("{name} brings what it likes"));
        for item in items {
            let path = item["path"].as_str().unwrap();
            assert!(path.starts_with(&format!("{stem}.wasm")), "{name} brings {path}");
        }
    }
    for container in pod["containers"].as_array().unwrap() {
        assert!(container["envFrom"].is_null(), "a ConfigMap can set LD_PRELOAD");
        let from_others = container["env"].as_array().unwrap().iter();
        for variable in from_others.filter(|variable| variable["valueFrom"]["fieldRef"].is_null()) {
            let (name, from) = (variable["name"].as_str().unwrap(), &variable["valueFrom"]);
            let source = [&from["configMapKeyRef"], &from["secretKeyRef"]];
            for source in source.iter().filter(|source| !source.is_null()) {
                assert!(name.starts_with("OTEL_") && source["key"] == name, "{variable}");
                assert_eq!(source["optional"], true, "{variable}");
            }
            assert!(
                !name.ends_with("HEADERS") || from["configMapKeyRef"].is_null(),
                "{variable}"
            );
        }
    }
}

/// Runs `tests/helm.sh`.
fn helm(arguments: &[&str], kubeconfig: &Path, validates: bool) -> String {
    Command::new(root().join("tests/helm.sh"))
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .env("HELM_VALIDATES", if validates { "yes" } else { "no" })
        .prints()
}

/// Waits until the API server serves its OpenAPI description, without which Helm refuses: newer servers take half a
/// minute after their start.
async fn until_openapi(client: &Client) {
    eventually("/openapi/v2", async || {
        let request = http::Request::get("/openapi/v2").body(Vec::new()).unwrap();
        let answer = client.request_text(request).await;
        answer.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// Reports whether the API server serves the form of that description that Helm downloads. Some builds of it cannot
/// encode the description.
async fn serves_openapi_to_helm(client: &Client) -> bool {
    let request = http::Request::get("/openapi/v2")
        .header(
            "Accept",
            "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
        )
        .body(kube::client::Body::empty())
        .unwrap();
    let answer = client.send(request).await.expect("an answer");
    answer.status().is_success()
}

/// Returns the chart in a folder, for this API server: an old one lacks `policy/v1`, for which the chart asks, and rules in
/// definitions.
async fn chart(client: &Client, folder: &Path) -> PathBuf {
    let chart = folder.join("chart");
    let copied = Command::new("cp")
        .args(["--recursive", "--dereference"])
        .arg(root().join("manifests/helm"))
        .arg(&chart)
        .status();
    assert!(copied.expect("cp runs").success());
    if client.list_api_group_resources("policy/v1").await.is_err() {
        let file = chart.join("Chart.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("kubeVersion:", "# kubeVersion:")).unwrap();
        for file in ["egress.yaml", "pod-disruption-budget.yaml"] {
            let file = chart.join("templates").join(file);
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, text.replace("policy/v1", "policy/v1beta1")).unwrap();
        }
        for file in std::fs::read_dir(chart.join("crds")).unwrap() {
            let file = file.unwrap().path();
            let text = std::fs::read_to_string(&file).unwrap();
            let mut definition: Value = serde_saphyr::from_str(&text).unwrap();
            without(&mut definition, "x-kubernetes-validations");
            std::fs::write(&file, definition.to_string()).unwrap();
        }
    }
    chart
}

/// Installs the chart and returns the rendered objects, as stored in the release.
async fn rendered(cluster: &ControlPlane, client: &Client, values: &Value) -> Vec<DynamicObject> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let chart = chart(client, folder.path()).await.display().to_string();
    until_openapi(client).await;
    let validates = serves_openapi_to_helm(client).await;
    if !validates {
        control_plane::create_namespace(client, NAME).await.unwrap();
    }
    helm(
        &["install", NAME, NAME, &chart, &file.display().to_string()],
        &cluster.kubeconfig(),
        validates,
    );
    let releases = Api::<Secret>::namespaced(client.clone(), NAME);
    let found = releases
        .list(&ListParams::default().labels("owner=helm"))
        .await
        .unwrap();
    let release = found.items[0].data.as_ref().unwrap()["release"].0.clone();
    // Gzipped JSON in base64, again in the Secret's own base64.
    let zipped = folder.path().join("release");
    std::fs::write(&zipped, release).unwrap();
    let unzip = Command::new("bash")
        .args(["-c", "base64 -d <\"$0\" | gunzip"])
        .arg(&zipped)
        .output()
        .unwrap();
    let release: Value = serde_json::from_slice(&unzip.stdout).expect("a release");
    let file = folder.path().join("manifest.yaml");
    std::fs::write(&file, release["manifest"].as_str().unwrap()).unwrap();
    manifests::read(&file).unwrap()
}

/// Removes a field wherever it is: a label is in selectors, too.
fn without(value: &mut Value, field: &str) {
    match value {
        Value::Object(fields) => {
            fields.remove(field);
            fields.values_mut().for_each(|value| without(value, field));
            fields.retain(|name, value| name != "matchLabels" || value != &json!({}));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| without(value, field)),
        _ => {}
    }
}

/// Returns the objects by kind and name, without the parts that only one of the two ways adds.
fn comparable(objects: Vec<DynamicObject>) -> BTreeMap<String, Value> {
    let essence = |mut object: DynamicObject| {
        deployed::for_old_servers(&mut object);
        for label in "app.kubernetes.io/managed-by app.kubernetes.io/version helm.sh/chart".split(' ') {
            object.labels_mut().remove(label);
        }
        let place = object.namespace().unwrap_or_default();
        let name = format!("{} {} {place}", kind(&object), object.name_any());
        let mut object = serde_json::to_value(object).unwrap();
        without(&mut object, "app.kubernetes.io/instance");
        (name, object)
    };
    objects.into_iter().map(essence).collect()
}

#[tokio::test]
async fn the_helm_chart_makes_the_same_objects_as_the_kustomization() {
    let (cluster, client, _folder) = bare_cluster().await;
    helm(
        &["lint", &root().join("manifests/helm").display().to_string()],
        &cluster.kubeconfig(),
        true,
    );
    let (_folder, config) = configuration();
    let text = std::fs::read_to_string(&config).unwrap();
    // One operator has its own permissions, which the kustomization does not have.
    let own = "plugin: echo.wasm\n    serviceAccount: shop/writer";
    std::fs::write(&config, text.replace("plugin: echo.wasm", own)).unwrap();
    let roles: Value = serde_json::from_str(&rbac(&config, ACCOUNT, &["-o", "json"])).unwrap();
    let printed = rbac(&config, ACCOUNT, &["-o", "helm"]);
    let mut values: Value = serde_saphyr::from_str(&printed).unwrap();
    values["config"] = text.into();
    let source = |name: &str, keys: &[&str]| {
        let items: Vec<Value> = keys
            .iter()
            .map(|key| json!({ "key": key, "path": key }))
            .collect();
        json!({ "name": name, "items": items })
    };
    values["pluginConfigMaps"] = json!([
        source("echo-plugin", &["echo.wasm"]),
        source(
            "hello-plugin",
            &["hello.wasm.zst", "hello.wasm.pack", "hello.wasm.zst.0"]
        ),
        source("hello-plugin-1", &["hello.wasm.zst.1"]),
        source("myapp-plugin", &["myapp.wasm"]),
        source("mysql-plugin", &["mysql.wasm"]),
    ]);
    for packed in [1, 2] {
        values["pluginConfigMaps"][packed]["optional"] = true.into();
    }
    values["serviceMonitor"] = json!({ "enabled": true });
    let has_level = serves_priority_levels(&client).await;
    values["priorityLevel"] = json!({ "enabled": has_level });
    // For port-forward alone: one variable and nothing else.
    values["page"] = json!({ "enabled": true });
    values["versions"] = json!({ "enabled": true });
    let component = root().join("manifests/deploy/components/egress");
    let endpoints = component.join("config/endpoints.yaml");
    let printed = program(&["rbac", "-o", "helm", "--endpoints"]);
    let printed: Value = serde_saphyr::from_str(&{ printed }.arg(&endpoints).prints()).unwrap();
    values["egress"] = printed["egress"].clone();
    values["egress"]["endpoints"] = std::fs::read_to_string(&endpoints).unwrap().into();
    // Beside the tag there is the digest.
    values["image"] = json!({ "tag": "0.1.0" });
    let mut from_helm = comparable(rendered(&cluster, &client, &values).await);
    the_versions_are_the_same(&mut from_helm);
    let pod = "/spec/template/spec/containers/0/env";
    let variables = from_helm.get_mut(DEPLOYMENT).unwrap().pointer_mut(pod);
    let page = variables.unwrap().as_array_mut().unwrap().pop();
    let expected = json!({ "name": "OPERATOR_HOST_UI_ADDR", "value": "127.0.0.1:8090" });
    assert_eq!(page, Some(expected));
    let mut from_kustomize = comparable(kustomized("manifests/deploy/overlays/monitoring"));
    from_kustomize.extend(comparable(kustomized("manifests/deploy/overlays/egress")));
    // Helm creates the namespace with an option, and the plugins are too large for a release.
    from_kustomize.retain(|name, _| !name.starts_with("Namespace") && !name.contains("-plugin"));
    if has_level {
        let mut level = comparable(kustomized("manifests/deploy/overlays/priority"));
        level.retain(|name, _| name.starts_with("FlowSchema ") || name.starts_with("PriorityLevel"));
        assert_eq!(level.len(), 2);
        from_kustomize.extend(level);
    }
    let count = from_kustomize.len();
    let roles: Vec<DynamicObject> = serde_json::from_value(roles["items"].clone()).unwrap();
    from_kustomize.extend(comparable(roles));
    assert_eq!(
        from_kustomize.len(),
        count + 4,
        "the account's role, and the host's right to be it"
    );
    for objects in [&mut from_helm, &mut from_kustomize] {
        for (name, file) in [("config", "config.yaml"), ("endpoints", "endpoints.yaml")] {
            let name = format!("ConfigMap operator-host-{name} operator-host");
            let object = objects
                .get_mut(&name)
                .unwrap_or_else(|| panic!("{name} is missing"));
            let text = &mut object["data"][file];
            *text = text.as_str().unwrap().trim().into();
        }
    }
    assert!(from_helm.keys().eq(from_kustomize.keys()), "{from_helm:#?}");
    for (name, object) in &from_helm {
        assert_eq!(*object, from_kustomize[name], "{name}");
    }
}

/// Returns the output of `webhook-manifests` for the chart.
fn webhook_values(config: &Path) -> Value {
    let arguments = [
        "webhook-manifests",
        "--no-match-conditions",
        "-o",
        "helm",
        "--config",
    ];
    serde_saphyr::from_str(&program(&arguments).arg(config).prints()).unwrap()
}

const DEPLOYMENT: &str = "Deployment operator-host operator-host";

/// Compares what the chart adds for the versions of plugins with what the component adds, and removes it.
fn the_versions_are_the_same(from_helm: &mut BTreeMap<String, Value>) {
    let mut component = comparable(kustomized("manifests/deploy/overlays/versions"));
    let claim = "PersistentVolumeClaim operator-host-versions operator-host";
    let claims = [from_helm.remove(claim), component.remove(claim)];
    assert!(claims[0].is_some());
    assert_eq!(claims[0], claims[1]);
    for (place, name) in [
        ("volumes", "versions"),
        ("containers/0/volumeMounts", "versions"),
        ("containers/0/env", "OPERATOR_HOST_STATE_DIR"),
    ] {
        let take = |objects: &mut BTreeMap<String, Value>| -> Vec<Value> {
            let list = objects
                .get_mut(DEPLOYMENT)
                .unwrap()
                .pointer_mut(&format!("/spec/template/spec/{place}"));
            let list = list.unwrap().as_array_mut().unwrap();
            list.extract_if(.., |item| item["name"] == name).collect()
        };
        let taken = [take(from_helm), take(&mut component)];
        assert_eq!(taken[0].len(), 1, "{place}");
        assert_eq!(taken[0], taken[1]);
    }
}

/// Expects that the chart cannot be rendered, and returns why.
async fn not_rendered(cluster: &ControlPlane, client: &Client, values: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let mut script = Command::new(root().join("tests/helm.sh"));
    script
        .args(["install", NAME, NAME])
        .arg(chart(client, folder.path()).await);
    let answer = script.arg(file).env("KUBECONFIG", cluster.kubeconfig()).call();
    assert_ne!(answer.code, Some(0));
    answer.err
}

#[tokio::test]
async fn the_charts_webhook_is_the_kustomizations_and_every_value_takes_effect() {
    let (cluster, client, _folder) = bare_cluster().await;
    let (_folder, config) = configuration();
    let text = text("manifests/deploy/components/webhook/config/config.yaml");
    std::fs::write(&config, &text).unwrap();
    let mut values = webhook_values(&config);
    // The chart adds how the API server reaches the webhook.
    let is_added =
        |line: &&str| line.starts_with("  service: ") || line.starts_with("  certificateAuthority: ");
    assert_eq!(text.lines().filter(is_added).count(), 2);
    let plain: Vec<&str> = text.lines().filter(|line| !is_added(line)).collect();
    values["config"] = plain.join("\n").into();
    let from = json!([{ "ipBlock": { "cidr": "192.0.2.1/32" } }]);
    values["webhook"]["from"] = from.clone();
    let from_helm = comparable(rendered(&cluster, &client, &values).await);
    let config_of = |objects: &BTreeMap<String, Value>| {
        objects["ConfigMap operator-host-config operator-host"]["data"].clone()
    };
    let configured = config_of(&from_helm)["config.yaml"].clone();
    assert_eq!(configured.as_str().unwrap().trim(), text.trim());
    let from_kustomize = comparable(kustomized("manifests/deploy/overlays/webhook"));
    let kinds = [
        "Service ",
        "Issuer ",
        "Certificate ",
        "ValidatingWebhookConfiguration ",
        "NetworkPolicy ",
    ];
    let names = from_kustomize.keys();
    let names: Vec<_> = names
        .filter(|name| kinds.iter().any(|kind| name.starts_with(kind)))
        .collect();
    assert_eq!(names.len(), 8, "{names:?}");
    for name in names {
        assert_eq!(from_helm.get(name), from_kustomize.get(name), "{name}");
    }

    let mut all = values.clone();
    for (value, set) in [
        ("certManager", json!(false)),
        ("secretName", json!("tls")),
        ("clientCaConfigMap", json!("callers")),
        (
            "caBundle",
            json!(k8s_openapi::ByteString(b"authority\n".to_vec())),
        ),
    ] {
        all["webhook"][value] = set;
    }
    let rules = json!([{ "apiGroups": ["example.com"], "resources": ["shops"], "verbs": ["get"] }]);
    let digest = format!("sha256:{}", "ab".repeat(32));
    let sets = json!({
        "replicas": 1,
        "image": { "repository": "registry.example.org/team/host", "tag": "9", "digest": digest, "pullPolicy": "Always" },
        "imagePullSecrets": [{ "name": "to-pull" }],
        "pluginConfigMaps": [{ "name": "packed", "optional": true, "items": [{ "key": "a.wasm", "path": "a.wasm" }] }],
        "signatureKeysSecret": "keys",
        "registry": { "credentialsSecret": "pull", "authoritiesConfigMap": "authorities" },
        "serviceAccount": { "name": "account", "labels": { "a": "of-account" }, "annotations": { "a": "role-of-account" } },
        "rbac": { "cluster": rules, "namespaces": { "shop": rules },
            "accounts": [{ "namespace": "shop", "name": "writer", "namespaces": { "shop": rules } }] },
        "resources": { "requests": { "cpu": "70m" }, "limits": { "memory": "700Mi" } },
        "cacheSize": "3Gi",
        "versions": { "enabled": true, "existingClaim": "kept", "size": "2Gi", "accessMode": "ReadWriteOnce", "storageClassName": "s" },
        "env": [{ "name": "MORE", "value": "variables" }],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": { "kubernetes.io/os": "linux", "pool": "operators" },
        "tolerations": [{ "key": "pool", "operator": "Equal", "value": "tolerated", "effect": "NoSchedule" }],
        "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["attracted"] }] },
        ] } } },
        "podLabels": { "team": "platform" },
        "podAnnotations": { "note": "for the pod" },
        "podDisruptionBudget": { "enabled": true },
        "prometheusRule": { "enabled": true, "labels": { "release": "rules" }, "runbookUrl": "https://docs.example.com/runbooks" },
        "serviceMonitor": { "enabled": true, "labels": { "release": "monitor" }, "interval": "7s" },
        "priorityLevel": { "enabled": serves_priority_levels(&client).await, "shares": 30 },
        "page": { "enabled": true },
        "egress": { "endpoints": "leadership: single\nendpoints: []\n", "replicas": 3, "rbac": { "cluster": rules, "namespaces": { "shop": rules } },
            "authoritiesConfigMap": "authorities-of-endpoints", "resources": { "limits": { "memory": "333Mi" } },
            "env": [{ "name": "OF_EGRESS", "value": "x" }], "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
                { "weight": 1, "podAffinityTerm": { "topologyKey": "apart" } },
            ] } },
            "to": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.5/32" } }], "ports": [{ "protocol": "TCP", "port": 8081 }] }] },
        "networkPolicy": { "enabled": true, "metricsFrom": "reads-metrics", "telemetryTo": "collects",
            "apiServer": [{ "ipBlock": { "cidr": "192.0.2.3/32" } }],
            "registries": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.4/32" } }], "ports": [{ "protocol": "TCP", "port": 5000 }] }] },
    });
    all.as_object_mut()
        .unwrap()
        .extend(sets.as_object().unwrap().clone());
    for (path, _) in crate::deploy::chart::values() {
        let set = all.pointer(&format!("/{}", path.replace('.', "/")));
        assert!(set.is_some(), "no test sets the value {path} of the chart");
    }
    let (other, client, _folder) = bare_cluster().await;
    // Regression: an empty list of those who may reach a port was taken, and lets everyone in.
    let mut open = all.clone();
    open["webhook"]["from"] = json!([]);
    let error = not_rendered(&other, &client, &open).await;
    assert_contains(&error, "webhook is for the API servers only");
    let mut many = all.clone();
    many["egress"]["endpoints"] = "endpoints: []".into();
    let error = not_rendered(&other, &client, &many).await;
    assert_contains(&error, "more than one replica of egress");
    let objects = rendered(&other, &client, &all).await;
    for object in &objects {
        dry_run(&client, object).await;
    }
    let text_of_all = serde_json::to_string(&objects).unwrap();
    let words = "registry.example.org/team/host@sha256: … Always … to-pull … packed … \"name\":\"account\" … \
         of-account … role-of-account … account:shop:writer … 70m … 700Mi … 3Gi … \"claimName\":\"kept\" … \
         variables … reads-metrics … collects … 192.0.2.3/32 … 192.0.2.4/32 … \"interval\":\"7s\" … \
         \"secretName\":\"tls\" … system-cluster-critical … operators … tolerated … attracted … platform … \
         for the pod … \"release\":\"rules\" … \"release\":\"monitor\" … runbooks#operatorhostpluginfault … \
         \"secretName\":\"keys\" … \"secretName\":\"pull\" … OPERATOR_HOST_SIGNATURE_KEYS … \
         OPERATOR_HOST_CLIENT_CA … authorities … callers … \"replicas\":3 … 333Mi … OF_EGRESS … \"topologyKey\":\"apart\" … 192.0.2.5/32 … authorities-of-endpoints";
    let role = objects
        .iter()
        .find(|it| kind(it) == "Role" && it.name_any() == "operator-host-egress");
    assert_eq!(role.unwrap().namespace().as_deref(), Some("shop"));
    assert_contains(&text_of_all, words);
    let data = config_of(&comparable(objects));
    assert_eq!(data["webhook-ca.crt"].as_str().unwrap().trim(), "authority");
    let own = text.replace("../webhook/ca.crt", "webhook-ca.crt");
    assert_eq!(data["config.yaml"].as_str().unwrap().trim(), own.trim());
}

#[tokio::test]
async fn what_is_deployed_runs_all_four_operators_with_nothing_forbidden_and_is_removed_without_a_trace() {
    let cluster = own_cluster(Options::default().with_audit()).await;
    let client = cluster.client().await.unwrap();
    let mut objects = kustomized("manifests/deploy/base");
    deployed::for_server(&client, &mut objects).await.unwrap();
    manifests::apply(&client, &objects).await.expect("the manifests");
    let scenario = Scenario::within(&cluster, "deployed").await;
    let outside = deployed::unpack(&client, NAME, NAME, scenario.folder.path())
        .await
        .expect("the Deployment");
    assert_eq!(outside.account, (NAME.to_owned(), NAME.to_owned()));
    let token = cluster.kubeconfig_of_account(NAME, NAME).await.expect("a token");
    let scenario = scenario.with_kubeconfig(token);
    let variable = |name: &str| {
        let found = outside.environment.iter().find(|(variable, _)| variable == name);
        found.unwrap_or_else(|| panic!("{name} is not set")).1.clone()
    };
    let config = variable("OPERATOR_HOST_CONFIG");
    let cache = variable("OPERATOR_HOST_CACHE_DIR").display().to_string();
    let host = scenario.start_with(&config, &["--cache-dir", &cache]);
    for sample in ["mysqlcluster", "echo", "myapp", "hello"] {
        let text = text(&format!("manifests/samples/{sample}.yaml"));
        scenario
            .apply(&text.replace("namespace: default", "namespace: deployed"))
            .await;
    }
    for (kind, name, _, _) in SAMPLES {
        scenario
            .until(kind, name, "ready", |object| is_true(object, "Ready"))
            .await;
    }
    scenario.delete("v1/Pod", "hello-echo-pod-0").await;
    scenario
        .patch(
            "example.com/v1/MyApp",
            "hello-app",
            json!({ "spec": { "port": 81 } }),
        )
        .await;
    for (kind, name, _, _) in &SAMPLES[..3] {
        scenario.remove(kind, name).await;
    }
    let mut complaints = complaints(&host);
    complaints.retain(|line| !line.contains(BUDGET_NOT_SERVED));
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(host.stop().await.code(), Some(0));
    let events = cluster.audit_events().unwrap();
    let own: Vec<_> = events
        .iter()
        .filter(|event| event.user.username == USER)
        .collect();
    assert!(own.iter().any(|event| event.verb == "list") && own.iter().any(|event| event.verb == "patch"));
    let forbidden = own.iter().filter(|e| {
        e.response_status
            .as_ref()
            .is_some_and(|status| status.code == 403)
    });
    // The test itself asks, as the same account, whether its permissions are in effect yet.
    let forbidden = forbidden.filter(|e| !e.request_uri.contains("/selfsubjectrulesreviews"));
    let forbidden: Vec<_> = forbidden
        .map(|e| format!("{} {}", e.verb, e.request_uri))
        .collect();
    assert!(forbidden.is_empty(), "{forbidden:#?}");

    // The last one still has its finalizer, and the host is uninstalled.
    scenario.delete("fraim.co.jp/v1/Hello", "hello").await;
    let config = base().join("config/config.yaml");
    let mut uninstall = program(&["uninstall", "--config"]);
    uninstall.arg(config).env("KUBECONFIG", cluster.kubeconfig());
    let printed = uninstall.ends(0);
    let words = "Hello deployed/hello released: it is being deleted and skips its cleanup";
    assert_contains(&printed, words);
    scenario.until_gone("fraim.co.jp/v1/Hello", "hello").await;
}

#[test]
fn the_image_the_kustomization_and_the_chart_are_of_the_same_version() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, words) in [
        ("Dockerfile", format!("ARG VERSION={version}\n")),
        (
            "manifests/deploy/base/kustomization.yaml",
            format!("newTag: {version}\n"),
        ),
        ("manifests/helm/Chart.yaml", format!("appVersion: {version}\n")),
        ("manifests/helm/Chart.yaml", format!("\nversion: {version}\n")),
    ] {
        assert!(text(file).contains(&words), "{words:?} is not in {file}");
    }
}
