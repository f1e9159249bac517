//! What is outside of the cluster: the servers of the samples that need one, where they are installed, and `operator-host egress`.

use std::path::Path;

use anyhow::Context as _;
use control_plane::servers::{PowerDns, RabbitMq};
use control_plane::{Component, ControlPlane, Output, manifests, token};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::{complain, step};

/// The folder of all of it, below that of the cluster.
pub(crate) const FOLDER: &str = "outside";

/// All of it, and what the samples need in the cluster. It ends when the value is dropped.
#[derive(Default)]
pub(crate) struct Outside {
    processes: Vec<Component>,
    _power_dns: Option<PowerDns>,
    _rabbit_mq: Option<RabbitMq>,
    endpoints: Vec<Value>,
    /// The credentials and the samples.
    pub(crate) objects: Vec<DynamicObject>,
}

impl Outside {
    /// Starts the servers, unless the user's file names others, and then `operator-host egress`, if there are any.
    pub(crate) fn start(
        host: &Path,
        file: &Path,
        samples: &Path,
        plane: &ControlPlane,
    ) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("no file of endpoints at {}", file.display()))?;
        let named: Value = serde_saphyr::from_str(&text)?;
        let folder = plane.data_dir().join(FOLDER);
        let mut this = Self::default();
        if named["endpoints"].as_array().is_some_and(|all| !all.is_empty()) {
            step(&format!(
                "{} names endpoints: no server is started, and the samples DnsRecord and RabbitUser are not created",
                file.display()
            ));
            this.run_egress(host, file, plane)?;
            return Ok(this);
        }
        // The cluster is useful without them.
        let started = [
            this.power_dns(&folder.join("powerdns"), samples),
            this.rabbit_mq(&folder.join("rabbitmq"), samples),
        ];
        for error in started.into_iter().filter_map(Result::err) {
            complain(&format!("a sample is missing: {error:#}"));
        }
        if !this.endpoints.is_empty() {
            let file = folder.join("endpoints.yaml");
            let endpoints = json!({ "endpoints": this.endpoints });
            std::fs::write(&file, endpoints.to_string())
                .with_context(|| format!("write {}", file.display()))?;
            this.run_egress(host, &file, plane)?;
        }
        Ok(this)
    }

    /// Says which process has ended, and why.
    pub(crate) fn check(&mut self) {
        for error in self.processes.iter_mut().filter_map(|it| it.check().err()) {
            complain(&format!("{error:#}"));
        }
    }

    fn power_dns(&mut self, folder: &Path, samples: &Path) -> anyhow::Result<()> {
        if !PowerDns::is_installed() {
            left_out("DnsRecord", PowerDns::PACKAGES);
            return Ok(());
        }
        create(folder)?;
        let (server, key) = (PowerDns::create(folder)?, token());
        self.processes.push(server.start(&key, "pdns.log")?);
        self.endpoints.push(endpoint(
            "dns",
            &format!("http://127.0.0.1:{}/api/v1/servers/localhost", server.api_port()),
            &["PATCH"],
            &json!({"secret": "default/pdns", "header": "X-API-Key"}),
        ));
        self.objects.push(secret("pdns", &json!({"token": key}))?);
        self.objects
            .extend(manifests::read(&samples.join("dns/sample.yaml"))?);
        step(&format!(
            "PowerDNS runs for the sample DnsRecord: dig @127.0.0.1 -p {} +short www.example.com",
            server.dns_port()
        ));
        self._power_dns = Some(server);
        Ok(())
    }

    fn rabbit_mq(&mut self, folder: &Path, samples: &Path) -> anyhow::Result<()> {
        if !RabbitMq::is_installed() {
            left_out("RabbitUser", RabbitMq::PACKAGES);
            return Ok(());
        }
        // It was left out, with a word, where the tool-chain is missing.
        if !samples.join("target/plugins/rabbitmq.wasm").exists() {
            return Ok(());
        }
        create(folder)?;
        let (user, password) = ("admin", token());
        let server = RabbitMq::create(folder, user, &password)?;
        self.processes.push(server.start()?);
        let api = format!("http://127.0.0.1:{}/api", server.api_port());
        let credentials = json!({"secret": "default/rabbitmq", "basic": true});
        self.endpoints
            .push(endpoint("rabbitmq", &api, &["PUT", "DELETE"], &credentials));
        self.objects.push(secret(
            "rabbitmq",
            &json!({"username": user, "password": password}),
        )?);
        self.objects
            .extend(manifests::read(&samples.join("rabbitmq/sample.yaml"))?);
        step(&format!(
            "RabbitMQ starts for the sample RabbitUser, with the management API at {api}; the Secret `rabbitmq` has its administrator"
        ));
        self._rabbit_mq = Some(server);
        Ok(())
    }

    fn run_egress(&mut self, host: &Path, endpoints: &Path, plane: &ControlPlane) -> anyhow::Result<()> {
        let (kubeconfig, log) = (plane.kubeconfig(), plane.data_dir().join("egress.log"));
        let environment = [
            ("KUBECONFIG", &*kubeconfig),
            ("OPERATOR_HOST_HEALTH_ADDR", Path::new("127.0.0.1:0")),
        ];
        let arguments = ["egress", "--endpoints", &endpoints.display().to_string()].map(str::to_owned);
        step(&format!(
            "operator-host egress carries out Externals; its log is {}",
            log.display()
        ));
        let output = Output::File(log);
        let egress = Component::spawn("operator-host egress", host, &arguments, &environment, output)?;
        self.processes.push(egress);
        Ok(())
    }
}

fn left_out(sample: &str, packages: &str) {
    step(&format!(
        "The sample {sample} is left out, because its server is not installed: sudo apt-get install --no-install-recommends {packages}"
    ));
}

fn create(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))
}

fn endpoint(name: &str, url: &str, methods: &[&str], credentials: &Value) -> Value {
    json!({
        "name": name, "url": url, "methods": methods, "namespaces": ["default"], "credentials": credentials,
        "allowPlain": true, "allowAddresses": ["127.0.0.1"],
    })
}

fn secret(name: &str, data: &Value) -> anyhow::Result<DynamicObject> {
    let metadata = json!({"name": name, "namespace": "default"});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
    serde_json::from_value(secret).context("a Secret")
}
