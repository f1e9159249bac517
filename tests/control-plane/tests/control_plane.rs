//! Tests of the control plane itself.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails by panicking, as the test does"
)]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Options, connect, node};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::wait::{Condition, await_condition},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const NAMESPACE: &str = "default";

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(60), future).await {
        Ok(value) => value,
        Err(_) => panic!("not within 60 s: {what}"),
    }
}

fn api<K>(client: &Client) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Api::namespaced(client.clone(), NAMESPACE)
}

async fn until<K>(api: &Api<K>, name: &str, what: &str, condition: impl Condition<K>)
where
    K: Resource + Clone + std::fmt::Debug + Send + DeserializeOwned + 'static,
{
    within(what, await_condition(api.clone(), name, condition))
        .await
        .unwrap();
}

async fn create<K>(api: &Api<K>, value: Value) -> K
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(value).unwrap())
        .await
        .unwrap()
}

fn pod(name: &str, claim: Option<&str>) -> Value {
    let volumes =
        claim.map(|claim| json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]));
    json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "main", "image": "main:1" }], "volumes": volumes },
    })
}

fn claim(name: &str) -> Value {
    let requests = json!({ "storage": "1Gi" });
    json!({
        "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": requests } },
    })
}

fn ready(pod: Option<&Pod>) -> bool {
    let conditions = pod
        .and_then(|pod| pod.status.as_ref()?.conditions.as_ref())
        .into_iter()
        .flatten();
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn has_size(size: &'static str) -> impl Fn(Option<&PersistentVolumeClaim>) -> bool {
    move |claim| {
        let status = claim.and_then(|claim| claim.status.as_ref());
        status.is_some_and(|status| {
            status.phase.as_deref() == Some("Bound")
                && status
                    .capacity
                    .as_ref()
                    .and_then(|capacity| capacity.get("storage"))
                    == Some(&Quantity(size.to_owned()))
        })
    }
}

#[tokio::test]
async fn a_pod_waits_for_its_claim_becomes_ready_and_goes() {
    let plane = ControlPlane::start(Options::default()).await.unwrap();
    let client = plane.client().await.unwrap();
    let (pods, claims) = (api::<Pod>(&client), api::<PersistentVolumeClaim>(&client));

    let mut held = claim("data");
    held["metadata"]["annotations"] = json!({ node::HOLD_BOUND: "true" });
    create(&claims, held).await;
    create(&pods, pod("db", Some("data"))).await;
    create(&pods, pod("web", None)).await;
    until(
        &pods,
        "web",
        "the pod without a claim is Ready",
        |pod: Option<&Pod>| ready(pod),
    )
    .await;
    assert!(
        pods.get("db").await.unwrap().spec.unwrap().node_name.is_none(),
        "it must wait for its claim"
    );

    let go = json!({ "metadata": { "annotations": { node::HOLD_BOUND: null } } });
    claims
        .patch("data", &PatchParams::default(), &Patch::Merge(go))
        .await
        .unwrap();
    until(&claims, "data", "the claim is bound", has_size("1Gi")).await;
    until(
        &pods,
        "db",
        "the pod with the claim is Ready",
        |pod: Option<&Pod>| ready(pod),
    )
    .await;

    let grow = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
    claims
        .patch("data", &PatchParams::default(), &Patch::Merge(grow))
        .await
        .unwrap();
    until(&claims, "data", "the claim has grown", has_size("2Gi")).await;

    let hold = |value: Value| json!({ "metadata": { "annotations": { node::HOLD_READY: value } } });
    pods.patch("web", &PatchParams::default(), &Patch::Merge(hold(json!("true"))))
        .await
        .unwrap();
    until(&pods, "web", "the held pod is not Ready", |pod: Option<&Pod>| {
        !ready(pod)
    })
    .await;
    pods.patch("web", &PatchParams::default(), &Patch::Merge(hold(Value::Null)))
        .await
        .unwrap();
    until(&pods, "web", "the pod is Ready again", |pod: Option<&Pod>| {
        ready(pod)
    })
    .await;

    pods.delete("db", &DeleteParams::default()).await.unwrap();
    until(&pods, "db", "the deleted pod is gone", |pod: Option<&Pod>| {
        pod.is_none()
    })
    .await;
    let volume = claims
        .get("data")
        .await
        .unwrap()
        .spec
        .unwrap()
        .volume_name
        .unwrap();
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    let volumes = Api::<PersistentVolume>::all(client);
    until(
        &volumes,
        &volume,
        "the volume went with its claim",
        |it: Option<&PersistentVolume>| it.is_none(),
    )
    .await;
    plane.shutdown().await;
}

#[tokio::test]
async fn a_deployment_gets_ready_pods_and_takes_them_along() {
    let plane = ControlPlane::start(Options::default()).await.unwrap();
    let client = plane.client().await.unwrap();
    let deployments = api::<Deployment>(&client);
    let labels = json!({ "app": "web" });
    let deployment = json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "main", "image": "main:1" }] },
            },
        },
    });
    create(&deployments, deployment).await;
    until(
        &deployments,
        "web",
        "three replicas are ready",
        |it: Option<&Deployment>| it.and_then(|it| it.status.as_ref()?.ready_replicas) == Some(3),
    )
    .await;
    let pods = api::<Pod>(&client);
    let name = pods.list(&Default::default()).await.unwrap().items[0].name_any();
    deployments
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    until(
        &pods,
        &name,
        "the garbage collector took the pods",
        |pod: Option<&Pod>| pod.is_none(),
    )
    .await;
}

fn holds(type_: &'static str) -> impl Fn(Option<&Job>) -> bool {
    move |job| {
        let conditions = job.and_then(|job| job.status.as_ref()?.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
    }
}

#[tokio::test]
async fn a_job_completes_or_fails_with_its_pods() {
    let plane = ControlPlane::start(Options::default()).await.unwrap();
    let client = plane.client().await.unwrap();
    let jobs = api::<Job>(&client);
    let job = |name: &str, annotations: Value| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "backoffLimit": 0,
                "template": {
                    "metadata": { "annotations": annotations },
                    "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "main:1" }] },
                },
            },
        })
    };
    create(&jobs, job("good", json!({}))).await;
    create(&jobs, job("bad", json!({ node::EXIT_CODE: "3" }))).await;
    create(&jobs, job("held", json!({ node::HOLD_READY: "true" }))).await;
    until(&jobs, "good", "the Job is complete", holds("Complete")).await;
    until(&jobs, "bad", "the Job has failed", holds("Failed")).await;

    // One that is held runs until it is released.
    let pods = api::<Pod>(&client);
    let of_held = ListParams::default().labels("job-name=held");
    let name = within("the held Job has a pod", async {
        loop {
            if let [pod] = &pods.list(&of_held).await.unwrap().items[..] {
                return pod.name_any();
            }
        }
    })
    .await;
    until(&pods, &name, "the held pod is Running", |pod: Option<&Pod>| {
        pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some("Running")
    })
    .await;
    assert!(!holds("Complete")(Some(&jobs.get("held").await.unwrap())));
    let go = json!({ "metadata": { "annotations": { node::HOLD_READY: null } } });
    pods.patch(&name, &PatchParams::default(), &Patch::Merge(go))
        .await
        .unwrap();
    until(&jobs, "held", "the released Job is complete", holds("Complete")).await;
    plane.shutdown().await;
}

#[tokio::test]
async fn the_api_server_comes_back_with_its_data_and_etcd_can_be_away() {
    let mut plane = ControlPlane::start(Options::default().with_audit())
        .await
        .unwrap();
    let client = plane.client().await.unwrap();
    let maps = api::<ConfigMap>(&client);
    create(
        &maps,
        json!({ "metadata": { "name": "kept" }, "data": { "a": "1" } }),
    )
    .await;
    plane.stop_apiserver().await;
    assert!(maps.get("kept").await.is_err(), "nobody may answer");
    plane.start_apiserver().await.unwrap();
    let kept = maps.get("kept").await.unwrap();
    assert_eq!(
        kept.data.unwrap(),
        BTreeMap::from([("a".to_owned(), "1".to_owned())])
    );

    plane.pause_etcd();
    let write = json!({ "data": { "a": "2" } });
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(write));
    let attempt = maps.patch("kept", &parameters, &patch);
    let attempt = tokio::time::timeout(Duration::from_millis(300), attempt).await;
    assert!(!matches!(attempt, Ok(Ok(_))), "no write without etcd");
    plane.resume_etcd();
    within("a write after etcd is back", async {
        while maps.patch("kept", &parameters, &patch).await.is_err() {}
    })
    .await;

    // The simulation continues after the watch gap.
    let pods = api::<Pod>(&client);
    create(&pods, pod("after", None)).await;
    until(
        &pods,
        "after",
        "a pod is Ready after the restart",
        |pod: Option<&Pod>| ready(pod),
    )
    .await;

    let writes = plane.audit_events().unwrap();
    let created = writes.iter().filter(|event| event.verb == "create");
    let mut named = created
        .filter_map(|event| event.object_ref.as_ref())
        .map(|object| object.name.as_str());
    assert!(named.any(|name| name == "kept"), "the audit log has the write");
    assert!(writes.iter().all(|event| event.verb != "get"), "and no reads");
}

#[tokio::test]
async fn two_run_side_by_side_and_leave_nothing() {
    let options = Options::bare().with_user("guest", &[]);
    let (one, two) = tokio::join!(ControlPlane::start(options), ControlPlane::start(Options::bare()));
    let (one, two) = (one.unwrap(), two.unwrap());
    let maps = api::<ConfigMap>(&one.client().await.unwrap());
    create(&maps, json!({ "metadata": { "name": "here" } })).await;
    let there = api::<ConfigMap>(&two.client().await.unwrap());
    assert!(there.get_opt("here").await.unwrap().is_none());
    let guest = api::<ConfigMap>(&one.client_of("guest").await.unwrap());
    let refused = guest.get("here").await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.is_forbidden()),
        "{refused}"
    );

    let (folder, url) = (one.data_dir().to_owned(), one.url());
    let started = Instant::now();
    drop(one);
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(!folder.exists());
    let address = url.strip_prefix("https://").unwrap();
    assert!(
        std::net::TcpStream::connect(address).is_err(),
        "nothing listens any more"
    );
}

#[tokio::test]
async fn an_account_may_do_what_its_roles_allow_as_soon_as_it_has_a_kubeconfig() {
    let plane = ControlPlane::start(Options::bare()).await.unwrap();
    let client = plane.client().await.unwrap();
    create(
        &api::<ServiceAccount>(&client),
        json!({ "metadata": { "name": "reader" } }),
    )
    .await;
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"] }]);
    let role = json!({ "metadata": { "name": "reader" }, "rules": rules });
    create(&api::<Role>(&client), role).await;
    let binding = json!({ "metadata": { "name": "reader" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
        "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": "default" }] });
    create(&api::<RoleBinding>(&client), binding).await;

    let kubeconfig = plane.kubeconfig_of_account("default", "reader").await.unwrap();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let reader = connect(&config).unwrap();
    reader.list_api_groups().await.expect("everybody may look around");
    let maps = api::<ConfigMap>(&reader);
    maps.list(&ListParams::default())
        .await
        .expect("what the role says");
    let refused = maps.get("one").await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.is_forbidden()),
        "{refused}"
    );
}

#[tokio::test]
async fn a_bad_flag_is_reported_with_the_log_of_the_api_server() {
    let started = ControlPlane::start(Options::bare().with_apiserver_flag("--no-such-flag")).await;
    let error = started.unwrap_err().to_string();
    assert!(error.contains("kube-apiserver ended with"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}

#[test]
fn a_control_plane_outlives_the_runtime_that_started_it() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let start =
        move || runtime().block_on(async { tokio::spawn(ControlPlane::start(Options::default())).await });
    let plane = std::thread::spawn(start).join().unwrap().unwrap().unwrap();
    runtime().block_on(async {
        let pods = api::<Pod>(&plane.client().await.unwrap());
        create(&pods, pod("later", None)).await;
        until(&pods, "later", "the pod is Ready", |pod: Option<&Pod>| ready(pod)).await;
    });
}

/// Checks the effect of each mode on the proxy's clients and on the API server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_injects_faults_on_demand() {
    use control_plane::proxy::{Mode, Proxy};
    use futures::StreamExt;
    use kube::api::{WatchEvent, WatchParams};

    let cluster = ControlPlane::start(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await
    .unwrap();
    let proxy = Proxy::start(&cluster.kubeconfig()).await.unwrap();
    let kubeconfig = Kubeconfig::read_from(proxy.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let through: Api<ConfigMap> = api(&connect(&config).unwrap());
    let direct: Api<ConfigMap> = api(&cluster.client().await.unwrap());
    let map = |name: &str| serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    let code = |error: kube::Error| match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };

    let params = PostParams::default();
    through.create(&params, &map("passed")).await.unwrap();
    let mut watch = through.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));

    proxy.set_mode(Mode::Refuse {
        status: 429,
        retry_after: Some(1),
    });
    assert_eq!(code(through.get("passed").await.unwrap_err()), Some(429));
    assert!(within("the watch ends", watch.next()).await.is_none());

    // First silence, then all of it.
    proxy.set_mode(Mode::Pass);
    let mut watch = through.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    watch.next().await.unwrap().unwrap();
    proxy.set_mode(Mode::Stall);
    direct.create(&params, &map("behind")).await.unwrap();
    let moment = Duration::from_millis(200);
    assert!(tokio::time::timeout(moment, watch.next()).await.is_err());
    assert!(tokio::time::timeout(moment, through.get("passed")).await.is_err());
    proxy.set_mode(Mode::Pass);
    assert!(matches!(
        within("the rest", watch.next()).await,
        Some(Ok(WatchEvent::Added(_)))
    ));

    // Only some requests are affected.
    proxy.set_mode_of("/configmaps/passed", Mode::Cut);
    assert_eq!(code(through.get("passed").await.unwrap_err()), None);
    through.get("behind").await.unwrap();

    proxy.set_mode(Mode::DropAnswers);
    assert_eq!(
        code(through.create(&params, &map("done")).await.unwrap_err()),
        None
    );
    direct.get("done").await.unwrap();

    proxy.set_mode(Mode::Cut);
    within("the watch breaks", async {
        while let Some(Ok(_)) = watch.next().await {}
    })
    .await;
    assert_eq!(code(through.get("passed").await.unwrap_err()), None);
    proxy.set_mode(Mode::Delay(moment));
    let before = Instant::now();
    through.get("passed").await.unwrap();
    assert!(before.elapsed() >= moment);

    let seen = proxy.take_seen();
    assert_eq!(seen.iter().filter(|seen| seen.is_watch()).count(), 2);
    assert_eq!(seen.iter().filter(|seen| seen.is_write()).count(), 2);
    assert_eq!(seen.iter().filter(|seen| seen.refused == Some(429)).count(), 1);
    cluster.shutdown().await;
}
