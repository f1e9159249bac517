//! The desired objects of a cluster.

use operator_plugin::builders::PodDisruptionBudget;
use operator_plugin::{Failure, Labels, Object, PERSISTENT_VOLUME_CLAIM, Quantity, Value, json};

use crate::spec::{MySqlClusterSpec, Resources, SecretKey};

/// Which cluster an object belongs to. A label of this kind's own domain, so that no other operator's or chart's
/// pods can have it; its value distinguishes clusters in one namespace.
const CLUSTER_LABEL: &str = "database.example.com/cluster";

fn labels(cluster: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "mysql",
        "app.kubernetes.io/instance": cluster,
        CLUSTER_LABEL: cluster,
    })
}

/// The headless Service: each server is `POD.CLUSTER` in the namespace.
pub(crate) fn service(cluster: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": cluster, "labels": labels(cluster) },
        "spec": {
            "clusterIP": "None",
            "selector": { CLUSTER_LABEL: cluster },
            "ports": [{ "name": "mysql", "port": 3306, "targetPort": "mysql", "protocol": "TCP" }],
        },
    })
}

/// Lets a drain of nodes stop so many servers at the same time.
pub(crate) fn disruption_budget(cluster: &str, max_unavailable: u32) -> Value {
    PodDisruptionBudget::new(cluster, &Labels::new(CLUSTER_LABEL, cluster))
        .max_unavailable(max_unavailable)
        .into()
}

fn claim_name(cluster: &str, ordinal: u32) -> String {
    format!("data-{cluster}-{ordinal}")
}

/// The volume of one server. Refuses to shrink an existing claim, and to change its class: its rules in the schema do so
/// too, but not on every API server.
///
/// The claims of servers beyond `replicas` are not named: the host retains them as they are, and one that has
/// fallen behind grows when its server comes back.
pub(crate) fn claim(
    cluster: &str,
    ordinal: u32,
    spec: &MySqlClusterSpec,
    observed: &[Object],
) -> Result<Value, Failure> {
    let name = claim_name(cluster, ordinal);
    let wanted = &spec.storage.size;
    let existing = observed
        .iter()
        .find(|object| object.is(PERSISTENT_VOLUME_CLAIM) && object.name() == name);
    let present = existing.and_then(|claim| claim.text("/spec/resources/requests/storage"));
    if let Some(present) = present
        && let (Ok(from), Ok(to)) = (present.parse::<Quantity>(), wanted.parse::<Quantity>())
        && to < from
    {
        return Err(Failure::invalid(format!(
            "spec.storage.size: {wanted} is less than the {present} that PersistentVolumeClaim {name} has; a volume \
             cannot shrink: set {present} or more"
        )));
    }
    if let (Some(claim), Some(class)) = (existing, &spec.storage.class)
        && claim.text("/spec/storageClassName") != Some(class)
    {
        return Err(Failure::invalid(format!(
            "spec.storage.class: PersistentVolumeClaim {name} has another class than {class}; the class of a volume cannot \
             change: set the class that it has"
        )));
    }
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "labels": labels(cluster) },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": wanted } },
        },
    });
    if let Some(class) = &spec.storage.class {
        claim["spec"]["storageClassName"] = json!(class);
    }
    Ok(claim)
}

/// One server after the other is changed, the last first. Most of a pod is immutable, so it is replaced. A new image restarts the
/// container in place, and it takes a moment until the pod is no longer Ready.
const UPDATE: &str = "one,replace,last-first,min-ready=10";

/// One server. Its spec depends only on the cluster's spec, so every reconcile returns the same pod.
pub(crate) fn pod(cluster: &str, ordinal: u32, spec: &MySqlClusterSpec, password: &SecretKey) -> Value {
    let name = format!("{cluster}-{ordinal}");
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels(cluster),
            "annotations": { "operator-host.dev/update": UPDATE },
        },
        "spec": {
            "hostname": name,
            "subdomain": cluster,
            "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": { "matchLabels": { CLUSTER_LABEL: cluster } },
                },
            }] } },
            "containers": [{
                "name": "mysql",
                "image": format!("mysql:{}", spec.version),
                "ports": [{ "name": "mysql", "containerPort": 3306, "protocol": "TCP" }],
                "env": [{
                    "name": "MYSQL_ROOT_PASSWORD",
                    "valueFrom": { "secretKeyRef": { "name": password.name, "key": password.key } },
                }],
                "resources": resources(&spec.resources),
                // While MySQL sets up its data it does not listen, so an open port means that it is ready.
                "readinessProbe": {
                    "tcpSocket": { "port": "mysql" },
                    "initialDelaySeconds": 5,
                    "periodSeconds": 5,
                },
                "volumeMounts": [{ "name": "data", "mountPath": "/var/lib/mysql" }],
            }],
            "volumes": [{
                "name": "data",
                "persistentVolumeClaim": { "claimName": claim_name(cluster, ordinal) },
            }],
        },
    });
    if let Some(Ok(pool)) = spec.buffer_pool_size.as_deref().map(str::parse::<Quantity>) {
        let argument = format!("--innodb-buffer-pool-size={}", pool.value());
        pod["spec"]["containers"][0]["args"] = json!([argument]);
    }
    pod
}

fn resources(resources: &Resources) -> Value {
    let mut amounts = json!({});
    for (name, amount) in [("cpu", &resources.cpu), ("memory", &resources.memory)] {
        if let Some(amount) = amount {
            amounts[name] = json!(amount);
        }
    }
    json!({ "requests": amounts, "limits": amounts })
}
