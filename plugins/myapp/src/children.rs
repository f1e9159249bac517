//! The desired objects of an application.

use operator_plugin::builders::{Container, Deployment, Service};
use operator_plugin::{Labels, json};

use crate::MyAppSpec;

fn selector(name: &str) -> Labels {
    Labels::new("app", name)
}

fn managed() -> Labels {
    Labels::new("managed-by", "operator-host")
}

pub(crate) fn deployment(name: &str, spec: &MyAppSpec) -> Deployment {
    let app = Container::new("app", &spec.image)
        .port("http", spec.port)
        .requests(&spec.resources.cpu, &spec.resources.memory)
        .limits(&spec.resources.cpu, &spec.resources.memory)
        .set("/env", json!(spec.env));
    Deployment::new(name, &selector(name))
        .labels(&managed())
        .pod_labels(&managed())
        .replicas(spec.replicas)
        .container(app)
}

pub(crate) fn service(name: &str, spec: &MyAppSpec) -> Service {
    Service::new(name, &selector(name))
        .labels(&selector(name))
        .labels(&managed())
        .port("http", spec.port)
        .set("/spec/type", "ClusterIP")
}
