//! Service, Ingress and NetworkPolicy.

use serde_json::{Value, json};

use super::{add_labels, builder, object, push};
use crate::kinds::{INGRESS, NETWORK_POLICY, SERVICE};
use crate::labels::Labels;

builder! {
    /// A Service.
    Service
}

impl Service {
    /// Creates a Service for the pods with these labels.
    pub fn new(name: impl Into<String>, selector: &Labels) -> Self {
        let mut service = object(SERVICE, name.into());
        add_labels(&mut service, &["spec", "selector"], selector);
        Self(service)
    }

    /// Adds a TCP port, which leads to the container port of the same name.
    pub fn port(self, name: &str, port: impl Into<i64>) -> Self {
        self.port_to(name, port, name)
    }

    /// Adds a TCP port, which leads to a container port, by number or by name.
    pub fn port_to(mut self, name: &str, port: impl Into<i64>, target: impl Into<Value>) -> Self {
        let port =
            json!({ "name": name, "port": port.into(), "targetPort": target.into(), "protocol": "TCP" });
        push(&mut self.0, &["spec", "ports"], port);
        self
    }

    /// Makes the Service headless: its name resolves to the addresses of the pods, and each pod of a StatefulSet gets a
    /// name of its own.
    pub fn headless(self) -> Self {
        self.with(&["spec", "clusterIP"], "None".into())
    }
}

builder! {
    /// An Ingress.
    Ingress
}

impl Ingress {
    /// Creates an Ingress without rules, for the cluster's default class.
    pub fn new(name: impl Into<String>) -> Self {
        Self(object(INGRESS, name.into()))
    }

    /// Sets the class.
    pub fn class(self, name: impl Into<String>) -> Self {
        self.with(&["spec", "ingressClassName"], name.into().into())
    }

    /// Sends requests for a host whose path begins with this prefix to a port of a Service, by the port's name.
    pub fn rule(mut self, host: impl Into<String>, prefix: &str, service: &str, port: &str) -> Self {
        let backend = json!({ "service": { "name": service, "port": { "name": port } } });
        let paths = json!([{ "path": prefix, "pathType": "Prefix", "backend": backend }]);
        let rule = json!({ "host": host.into(), "http": { "paths": paths } });
        push(&mut self.0, &["spec", "rules"], rule);
        self
    }

    /// Serves a host over TLS, with the certificate in a Secret.
    pub fn tls(mut self, host: impl Into<String>, secret: impl Into<String>) -> Self {
        let entry = json!({ "hosts": [host.into()], "secretName": secret.into() });
        push(&mut self.0, &["spec", "tls"], entry);
        self
    }
}

builder! {
    /// A NetworkPolicy.
    NetworkPolicy
}

impl NetworkPolicy {
    /// Creates a policy that denies all incoming connections to the pods with these labels, except those that it allows.
    pub fn new(name: impl Into<String>, pods: &Labels) -> Self {
        let mut policy = object(NETWORK_POLICY, name.into());
        add_labels(&mut policy, &["spec", "podSelector", "matchLabels"], pods);
        Self(policy).with(&["spec", "policyTypes"], json!(["Ingress"]))
    }

    /// Allows connections from the pods of the same namespace with these labels to TCP ports, by number or by name.
    pub fn allow_from<P: Into<Value>>(mut self, pods: &Labels, ports: impl IntoIterator<Item = P>) -> Self {
        let port = |port: P| json!({ "port": port.into(), "protocol": "TCP" });
        let mut rule = json!({ "ports": ports.into_iter().map(port).collect::<Vec<_>>() });
        let mut peer = Value::Null;
        add_labels(&mut peer, &["podSelector", "matchLabels"], pods);
        push(&mut rule, &["from"], peer);
        push(&mut self.0, &["spec", "ingress"], rule);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_denies_what_it_does_not_allow() {
        let policy = NetworkPolicy::new("db", &Labels::new("app", "db"));
        let denied = json!({ "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress"] });
        assert_eq!(Value::from(policy.clone())["spec"], denied);
        let policy = policy.allow_from(&Labels::new("app", "web"), [3306]);
        assert_eq!(
            Value::from(policy)["spec"]["ingress"],
            json!([{
                "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }],
                "ports": [{ "port": 3306, "protocol": "TCP" }],
            }])
        );
    }

    #[test]
    fn a_headless_service_has_no_address_of_its_own() {
        let service = Service::new("db", &Labels::new("app", "db")).headless();
        assert_eq!(
            Value::from(service.port_to("mysql", 3306, 3307))["spec"],
            json!({
                "clusterIP": "None", "selector": { "app": "db" },
                "ports": [{ "name": "mysql", "port": 3306, "targetPort": 3307, "protocol": "TCP" }],
            })
        );
    }
}
