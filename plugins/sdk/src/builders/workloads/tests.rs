use super::*;

#[test]
fn a_deployment_selects_its_pods() {
    let selector = Labels::new("app", "web");
    let deployment = Deployment::new("web", &selector)
        .replicas(2)
        .labels(&Labels::new("team", "a"))
        .pod_labels(&Labels::new("tier", "front"))
        .pod_annotation("example.com/sum", "1")
        .service_account("web")
        .init_container(Container::new("init", "i"))
        .container(Container::new("web", "w").set("/securityContext/runAsNonRoot", true))
        .volume(Volume::empty("tmp"));
    assert_eq!(
        Value::from(deployment),
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "labels": { "app": "web", "team": "a" } },
            "spec": {
                "replicas": 2,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": {
                        "labels": { "app": "web", "tier": "front" },
                        "annotations": { "example.com/sum": "1" },
                    },
                    "spec": {
                        "serviceAccountName": "web",
                        "initContainers": [{ "name": "init", "image": "i" }],
                        "containers": [
                            { "name": "web", "image": "w", "securityContext": { "runAsNonRoot": true } },
                        ],
                        "volumes": [{ "name": "tmp", "emptyDir": {} }],
                    },
                },
            },
        })
    );
}

#[test]
fn a_container_has_its_ports_variables_mounts_and_resources() {
    let container = Container::new("a", "a:1")
        .command(["run"])
        .args(["--port", "80"])
        .port("http", 80)
        .env("A", "b")
        .env_from_secret("PASSWORD", "s", "password")
        .env_from_config_map("MODE", "c", "mode")
        .mount("data", "/data")
        .requests("1", "1Gi")
        .limits("2", "2Gi")
        .ready_when_http("/ready", "http")
        .live_while_http("/live", 80);
    assert_eq!(
        container.0,
        json!({
            "name": "a", "image": "a:1", "command": ["run"], "args": ["--port", "80"],
            "ports": [{ "name": "http", "containerPort": 80, "protocol": "TCP" }],
            "env": [
                { "name": "A", "value": "b" },
                { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "s", "key": "password" } } },
                { "name": "MODE", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "mode" } } },
            ],
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            "resources": {
                "requests": { "cpu": "1", "memory": "1Gi" },
                "limits": { "cpu": "2", "memory": "2Gi" },
            },
            "readinessProbe": { "httpGet": { "path": "/ready", "port": "http" } },
            "livenessProbe": { "httpGet": { "path": "/live", "port": 80 } },
        })
    );
}

#[test]
fn a_stateful_set_has_claims_and_a_service() {
    let set = StatefulSet::new("db", &Labels::new("app", "db"), "db")
        .replicas(3)
        .claim(PersistentVolumeClaim::new("data", "1Gi"));
    let set = Value::from(set);
    assert_eq!(set["spec"]["serviceName"], "db");
    assert_eq!(set["spec"]["replicas"], 3);
    assert_eq!(set["spec"]["selector"], json!({ "matchLabels": { "app": "db" } }));
    let claim = &set["spec"]["volumeClaimTemplates"][0];
    assert_eq!(claim["metadata"]["name"], "data");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
}

#[test]
fn the_pods_of_jobs_are_not_restarted() {
    let backup = Container::new("backup", "b");
    let job = Job::new("b").backoff_limit(2).container(backup.clone());
    let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "backup", "image": "b" }] });
    let expected = json!({ "backoffLimit": 2, "template": { "spec": pod } });
    assert_eq!(Value::from(job)["spec"], expected);
    let cron = CronJob::new("b", "0 1 * * *")
        .container(backup)
        .pod_annotation("a", "b");
    assert_eq!(
        Value::from(cron),
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "b" },
            "spec": {
                "schedule": "0 1 * * *", "concurrencyPolicy": "Forbid",
                "jobTemplate": { "spec": { "template": { "metadata": { "annotations": { "a": "b" } }, "spec": pod } } },
            },
        })
    );
}

#[test]
fn volumes_refer_to_what_they_hold() {
    let volumes = [
        Volume::config_map("a", "c"),
        Volume::secret("a", "s"),
        Volume::claim("a", "p"),
        Volume::other("a", json!({ "hostPath": { "path": "/dev" } })),
    ];
    assert_eq!(
        volumes.map(|volume| volume.0),
        [
            json!({ "name": "a", "configMap": { "name": "c" } }),
            json!({ "name": "a", "secret": { "secretName": "s" } }),
            json!({ "name": "a", "persistentVolumeClaim": { "claimName": "p" } }),
            json!({ "name": "a", "hostPath": { "path": "/dev" } }),
        ]
    );
}

#[test]
fn a_daemon_set_selects_its_pods() {
    let set = Value::from(DaemonSet::new("agent", &Labels::new("app", "agent")));
    assert_eq!(
        (&set["kind"], &set["apiVersion"]),
        (&json!("DaemonSet"), &json!("apps/v1"))
    );
    let expected = json!({ "app": "agent" });
    assert_eq!(set["spec"]["template"]["metadata"]["labels"], expected);
}
