//! What others change in a child: the host puts right what it applied, and leaves all else alone.

use crate::support::prelude::*;

const DEPLOYMENT: &str = "apps/v1/Deployment";
const SERVICE: &str = "v1/Service";

const KINDS: &str = "children:\n\
     - {apiVersion: apps/v1, kind: Deployment}\n\
     - {apiVersion: v1, kind: Service}\n\
     - {apiVersion: v1, kind: Secret}\n\
     - {apiVersion: rbac.authorization.k8s.io/v1, kind: Role}\n\
     - {apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding}";

fn pod() -> Value {
    json!({
        "containers": [{
            "name": "web", "image": "web:1", "args": ["a"],
            "resources": { "limits": { "cpu": "1000m" } },
            "livenessProbe": { "httpGet": { "path": "/", "port": 80 } },
        }],
        "hostNetwork": false,
        "volumes": [{ "name": "empty", "emptyDir": {} }, { "name": "config", "configMap": { "name": "c" } }],
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] },
    })
}

async fn start(name: &str, children: &[Value]) -> (Scenario, Host) {
    let scenario = Scenario::new(name).await;
    let host = scenario.start(&controller("puppet.wasm", KINDS));
    scenario.wants("p", children).await;
    scenario.until_synced("p").await;
    (scenario, host)
}

/// Edits a child as a user does with `kubectl edit`.
async fn edit(scenario: &Scenario, kind: &str, name: &str, patch: Value) -> DynamicObject {
    let params = PatchParams::apply("kubectl-edit");
    let api = scenario.api(kind);
    api.patch(name, &params, &Patch::Strategic(patch))
        .await
        .expect("it is edited")
}

fn first_container(deployment: &DynamicObject) -> &Value {
    &deployment.data["spec"]["template"]["spec"]["containers"][0]
}

/// An edit that is put right at once: kind, name, patch, and whether the object is as wanted again.
type Edit = (&'static str, &'static str, Value, fn(&DynamicObject) -> bool);

#[tokio::test]
async fn an_edit_of_what_was_applied_is_put_right_whatever_it_replaces() {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "b" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "a" }],
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "r" }, "rules": [],
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" }, "stringData": { "user": "root" },
    });
    let children = [deployment("web", &pod()), service(), binding, role, secret];
    let (scenario, host) = start("drift-edits", &children).await;
    let within = |pod: Value| json!({ "spec": { "template": { "spec": pod } } });
    let edits: [Edit; 7] = [
        (
            DEPLOYMENT,
            "web",
            within(json!({ "containers": [{ "name": "web", "args": ["b"] }] })),
            |web| first_container(web)["args"] == json!(["a"]),
        ),
        (
            DEPLOYMENT,
            "web",
            json!({ "metadata": { "labels": { "operator-host.dev/controller": null } } }),
            |web| web.labels().contains_key("operator-host.dev/controller"),
        ),
        (
            DEPLOYMENT,
            "web",
            within(
                json!({ "volumes": [{ "name": "empty", "emptyDir": null, "hostPath": { "path": "/etc" } }] }),
            ),
            |web| {
                let volume = &web.data["spec"]["template"]["spec"]["volumes"][0];
                volume["emptyDir"] == json!({}) && volume["hostPath"].is_null()
            },
        ),
        (
            "rbac.authorization.k8s.io/v1/RoleBinding",
            "b",
            json!({ "subjects": [
                { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "a" },
                { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory" },
            ] }),
            |binding| {
                binding.data["subjects"]
                    .as_array()
                    .is_some_and(|all| all.len() == 1)
            },
        ),
        (
            "rbac.authorization.k8s.io/v1/Role",
            "r",
            json!({ "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }] }),
            |role| role.data["rules"].as_array().is_none_or(Vec::is_empty),
        ),
        ("v1/Secret", "s", json!({ "data": { "user": "" } }), |secret| {
            secret.data["data"]["user"] == "cm9vdA=="
        }),
        (
            SERVICE,
            "web",
            json!({ "spec": { "selector": { "app": "other" } } }),
            |web| web.data["spec"]["selector"]["app"] == "web",
        ),
    ];
    for (kind, name, patch, is_restored) in edits {
        let edited = edit(&scenario, kind, name, patch.clone()).await;
        assert!(!is_restored(&edited), "{patch} changes nothing");
        scenario
            .until(kind, name, &format!("as before {patch}"), is_restored)
            .await;
    }

    // What others add stays, and nothing is applied for it, nor after a restart.
    let quiet = scenario.all_writes(cluster().await).await.len();
    let note = json!({ "metadata": { "annotations": { "note": "a" } } });
    edit(&scenario, DEPLOYMENT, "web", note.clone()).await;
    edit(&scenario, SERVICE, "web", note).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let host = scenario.start(&controller("puppet.wasm", KINDS));
    host.until_log("reconcile done").await;
    let again = json!({ "metadata": { "annotations": { "note": "b" } } });
    let before = host.reconciles("drift-edits/p");
    edit(&scenario, DEPLOYMENT, "web", again).await;
    host.until_reconciles("drift-edits/p", before + 1).await;
    let writes = scenario.all_writes(cluster().await).await;
    let of_host: Vec<_> = writes[quiet..]
        .iter()
        .filter(|write| {
            write
                .object_ref
                .as_ref()
                .is_some_and(|object| !matches!(object.resource.as_str(), "puppets" | "pods"))
        })
        .map(|write| format!("{} {:?}", write.verb, write.object_ref))
        .collect();
    assert_eq!(of_host, Vec::<String>::new());
    let web = scenario.get(DEPLOYMENT, "web").await.unwrap();
    assert_eq!(web.metadata.annotations.unwrap()["note"], "b");
}

/// Regression: each of these ended in a refusal for ever, since an apply removes nothing that it does not own. And an object whose
/// entries were wiped, as some backup tools do, was never corrected, or always applied.
#[tokio::test]
async fn an_edit_that_the_merge_cannot_undo_is_replaced_and_an_object_without_managed_fields_is_applied_once()
{
    let children = [deployment("web", &pod()), service()];
    let (scenario, host) = start("drift-unions", &children).await;
    let before = scenario.writes_to("services").await.len();
    let wipe = json!({ "metadata": { "managedFields": [{}] } });
    scenario.patch(SERVICE, "web", wipe).await;
    let is_owned = |web: &DynamicObject| {
        let mut entries = web.managed_fields().iter();
        entries.any(|entry| entry.manager.as_deref() == Some("operator-host/puppet"))
    };
    scenario.until(SERVICE, "web", "owned again", is_owned).await;
    let reconciles = host.reconciles("drift-unions/p");
    let patch = json!({ "metadata": { "labels": { "a": "b" } } });
    edit(&scenario, SERVICE, "web", patch).await;
    host.until_reconciles("drift-unions/p", reconciles + 1).await;
    assert_eq!(scenario.writes_to("services").await.len(), before + 1);

    let within = |pod: Value| json!({ "spec": { "template": { "spec": pod } } });
    // Another member of a union; and what somebody has elsewhere stays.
    let patch = json!({ "metadata": { "annotations": { "note": "a" } } });
    edit(&scenario, DEPLOYMENT, "web", patch).await;
    let probe = json!({ "httpGet": null, "exec": { "command": ["true"] } });
    let container = json!({ "name": "web", "livenessProbe": probe, "tty": true });
    let patch = within(json!({ "containers": [container] }));
    edit(&scenario, DEPLOYMENT, "web", patch).await;
    let web = scenario
        .until(DEPLOYMENT, "web", "probed by HTTP again", |web| {
            let probe = &first_container(web)["livenessProbe"];
            probe["exec"].is_null() && probe["httpGet"]["port"] == 80
        })
        .await;
    assert_eq!(
        first_container(&web)["tty"],
        true,
        "another field of another manager"
    );
    assert_eq!(web.metadata.annotations.as_ref().unwrap()["note"], "a");
    until_true("the replacement owns no fields beside the apply", async || {
        let web = scenario.get(DEPLOYMENT, "web").await.unwrap();
        let managers = web
            .managed_fields()
            .iter()
            .filter_map(|entry| entry.manager.as_deref());
        managers
            .filter(|manager| *manager == "operator-host/puppet")
            .count()
            <= 1
    })
    .await;

    let volume = json!({ "name": "config", "configMap": null, "emptyDir": {} });
    let patch = within(json!({ "volumes": [volume] }));
    edit(&scenario, DEPLOYMENT, "web", patch).await;
    scenario
        .until(DEPLOYMENT, "web", "with its ConfigMap again", |web| {
            let volumes = web.data["spec"]["template"]["spec"]["volumes"]
                .as_array()
                .unwrap();
            volumes
                .iter()
                .any(|it| it["configMap"]["name"] == "c" && it["emptyDir"].is_null())
        })
        .await;

    // Another key of an element.
    let ports = json!({ "spec": { "ports": [
        { "$patch": "delete", "port": 80 }, { "name": "http", "port": 81, "protocol": "TCP" },
    ] } });
    edit(&scenario, SERVICE, "web", ports).await;
    scenario
        .until(SERVICE, "web", "at its port again", |web| {
            let ports = web.data["spec"]["ports"].as_array().unwrap();
            ports.len() == 1 && ports[0]["port"] == 80
        })
        .await;

    // A default that nobody owns.
    let mut recreated = deployment("web", &pod());
    recreated["spec"]["strategy"] = json!({ "type": "Recreate" });
    scenario.wants("p", &[recreated, service()]).await;
    scenario
        .until(DEPLOYMENT, "web", "recreated", |web| {
            let strategy = &web.data["spec"]["strategy"];
            strategy["type"] == "Recreate" && strategy["rollingUpdate"].is_null()
        })
        .await;
    scenario.until_synced("p").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_role_may_have_every_name_that_the_api_server_accepts() {
    const ROLE: &str = "rbac.authorization.k8s.io/v1/Role";
    let role = |name: &str, verb: &str| {
        let rules = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] }]);
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": name },
            "rules": rules })
    };
    let names = ["a, b=c", "grün ja?", "x#y\\z"];
    let (scenario, _host) = start("role-names", &names.map(|name| role(name, "get"))).await;
    assert_eq!(scenario.names(ROLE).await, names);
    let until = async |verbs: &[&str]| {
        eventually(&format!("roles with {verbs:?}"), async || {
            let roles = scenario.api(ROLE).list(&ListParams::default()).await.unwrap();
            let found: Vec<_> = roles
                .iter()
                .map(|role| &role.data["rules"][0]["verbs"][0])
                .collect();
            (found == verbs).then_some(()).ok_or_else(|| format!("{found:?}"))
        })
        .await;
    };
    scenario.wants("p", &names.map(|name| role(name, "list"))).await;
    until(&["list", "list", "list"]).await;
    scenario.wants("p", &[]).await;
    until(&[]).await;
}
