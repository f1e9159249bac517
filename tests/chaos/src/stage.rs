//! The environment of a round: a control plane, the proxy between it and the hosts, the hosts and their files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, ensure};
use control_plane::proxy::Proxy;
use control_plane::{ControlPlane, Options, create_namespace, manifests, node};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::files::{self, Files};
use crate::fleet::{Fleet, Shape};
use crate::oracle::Sample;
use crate::outside::Outside;

/// Audit the hosts' writes, and deletions by anyone. Reads and other clients would be most of the log.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
  users: [\"system:serviceaccount:operator-host:operator-host\"]
- level: Metadata
  verbs: [delete]
- level: None
";

/// Paths of the programs and files.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    /// The operator-host program.
    pub(crate) host: PathBuf,
    /// The folder with the built plugins.
    pub(crate) plugins: PathBuf,
    /// A folder for compiled plugins, which is kept between runs.
    pub(crate) compiled: PathBuf,
    /// Files and folders with the definitions of the samples.
    pub(crate) crds: Vec<PathBuf>,
}

/// The environment; see the module. Each part has its own lock, so that faults of different parts do not wait for
/// each other.
pub(crate) struct Stage {
    // Fields are dropped in this order: the hosts first.
    pub(crate) fleet: Mutex<Fleet>,
    pub(crate) outside: Outside,
    pub(crate) wire: Proxy,
    pub(crate) server: Mutex<ControlPlane>,
    /// The users' and the check's client, which does not use the proxy.
    pub(crate) client: Client,
    pub(crate) files: Files,
    pub(crate) audit_log: PathBuf,
    /// The kind that users must not touch at the moment.
    pub(crate) closed: std::sync::Mutex<Option<Sample>>,
    definitions: Vec<DynamicObject>,
    /// Roles and bindings of the hosts, as printed by `operator-host rbac`.
    pub(crate) rights: Vec<DynamicObject>,
    /// The roles for each shape that occurred, since the program compiles every plugin to print them.
    known_rights: BTreeMap<Shape, Vec<DynamicObject>>,
    folder: TempDir,
}

impl Stage {
    pub(crate) async fn build(paths: &Paths, shape: Shape) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("a folder")?;
        let policy = folder.path().join("audit-policy.yaml");
        std::fs::write(&policy, POLICY).context("write the audit policy")?;
        let options = Options {
            node: Some(node::Options {
                ready_after: Duration::from_millis(50),
                ..node::Options::default()
            }),
            durable: true,
            ..Options::default()
                .with_audit()
                .with_apiserver_flag(&format!("--audit-policy-file={}", policy.display()))
        };
        let mut server = ControlPlane::start(options).await?;
        let client = server.client().await?;
        let mut definitions = Vec::new();
        for crds in &paths.crds {
            definitions.extend(manifests::read(crds)?);
        }
        let file = folder.path().join("definitions.yaml");
        std::fs::write(&file, documents(&definitions)?).context("write the definitions")?;
        server.install(&file).await?;
        create_account(&client).await?;
        let files = Files::new(&client, folder.path(), &paths.plugins, shape).await?;
        let rights = rights(paths, &files, folder.path())?;
        manifests::apply(&client, &rights).await?;
        let (namespace, account) = (files::NAMESPACE, files::NAMESPACE);
        let kubeconfig = server.kubeconfig_of_account(namespace, account).await?;
        let wire = Proxy::start(&kubeconfig).await?;
        let fleet = Fleet::start(shape, paths, &files.config(), &wire.kubeconfig(), folder.path())?;
        let outside = Outside::start(&paths.host, server.kubeconfig(), folder.path()).await?;
        Ok(Self {
            fleet: Mutex::new(fleet),
            outside,
            wire,
            audit_log: server.audit_log().context("an audit log")?,
            server: Mutex::new(server),
            client,
            files,
            closed: std::sync::Mutex::default(),
            definitions,
            known_rights: BTreeMap::from([(shape, rights.clone())]),
            rights,
            folder,
        })
    }

    /// Replaces the hosts by others with another shape.
    pub(crate) async fn recast(&mut self, paths: &Paths, shape: Shape) -> anyhow::Result<()> {
        let mut fleet = self.fleet.lock().await;
        for replica in 0..fleet.shape.replicas {
            fleet.terminate(replica).await?;
        }
        self.files = Files::new(&self.client, self.folder.path(), &paths.plugins, shape).await?;
        self.rights = match self.known_rights.get(&shape) {
            Some(known) => known.clone(),
            None => rights(paths, &self.files, self.folder.path())?,
        };
        self.known_rights.insert(shape, self.rights.clone());
        manifests::apply(&self.client, &self.rights).await?;
        let kubeconfig = self.wire.kubeconfig();
        let folder = tempfile::tempdir_in(self.folder.path())
            .context("a folder")?
            .keep();
        *fleet = Fleet::start(shape, paths, &self.files.config(), &kubeconfig, &folder)?;
        Ok(())
    }

    /// Stops users from touching a kind, or lets them continue.
    pub(crate) fn close(&self, sample: Option<Sample>) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }

    /// Returns the definition of a kind.
    pub(crate) fn definition(&self, sample: Sample) -> anyhow::Result<&DynamicObject> {
        let resource = sample.resource();
        let name = format!("{}.{}", resource.plural, resource.group);
        let mut all = self.definitions.iter();
        let found = all.find(|definition| definition.name_any() == name);
        found.with_context(|| format!("no definition {name}: give it with --crds"))
    }

    /// Restarts hosts and the controller manager when they have ended, for as long as it is polled.
    pub(crate) async fn tend(&self) -> anyhow::Result<()> {
        loop {
            self.fleet.lock().await.tend()?;
            self.outside.tend()?;
            // A running fault holds the lock; then try again later.
            if let Ok(mut server) = self.server.try_lock() {
                server.tend_controller_manager()?;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Deletes a namespace without waiting.
pub(crate) async fn delete_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let api = Api::<Namespace>::all(client.clone());
    api.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Creates the ServiceAccount of the hosts.
async fn create_account(client: &Client) -> anyhow::Result<()> {
    create_namespace(client, files::NAMESPACE).await?;
    let account = json!({"metadata": {"name": files::NAMESPACE}});
    let account: ServiceAccount = serde_json::from_value(account)?;
    let api = Api::namespaced(client.clone(), files::NAMESPACE);
    api.create(&PostParams::default(), &account).await?;
    Ok(())
}

/// Returns the hosts' roles, as printed by the program itself.
fn rights(paths: &Paths, files: &Files, folder: &Path) -> anyhow::Result<Vec<DynamicObject>> {
    let mut command = Command::new(&paths.host);
    command.arg("rbac").arg("--config").arg(files.config());
    // Prevent it from asking a cluster: the definitions of all kinds are in files.
    command.env("KUBECONFIG", "/nonexistent");
    for crds in &paths.crds {
        let listed = std::fs::read_dir(crds).into_iter().flatten().flatten();
        let mut each: Vec<_> = listed.map(|entry| entry.path()).collect();
        if each.is_empty() {
            each.push(crds.clone());
        }
        each.iter().for_each(|file| {
            command.arg("--crd").arg(file);
        });
    }
    let output = command.output().context("run operator-host rbac")?;
    ensure!(
        output.status.success(),
        "operator-host rbac: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let file = folder.join("rights.yaml");
    std::fs::write(&file, output.stdout).context("write the rights")?;
    manifests::read(&file)
}

fn documents(objects: &[DynamicObject]) -> anyhow::Result<String> {
    let mut text = String::new();
    for object in objects {
        // JSON is YAML.
        text.push_str(&format!("---\n{}\n", serde_json::to_string(object)?));
    }
    Ok(text)
}
