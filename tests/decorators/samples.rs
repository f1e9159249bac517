//! The samples that decorate: Tenant on namespaces, and Reloader on what has pods.

use super::*;

/// Starts a host with the samples in its folder of plugins, on a control plane of its own, and applies the Controllers of one.
async fn running(name: &str, ceilings: &str) -> (Scenario, ControlPlane, Host) {
    let cluster = own_cluster(Options::default().with_audit()).await;
    let scenario = Scenario::within(&cluster, &format!("sample-{name}")).await;
    let plugins = root().join("plugins/target/plugins");
    let ceilings = format!(
        "plugins: {}\nceilings: [{{files: true, {ceilings}}}]\ncontrollers: []\n",
        plugins.display()
    );
    let host = scenario.start_with(&scenario.file("config.yaml", ceilings), &[]);
    let manifest = root().join(format!("plugins/{name}/controller.yaml"));
    scenario.apply(&std::fs::read_to_string(manifest).unwrap()).await;
    scenario
        .until_condition(CONTROLLER, name, "Ready=True Running")
        .await;
    (scenario, cluster, host)
}

#[tokio::test]
async fn a_namespace_with_the_label_gets_what_its_team_may_use() {
    const QUOTA: &str = "v1/ResourceQuota";
    let ceilings = "decorates: [{apiGroups: [''], kinds: [Namespace]}], \
                    children: [{apiGroups: ['', networking.k8s.io, rbac.authorization.k8s.io], kinds: ['*']}]";
    let (scenario, cluster, host) = running("tenant", ceilings).await;
    let shop = scenario.beside("shop");
    let labels = async |labels: Value| {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": labels}});
        scenario.apply(&namespace.to_string()).await;
    };
    labels(json!({"tenant": "blue"})).await;
    for kind in [
        "v1/LimitRange",
        "networking.k8s.io/v1/NetworkPolicy",
        "rbac.authorization.k8s.io/v1/RoleBinding",
        QUOTA,
    ] {
        shop.until_there(kind, "tenant").await;
    }
    let pods =
        |wanted: &'static str| move |quota: &DynamicObject| quota.data["spec"]["hard"]["pods"] == wanted;
    labels(json!({"tenant": "blue", "tenant-size": "large"})).await;
    shop.until(QUOTA, "tenant", "a larger quota", pods("200")).await;
    // What is wrong changes nothing, and an edit of a child is put right.
    labels(json!({"tenant": "blue", "tenant-size": "huge"})).await;
    // Kubernetes 1.20 takes no Events about cluster-scoped objects, so the Controller tells it alone there.
    eventually("the reason", async || {
        let told = scenario.program(&["explain", "namespace", "shop"]).ends(0);
        told.contains("Controller tenant: UnknownSize")
            .then_some(())
            .ok_or(told)
    })
    .await;
    shop.until(QUOTA, "tenant", "the same quota", pods("200")).await;
    labels(json!({"tenant": "blue"})).await;
    shop.until(QUOTA, "tenant", "the smaller quota", pods("20")).await;
    shop.patch(QUOTA, "tenant", json!({"spec": {"hard": {"pods": "9"}}}))
        .await;
    shop.until(QUOTA, "tenant", "the quota", pods("20")).await;
    labels(json!({})).await;
    shop.until_gone(QUOTA, "tenant").await;
    labels(json!({"tenant": "red"})).await;
    shop.until_there(QUOTA, "tenant").await;
    scenario.remove(CONTROLLER, "tenant").await;
    assert!(shop.get(QUOTA, "tenant").await.is_none());
    let written = scenario.all_writes(&cluster).await;
    assert_eq!(writes_to(&written, "namespaces"), Vec::<String>::new());
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_change_of_a_config_map_or_a_secret_starts_new_pods() {
    const SECRET: &str = "v1/Secret";
    let ceilings = "decorates: [{apiGroups: [apps], kinds: ['*']}], fields: [spec.template.metadata.annotations], \
                    reads: [{apiGroups: [''], kinds: [ConfigMap, Secret]}]";
    let (scenario, _cluster, host) = running("reloader", ceilings).await;
    let sum = |object: &DynamicObject| {
        let template = &object.data["spec"]["template"]["metadata"]["annotations"];
        template["example.com/checksum"].as_str().map(str::to_owned)
    };
    let changes = async |kind: &str, before: Option<String>| {
        let differs = |object: &DynamicObject| sum(object).is_some() && sum(object) != before;
        let object = scenario.until(kind, "web", "another checksum", differs).await;
        sum(&object)
    };
    let settings = async |value: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"greeting": value}});
        scenario.apply(&map.to_string()).await;
    };
    let text = std::fs::read_to_string(root().join("plugins/reloader/sample.yaml")).unwrap();
    scenario.apply(&text).await;
    settings("hello").await;
    let first = changes(DEPLOYMENT, None).await;
    settings("hi").await;
    let second = changes(DEPLOYMENT, first.clone()).await;
    // The same contents have the same checksum, and what it does not use changes nothing.
    settings("hello").await;
    assert_eq!(changes(DEPLOYMENT, second).await, first);
    let mut set: Value = serde_saphyr::from_str(&text).unwrap();
    set["kind"] = json!("StatefulSet");
    set["spec"]["serviceName"] = json!("web");
    set["spec"]["template"]["spec"]["volumes"] = json!([{"name": "key", "secret": {"secretName": "key"}}]);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": "a"}});
    scenario.apply(&secret.to_string()).await;
    scenario.apply(&set.to_string()).await;
    let with_secret = changes("apps/v1/StatefulSet", None).await;
    scenario
        .patch(SECRET, "key", json!({"stringData": {"key": "b"}}))
        .await;
    changes("apps/v1/StatefulSet", with_secret).await;
    let deployment = scenario.get(DEPLOYMENT, "web").await.unwrap();
    assert_eq!(sum(&deployment), first);
    // Without the label, and without the Controller, nothing of it is left.
    scenario
        .patch(
            DEPLOYMENT,
            "web",
            json!({"metadata": {"labels": {"reload": null}}}),
        )
        .await;
    let is_free = |object: &DynamicObject| sum(object).is_none();
    scenario.until(DEPLOYMENT, "web", "no checksum", is_free).await;
    scenario.remove(CONTROLLER, "reloader").await;
    let set = scenario.get("apps/v1/StatefulSet", "web").await.unwrap();
    assert!(is_free(&set));
    assert_eq!(host.stop().await.code(), Some(0));
}
