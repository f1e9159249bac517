//! The desired objects of a web application.

use operator_plugin::builders::{
    Container, CronJob, Deployment, HorizontalPodAutoscaler, Ingress, Job, PodDisruptionBudget, Service,
    ServiceAccount,
};
use operator_plugin::{CHECKSUM, DEPLOYMENT, Labels, Object, checksum, json};

use crate::spec::{Autoscale, Host, Schedule, Task, WebAppSpec};

/// The port's name in the pods and in the Service.
const HTTP: &str = "http";

/// The key of the session secret in its Secret.
pub(crate) const SESSION_KEY: &str = "key";

/// The name of the Secret whose value the host generates.
pub(crate) fn session_secret(name: &str) -> String {
    format!("{name}-session")
}

/// The name of the Job that runs before the deletion.
pub(crate) fn farewell_job(name: &str) -> String {
    format!("{name}-farewell")
}

/// The name of the Job that runs before the pods get this image. The pods of a Job cannot change, so that each image and
/// command has a Job of its own.
pub(crate) fn migration_job(name: &str, image: &str, task: &Task) -> String {
    let content = Object::from(json!({ "image": image, "command": task.command }));
    format!("{name}-migrate-{:.8}", checksum([&content]))
}

/// Labels of the pods that serve requests. Pods of Jobs do not have them, so that the Service does not send them any.
fn serving(name: &str) -> Labels {
    Labels::new("apps.example.com/webapp", name)
}

/// The application's container, without what only a server needs.
fn container(name: &str, spec: &WebAppSpec) -> Container {
    let resources = &spec.resources;
    let container = Container::new("app", &spec.image)
        .requests(&resources.cpu, &resources.memory)
        .limits(&resources.cpu, &resources.memory)
        .env_from_secret("SESSION_KEY", session_secret(name), SESSION_KEY);
    match &spec.settings {
        Some(settings) => container.set("/envFrom", json!([{ "configMapRef": { "name": settings } }])),
        None => container,
    }
}

pub(crate) fn service_account(name: &str) -> ServiceAccount {
    // The application does not talk to the API server.
    ServiceAccount::new(name).set("/automountServiceAccountToken", false)
}

/// `settings` is the checksum of the ConfigMap that the spec names: with another one the pods are replaced.
pub(crate) fn deployment(name: &str, spec: &WebAppSpec, settings: Option<String>) -> Deployment {
    let server = container(name, spec)
        .port(HTTP, spec.port)
        .ready_when_http(&spec.ready_path, HTTP);
    let deployment = Deployment::new(name, &serving(name))
        .service_account(name)
        .container(server);
    let deployment = match settings {
        Some(checksum) => deployment.pod_annotation(CHECKSUM, checksum),
        None => deployment,
    };
    match &spec.autoscale {
        // Only a new Deployment gets this number. After that the field is the autoscaler's.
        Some(autoscale) => deployment
            .replicas(autoscale.min)
            .annotation("operator-host.dev/leave", "spec.replicas"),
        None => deployment.replicas(spec.replicas),
    }
}

pub(crate) fn service(name: &str) -> Service {
    Service::new(name, &serving(name)).port_to(HTTP, 80, HTTP)
}

pub(crate) fn ingress(name: &str, host: &Host) -> Ingress {
    let mut ingress = Ingress::new(name).rule(&host.name, "/", name, HTTP);
    if let Some(class) = &host.class {
        ingress = ingress.class(class);
    }
    if let Some(secret) = &host.tls_secret {
        ingress = ingress.tls(&host.name, secret);
    }
    ingress
}

pub(crate) fn autoscaler(name: &str, autoscale: &Autoscale) -> HorizontalPodAutoscaler {
    HorizontalPodAutoscaler::new(name, DEPLOYMENT, name, autoscale.max)
        .min(autoscale.min)
        .cpu(autoscale.cpu_percent)
}

/// Lets nodes be drained one replica at a time. It would have no effect on a single replica.
pub(crate) fn disruption_budget(name: &str) -> PodDisruptionBudget {
    PodDisruptionBudget::new(name, &serving(name)).max_unavailable(1)
}

pub(crate) fn scheduled(name: &str, spec: &WebAppSpec, schedule: &Schedule) -> CronJob {
    CronJob::new(format!("{name}-schedule"), &schedule.cron)
        .service_account(name)
        .container(container(name, spec).command(&schedule.command))
}

/// A Job that runs a command once.
pub(crate) fn job(job: String, name: &str, spec: &WebAppSpec, task: &Task) -> Job {
    Job::new(job)
        .backoff_limit(2)
        .service_account(name)
        .container(container(name, spec).command(&task.command))
}
