//! MyApp: a Deployment with a Service in front of it.

mod children;
#[cfg(test)]
mod tests;

use operator_plugin::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A stateless application: replicas of one image behind a Service.
#[derive(Deserialize, JsonSchema)]
struct MyAppSpec {
    /// The image to run.
    #[schemars(length(min = 1))]
    image: String,
    /// How many replicas to run.
    #[serde(default = "defaults::replicas")]
    #[schemars(range(min = 1, max = 100))]
    replicas: i32,
    /// The port of the application and of the Service.
    #[serde(default = "defaults::port")]
    #[schemars(range(min = 1, max = 65535))]
    port: i32,
    /// Environment variables.
    #[serde(default)]
    env: Vec<EnvVar>,
    /// The resources of each replica, used for both requests and limits.
    #[serde(default)]
    resources: Resources,
}

/// An environment variable.
#[derive(Serialize, Deserialize, JsonSchema)]
struct EnvVar {
    /// Its name.
    #[schemars(length(min = 1))]
    name: String,
    // No default of an empty string: API servers of Kubernetes 1.20 take it for none and refuse the definition.
    /// Its value; empty when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

/// Processor time and memory.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Resources {
    /// Processor time, such as 500m or 2.
    #[serde(default = "defaults::cpu")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?m?$"))]
    cpu: String,
    /// Memory, such as 128Mi.
    #[serde(default = "defaults::memory")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"))]
    memory: String,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu: defaults::cpu(),
            memory: defaults::memory(),
        }
    }
}

mod defaults {
    pub(super) fn replicas() -> i32 {
        1
    }

    pub(super) fn port() -> i32 {
        8080
    }

    pub(super) fn cpu() -> String {
        "100m".to_owned()
    }

    pub(super) fn memory() -> String {
        "128Mi".to_owned()
    }
}

/// What the Deployment reports.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MyAppStatus {
    /// The phase of the application.
    phase: Phase,
    /// How many replicas exist.
    replicas: i64,
    /// How many of them are Ready.
    ready_replicas: i64,
    /// How many of them have been Ready for long enough.
    available_replicas: i64,
    /// When anything else in this status last changed.
    #[schemars(extend("format" = "date-time"))]
    last_update_time: String,
    /// The status in one line, for people.
    message: String,
}

/// The phase of an application.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Phase {
    /// Replicas are missing or not Ready.
    Pending,
    /// All replicas exist, are Ready and have the current version.
    Running,
    /// The Deployment does not progress, or cannot create its pods.
    Failed,
}

const PLUGIN: Plugin<MyAppSpec, MyAppStatus> = Plugin::new("example.com/v1", "MyApp", reconcile)
    .cleanup(cleanup)
    .validate(validate)
    .makes(&[DEPLOYMENT, SERVICE])
    .short_names(&["ma"])
    .names("^[a-z]([-a-z0-9]*[a-z0-9])?$", 63)
    .scale(Scale::new(".spec.replicas", ".status.replicas"))
    .columns(&[
        Column::string("Phase", ".status.phase"),
        Column::string("Ready", ".status.message"),
        Column::string("Image", ".spec.image").wide(),
    ]);
operator_plugin::register!(PLUGIN);

fn reconcile(request: &Request<MyAppSpec, MyAppStatus>) -> Result<Response<MyAppStatus>, Failure> {
    let Parent { name, spec, .. } = &request.parent;
    let status = observe(spec, request.child(DEPLOYMENT, name));
    let ready = status.phase == Phase::Running;
    let reason = match status.phase {
        Phase::Pending => "ReplicasNotReady",
        Phase::Running => "ReplicasReady",
        Phase::Failed => "DeploymentFailed",
    };
    let condition = Condition::ready(ready, reason, status.message.as_str());
    let status = request.stamp(status, |status| &mut status.last_update_time);
    Ok(Response::new(status)
        .child(children::deployment(name, spec))
        .child(children::service(name, spec))
        .condition(condition))
}

/// The garbage collector deletes the Deployment and the Service with their owner. The cleanup only publishes an Event.
fn cleanup(request: &Request<MyAppSpec, MyAppStatus>) -> Result<Response<MyAppStatus>, Failure> {
    let name = &request.parent.name;
    let message = format!("Deployment {name} and Service {name} are deleted with their owner");
    Ok(Response::done().event(Event::normal("CleanedUp", message)))
}

fn observe(spec: &MyAppSpec, deployment: Option<&Object>) -> MyAppStatus {
    let count = |path| {
        deployment
            .and_then(|deployment| deployment.integer(path))
            .unwrap_or_default()
    };
    let holds = |type_, status| deployment.and_then(|deployment| deployment.condition(type_)) == Some(status);
    let ready_replicas = count("/status/readyReplicas");
    let phase = if holds("Progressing", false) || holds("ReplicaFailure", true) {
        Phase::Failed
    } else if deployment.is_some_and(Object::is_ready) && ready_replicas == i64::from(spec.replicas) {
        Phase::Running
    } else {
        Phase::Pending
    };
    MyAppStatus {
        phase,
        replicas: count("/status/replicas"),
        ready_replicas,
        available_replicas: count("/status/availableReplicas"),
        last_update_time: String::new(),
        message: format!("{ready_replicas}/{} replicas ready", spec.replicas),
    }
}

/// Checks what the schema cannot: quantities.
fn validate(
    parent: &Parent<MyAppSpec, MyAppStatus>,
    _old: Option<&Parent<MyAppSpec, MyAppStatus>>,
) -> Vec<FieldError> {
    let spec = &parent.spec;
    let mut errors = Vec::new();
    let mut wrong = |path: &str, message: String| errors.push(FieldError::new(path, message));
    for (path, text) in [
        ("spec.resources.cpu", &spec.resources.cpu),
        ("spec.resources.memory", &spec.resources.memory),
    ] {
        if let Err(error) = text.parse::<Quantity>() {
            wrong(path, error.to_string());
        }
    }
    errors
}
