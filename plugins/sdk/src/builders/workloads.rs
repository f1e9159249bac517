//! Deployment, StatefulSet, DaemonSet, Job and CronJob, with their containers and volumes.

use serde_json::{Value, json};

use super::{PersistentVolumeClaim, add_labels, builder, object, push, put, put_at};
use crate::kinds::{CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, Kind, STATEFUL_SET};
use crate::labels::Labels;

/// Defines the builder of a kind with a pod template, whose parts are at these paths.
macro_rules! workload {
    ($(#[$documentation:meta])* $name:ident, $($template:literal),+) => {
        builder! {
            $(#[$documentation])*
            $name
        }

        impl $name {
            /// Adds a container.
            pub fn container(mut self, container: Container) -> Self {
                push(&mut self.0, &[$($template,)+ "spec", "containers"], container.0);
                self
            }

            /// Adds a container that must end before the others start.
            pub fn init_container(mut self, container: Container) -> Self {
                push(&mut self.0, &[$($template,)+ "spec", "initContainers"], container.0);
                self
            }

            /// Adds a volume, which containers mount by its name.
            pub fn volume(mut self, volume: Volume) -> Self {
                push(&mut self.0, &[$($template,)+ "spec", "volumes"], volume.0);
                self
            }

            /// Sets the ServiceAccount of the pods.
            pub fn service_account(self, name: impl Into<String>) -> Self {
                self.with(&[$($template,)+ "spec", "serviceAccountName"], name.into().into())
            }

            /// Adds labels to the pods.
            pub fn pod_labels(mut self, labels: &Labels) -> Self {
                add_labels(&mut self.0, &[$($template,)+ "metadata", "labels"], labels);
                self
            }

            /// Adds an annotation to the pods. Its change replaces them; see [`checksum`](crate::checksum).
            pub fn pod_annotation(self, key: &str, value: impl Into<String>) -> Self {
                self.with(&[$($template,)+ "metadata", "annotations", key], value.into().into())
            }
        }
    };
}

/// Returns a workload with a selector, and with pods that have its labels.
fn selecting(kind: Kind, name: String, selector: &Labels) -> Value {
    let mut workload = object(kind, name);
    let of_pods = ["spec", "template", "metadata", "labels"];
    for path in [
        &["metadata", "labels"][..],
        &["spec", "selector", "matchLabels"],
        &of_pods,
    ] {
        add_labels(&mut workload, path, selector);
    }
    workload
}

workload! {
    /// A Deployment.
    Deployment, "spec", "template"
}

impl Deployment {
    /// Creates a Deployment of pods with these labels, which it also has itself. The selector of an existing Deployment
    /// cannot change.
    pub fn new(name: impl Into<String>, selector: &Labels) -> Self {
        Self(selecting(DEPLOYMENT, name.into(), selector))
    }

    /// Sets the number of replicas. The default is 1. Leave it to a HorizontalPodAutoscaler if there is one.
    pub fn replicas(self, replicas: impl Into<i64>) -> Self {
        self.with(&["spec", "replicas"], replicas.into().into())
    }
}

workload! {
    /// A StatefulSet.
    StatefulSet, "spec", "template"
}

impl StatefulSet {
    /// Creates a StatefulSet of pods with these labels, which it also has itself, behind a headless Service.
    pub fn new(name: impl Into<String>, selector: &Labels, service: impl Into<String>) -> Self {
        let set = Self(selecting(STATEFUL_SET, name.into(), selector));
        set.with(&["spec", "serviceName"], service.into().into())
    }

    /// Sets the number of replicas. The default is 1.
    pub fn replicas(self, replicas: impl Into<i64>) -> Self {
        self.with(&["spec", "replicas"], replicas.into().into())
    }

    /// Gives each pod a claim like this one. Containers mount it by the claim's name. The claims of an existing
    /// StatefulSet cannot change.
    pub fn claim(mut self, claim: PersistentVolumeClaim) -> Self {
        push(&mut self.0, &["spec", "volumeClaimTemplates"], claim.into());
        self
    }
}

workload! {
    /// A DaemonSet.
    DaemonSet, "spec", "template"
}

impl DaemonSet {
    /// Creates a DaemonSet of pods with these labels, which it also has itself.
    pub fn new(name: impl Into<String>, selector: &Labels) -> Self {
        Self(selecting(DAEMON_SET, name.into(), selector))
    }
}

workload! {
    /// A Job.
    Job, "spec", "template"
}

impl Job {
    /// Creates a Job whose pods are not restarted: one that fails is replaced. The pods of an existing Job cannot
    /// change, so give a Job with other pods another name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(object(JOB, name.into())).with(&["spec", "template", "spec", "restartPolicy"], "Never".into())
    }

    /// Sets how many pods may fail before the Job has failed. The default is 6.
    pub fn backoff_limit(self, failures: impl Into<i64>) -> Self {
        self.with(&["spec", "backoffLimit"], failures.into().into())
    }
}

workload! {
    /// A CronJob.
    CronJob, "spec", "jobTemplate", "spec", "template"
}

impl CronJob {
    /// Creates a CronJob with a schedule such as `30 2 * * *`. Its pods are not restarted, and a Job that still runs
    /// stops the next from starting.
    pub fn new(name: impl Into<String>, schedule: impl Into<String>) -> Self {
        Self(object(CRON_JOB, name.into()))
            .with(&["spec", "schedule"], schedule.into().into())
            .with(&["spec", "concurrencyPolicy"], "Forbid".into())
            .set("/spec/jobTemplate/spec/template/spec/restartPolicy", "Never")
    }
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "give it to a workload"]
pub struct Container(Value);

impl Container {
    /// Creates a container of an image.
    pub fn new(name: impl Into<String>, image: impl Into<String>) -> Self {
        Self(json!({ "name": name.into(), "image": image.into() }))
    }

    /// Replaces the image's entry point.
    pub fn command<S: Into<String>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        put(&mut self.0, &["command"], texts(command));
        self
    }

    /// Sets the arguments.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        put(&mut self.0, &["args"], texts(args));
        self
    }

    /// Adds a TCP port, which Services and probes refer to by its name.
    pub fn port(mut self, name: &str, port: impl Into<i64>) -> Self {
        let port = json!({ "name": name, "containerPort": port.into(), "protocol": "TCP" });
        push(&mut self.0, &["ports"], port);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        let variable = json!({ "name": name, "value": value.into() });
        push(&mut self.0, &["env"], variable);
        self
    }

    /// Sets an environment variable to an entry of a Secret.
    pub fn env_from_secret(self, name: &str, secret: impl Into<String>, key: &str) -> Self {
        self.env_from("secretKeyRef", name, secret.into(), key)
    }

    /// Sets an environment variable to an entry of a ConfigMap.
    pub fn env_from_config_map(self, name: &str, config_map: impl Into<String>, key: &str) -> Self {
        self.env_from("configMapKeyRef", name, config_map.into(), key)
    }

    fn env_from(mut self, source: &str, name: &str, object: String, key: &str) -> Self {
        let mut variable = json!({ "name": name });
        put(&mut variable, &["valueFrom", source, "name"], object.into());
        put(&mut variable, &["valueFrom", source, "key"], key.into());
        push(&mut self.0, &["env"], variable);
        self
    }

    /// Mounts a volume of the pod at a path.
    pub fn mount(mut self, volume: &str, path: impl Into<String>) -> Self {
        let mount = json!({ "name": volume, "mountPath": path.into() });
        push(&mut self.0, &["volumeMounts"], mount);
        self
    }

    /// Requests processor time and memory, such as `100m` and `128Mi`.
    pub fn requests(self, cpu: impl Into<String>, memory: impl Into<String>) -> Self {
        self.resources("requests", cpu.into(), memory.into())
    }

    /// Limits processor time and memory. Kubernetes requests as much unless [`requests`](Self::requests) is set.
    pub fn limits(self, cpu: impl Into<String>, memory: impl Into<String>) -> Self {
        self.resources("limits", cpu.into(), memory.into())
    }

    fn resources(mut self, field: &str, cpu: String, memory: String) -> Self {
        let amounts = json!({ "cpu": cpu, "memory": memory });
        put(&mut self.0, &["resources", field], amounts);
        self
    }

    /// Makes the pod ready while this path answers over HTTP, at a port by number or by name.
    pub fn ready_when_http(self, path: &str, port: impl Into<Value>) -> Self {
        self.probe("readinessProbe", path, port.into())
    }

    /// Restarts the container when this path stops answering over HTTP, at a port by number or by name.
    pub fn live_while_http(self, path: &str, port: impl Into<Value>) -> Self {
        self.probe("livenessProbe", path, port.into())
    }

    fn probe(mut self, field: &str, path: &str, port: Value) -> Self {
        let get = json!({ "path": path, "port": port });
        put(&mut self.0, &[field, "httpGet"], get);
        self
    }

    /// Sets any field by its path, such as `/securityContext/runAsNonRoot`; see [`Deployment::set`].
    ///
    /// # Panics
    ///
    /// As [`Deployment::set`].
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        put_at(&mut self.0, path, value.into());
        self
    }
}

fn texts<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Value {
    let texts = texts.into_iter().map(|text| Value::String(text.into()));
    Value::Array(texts.collect())
}

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "give it to a workload"]
pub struct Volume(Value);

impl Volume {
    /// The entries of a ConfigMap as files.
    pub fn config_map(name: &str, config_map: impl Into<String>) -> Self {
        Self(json!({ "name": name, "configMap": { "name": config_map.into() } }))
    }

    /// The entries of a Secret as files.
    pub fn secret(name: &str, secret: impl Into<String>) -> Self {
        Self(json!({ "name": name, "secret": { "secretName": secret.into() } }))
    }

    /// The volume of a PersistentVolumeClaim.
    pub fn claim(name: &str, claim: impl Into<String>) -> Self {
        Self(json!({ "name": name, "persistentVolumeClaim": { "claimName": claim.into() } }))
    }

    /// A folder that is empty at first and lives as long as the pod.
    pub fn empty(name: &str) -> Self {
        Self(json!({ "name": name, "emptyDir": {} }))
    }

    /// Any other volume, from its fields except the name, such as `json!({ "hostPath": { "path": "/dev" } })`.
    pub fn other(name: &str, mut fields: Value) -> Self {
        put(&mut fields, &["name"], name.into());
        Self(fields)
    }
}

#[cfg(test)]
mod tests;
