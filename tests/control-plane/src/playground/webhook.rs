//! The webhook of the host in the local cluster: it validates resources, sets defaults, and converts versions.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use control_plane::{deployed, manifests};
use kube::api::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::host::Host;

/// How long the host may take until it answers.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a file is read, or an object is sent again.
const PERIOD: Duration = Duration::from_millis(100);

/// A certificate that is its own authority, for the webhook of a configuration.
pub(crate) struct Certificate {
    config: PathBuf,
    file: PathBuf,
}

impl Certificate {
    /// Creates the certificate that the configuration names. Returns `None` if there is no
    /// webhook in the configuration.
    pub(crate) async fn create(config: &Path) -> anyhow::Result<Option<Self>> {
        let text = std::fs::read_to_string(config).with_context(|| config.display().to_string())?;
        let Ok(configuration) = serde_saphyr::from_str::<Value>(&text) else {
            // The host says what is wrong with it.
            return Ok(None);
        };
        let path = |field: &str| {
            let path = configuration["webhook"][field].as_str()?;
            Some(config.parent().unwrap_or(Path::new("")).join(path))
        };
        let (Some(file), Some(key)) = (path("certificate"), path("key")) else {
            return Ok(None);
        };
        for file in [&file, &key] {
            let folder = file.parent().unwrap_or(Path::new(""));
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let output = Command::new("openssl")
            .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30".split(' '))
            .args([
                "-subj",
                "/CN=operator-host",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&file)
            .output()
            .await
            .context("cannot run openssl")?;
        ensure!(
            output.status.success(),
            "openssl cannot create {}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(Some(Self {
            config: config.to_owned(),
            file,
        }))
    }
}

/// The webhook of a host.
pub(crate) struct Webhook {
    certificate: Certificate,
    program: PathBuf,
    log: PathBuf,
    compiled: (&'static str, PathBuf),
    crds: PathBuf,
}

impl Webhook {
    /// `crds` are the files of the definitions.
    pub(crate) fn new(certificate: Certificate, host: &Host, crds: &Path) -> Self {
        Self {
            crds: crds.to_owned(),
            certificate,
            program: host.program().to_owned(),
            log: host.log().to_owned(),
            compiled: host.compiled(),
        }
    }

    /// Waits until the host answers, and makes the API server ask it.
    pub(crate) async fn install(&self, client: &Client) -> anyhow::Result<()> {
        let log = self.log.display();
        let address = tokio::time::timeout(LIMIT, serves(&self.log)).await;
        let address = address.with_context(|| format!("the host serves no webhook; see {log}"))?;
        let (variable, compiled) = &self.compiled;
        let config = self.config()?;
        let mut command = Command::new(&self.program);
        command
            .arg("webhook-manifests")
            .arg("--config")
            .arg(config)
            .arg("--url")
            .arg(format!("https://127.0.0.1:{}/validate", address.port()))
            .arg("--ca")
            .arg(&self.certificate.file)
            .env(variable, compiled)
            .kill_on_drop(true);
        // They exist since Kubernetes 1.28.
        if deployed::minor(client).await? < 28 {
            command.arg("--no-match-conditions");
        }
        let output = command.output().await.context("cannot run the host")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let text = String::from_utf8(output.stdout)?;
        let mut objects: Vec<DynamicObject> = serde_saphyr::from_multiple(&text)?;
        let files = manifests::read(&self.crds).unwrap_or_default();
        objects.iter_mut().for_each(|object| prefer_file(object, &files));
        manifests::apply(client, &objects).await?;
        Ok(())
    }

    /// Returns a configuration without the controllers whose plugins are not there: a sample whose tool-chain is missing is left
    /// out, and when it comes later, this is called again.
    fn config(&self) -> anyhow::Result<PathBuf> {
        let original = &self.certificate.config;
        let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(original)?)?;
        let folder = config["plugins"].as_str().unwrap_or_default();
        let folder = std::path::absolute(original.parent().unwrap_or(Path::new("")).join(folder))?;
        let Some(controllers) = config["controllers"].as_array_mut() else {
            return Ok(original.clone());
        };
        let all = controllers.len();
        controllers.retain(|controller| {
            controller["plugin"]
                .as_str()
                .is_none_or(|file| folder.join(file).exists())
        });
        if controllers.len() == all {
            return Ok(original.clone());
        }
        config["plugins"] = json!(folder);
        // Its files are beside the original.
        config["webhook"].take();
        let copy = self.log.with_file_name("without-missing-plugins.yaml");
        std::fs::write(&copy, config.to_string())?;
        Ok(copy)
    }

    /// Returns how many versions of plugins the host has loaded, from its log. Each may have another definition.
    pub(crate) async fn loaded(&self) -> usize {
        let text = tokio::fs::read_to_string(&self.log).await.unwrap_or_default();
        text.matches("\"plugin loaded\"").count()
    }
}

/// Takes all of a definition from its file, but its conversion and which of its versions are served: without a webhook only
/// the stored one is. A plugin contains the file as it was when the plugin was built.
fn prefer_file(printed: &mut DynamicObject, files: &[DynamicObject]) {
    let is_it = |file: &&DynamicObject| file.types == printed.types && file.name_any() == printed.name_any();
    let Some(file) = files.iter().find(is_it) else {
        return;
    };
    let spec = std::mem::replace(&mut printed.data, file.data.clone())["spec"].take();
    printed.data["spec"]["conversion"] = spec["conversion"].clone();
    for version in printed.data["spec"]["versions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        let mut versions = spec["versions"].as_array().into_iter().flatten();
        if let Some(same) = versions.find(|it| it["name"] == version["name"]) {
            version["served"] = same["served"].clone();
        }
    }
}

/// Applies samples. While the host fills its caches, it makes no decision, and the API server refuses them.
pub(crate) async fn apply_when_decided(client: &Client, samples: &[DynamicObject]) -> anyhow::Result<()> {
    let start = std::time::Instant::now();
    loop {
        match manifests::apply(client, samples).await {
            Err(error) if error.to_string().contains("failed calling webhook") && start.elapsed() < LIMIT => {
            }
            applied => return applied,
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Returns the address of the webhook, from the host's log.
async fn serves(log: &Path) -> SocketAddr {
    loop {
        let text = tokio::fs::read_to_string(log).await.unwrap_or_default();
        if let Some(address) = text.lines().find_map(address) {
            return address;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Returns the address in the line of the log about the webhook.
fn address(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_it = line["message"] == "serving the webhook";
    line["address"].as_str().filter(|_| is_it)?.parse().ok()
}
