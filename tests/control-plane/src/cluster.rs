//! The control plane as a whole: the order in which components are started, and how they are stopped and broken.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use kube::Client;

use crate::{
    audit::{self, AuditEvent},
    binaries::{self, Binaries},
    client,
    component::{Component, Output, POLL},
    data::{ADMIN, DataDir},
    manifests,
    node::Node,
    options::Options,
    ports::{self, Port},
};

/// Generous, for a busy machine on which other control planes start at the same time.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// How long a component may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// The enabled controllers. Those that need a cloud, a kubelet or a signing key are omitted, and so is the volume
/// binder: [`crate::node`] does its work.
const CONTROLLERS: &str = "clusterrole-aggregation,cronjob,daemonset,deployment,disruption,endpoint,endpointslice,\
                           garbagecollector,job,namespace,pv-protection,pvc-protection,replicaset,\
                           replicationcontroller,resourcequota,statefulset,ttl";

/// A running control plane. Dropping it kills its processes and removes its data.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped in this order: clients before servers.
    node: Option<Node>,
    controller_manager: Option<Component>,
    apiserver: Option<Component>,
    etcd: Component,
    data: DataDir,
    options: Options,
    audit: audit::Reader,
    binaries: Binaries,
    etcd_client_port: Port,
    etcd_peer_port: Port,
    apiserver_port: Port,
}

/// The data of a control plane that was stopped, for [`Options::with_data`]. Dropping it removes them.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) data: DataDir,
}

impl ControlPlane {
    /// Starts the components that the options ask for. Returns when the API server is ready, the namespace
    /// `default` exists and the simulated node is running.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let binaries = Binaries::find(options.controller_manager)?;
        let data = DataDir::new(options.data_dir.as_deref())?;
        if let Some(other) = &options.copy_of {
            data.copy(other)?;
        }
        let (etcd_client_port, etcd_peer_port) = (ports::reserve()?, ports::reserve()?);
        let apiserver_port = ports::reserve()?;
        data.write_credentials(apiserver_port.number, &options.users)?;
        let etcd = spawn_etcd(
            &data,
            &binaries,
            options.durable,
            [etcd_client_port.number, etcd_peer_port.number],
        )?;
        let mut this = Self {
            node: None,
            controller_manager: None,
            apiserver: None,
            etcd,
            data,
            options,
            audit: audit::Reader::default(),
            binaries,
            etcd_client_port,
            etcd_peer_port,
            apiserver_port,
        };
        this.start_apiserver().await?;
        if let Some(options) = this.options.node.clone() {
            this.node = Some(Node::start(&this.kubeconfig(), options).await?);
        }
        if this.options.controller_manager {
            this.start_controller_manager()?;
        }
        Ok(this)
    }

    /// Returns the administrator's kubeconfig, for `KUBECONFIG` and `kubectl`.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.data.kubeconfig(ADMIN)
    }

    /// Returns the kubeconfig of a user that the options named.
    pub fn kubeconfig_of(&self, user: &str) -> anyhow::Result<PathBuf> {
        let is_known = self.options.users.iter().any(|known| known.name == user);
        ensure!(
            is_known,
            "no user {user}: name it with Options::with_user before the start"
        );
        Ok(self.data.kubeconfig(user))
    }

    pub(crate) fn write_kubeconfig(
        &self,
        user: &str,
        token: &str,
        namespace: &str,
    ) -> anyhow::Result<PathBuf> {
        self.data
            .write_kubeconfig(user, token, self.apiserver_port.number, namespace)?;
        Ok(self.data.kubeconfig(user))
    }

    /// Returns a new client with the administrator's permissions and its own connections.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client::connect(&client::config_of(&self.kubeconfig()).await?)
    }

    /// Returns the folder with data, credentials and logs (`etcd.log`, `kube-apiserver.log`,
    /// `kube-controller-manager.log`).
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.data.root()
    }

    /// Returns the API server's address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.apiserver_port.number)
    }

    /// Stops the API server with a grace period of two seconds. Its port, data and certificates are kept.
    pub async fn stop_apiserver(&mut self) {
        if let Some(mut apiserver) = self.apiserver.take() {
            apiserver.stop(GRACE).await;
        }
    }

    /// Sends SIGKILL to the API server. Its port, data and certificates are kept for [`Self::start_apiserver`].
    pub fn kill_apiserver(&mut self) {
        self.apiserver = None;
    }

    /// Suspends the API server: connections stay open, and nothing is answered until `resume_apiserver`.
    pub fn pause_apiserver(&self) {
        self.apiserver.iter().for_each(Component::pause);
    }

    /// Resumes the API server.
    pub fn resume_apiserver(&self) {
        self.apiserver.iter().for_each(Component::resume);
    }

    /// Starts the API server again and returns when it is ready. Does nothing if it is running.
    pub async fn start_apiserver(&mut self) -> anyhow::Result<()> {
        if self.apiserver.is_none() {
            self.apiserver = Some(Component::spawn(
                "kube-apiserver",
                &self.binaries.kube_apiserver,
                &self.apiserver_flags(),
                &[],
                Output::File(self.data.path("kube-apiserver.log")),
            )?);
        }
        self.wait_ready().await
    }

    /// Stops the API server and starts it again.
    pub async fn restart_apiserver(&mut self) -> anyhow::Result<()> {
        self.stop_apiserver().await;
        self.start_apiserver().await
    }

    /// Starts kube-controller-manager without waiting for it. Does nothing if it is running.
    pub fn start_controller_manager(&mut self) -> anyhow::Result<()> {
        if self.controller_manager.is_some() {
            return Ok(());
        }
        let name = "kube-controller-manager";
        let program = match &self.binaries.kube_controller_manager {
            Some(program) => program.clone(),
            None => Binaries::find(true)?
                .kube_controller_manager
                .with_context(|| binaries::missing(name, &self.binaries.etcd.with_file_name("")))?,
        };
        let log = Output::File(self.data.path("kube-controller-manager.log"));
        let flags = controller_manager_flags(&self.kubeconfig(), &program);
        self.controller_manager = Some(Component::spawn(name, &program, &flags, &[], log)?);
        Ok(())
    }

    /// Restarts kube-controller-manager if it has ended by itself, as a kubelet would do. It ends when the API
    /// server is unavailable for long.
    pub fn tend_controller_manager(&mut self) -> anyhow::Result<()> {
        let ended = self
            .controller_manager
            .as_mut()
            .is_some_and(|it| it.exited().is_some());
        if ended {
            self.controller_manager = None;
            self.start_controller_manager()?;
        }
        Ok(())
    }

    /// Sends SIGKILL to kube-controller-manager if it is running: there is no garbage collection until it is
    /// started again.
    pub fn kill_controller_manager(&mut self) {
        self.controller_manager = None;
    }

    /// Restarts kube-controller-manager, so that its garbage collector knows every installed kind.
    pub async fn restart_controller_manager(&mut self) -> anyhow::Result<()> {
        if let Some(mut running) = self.controller_manager.take() {
            running.stop(GRACE).await;
        }
        self.start_controller_manager()
    }

    /// Applies the manifests of a file or a folder as the administrator, waits until the definitions among them are
    /// served, and restarts kube-controller-manager so that its garbage collector knows them.
    pub async fn install(&mut self, path: &Path) -> anyhow::Result<()> {
        let objects = manifests::read(path)?;
        manifests::apply(&self.client().await?, &objects).await?;
        if self.controller_manager.is_some() {
            self.restart_controller_manager().await?;
        }
        Ok(())
    }

    /// Sends SIGKILL to etcd. After [`Self::start_etcd`] it has all acknowledged writes only if the options ask for
    /// that ([`Options::durable`]).
    pub fn kill_etcd(&mut self) {
        self.etcd.kill();
    }

    /// Starts etcd again if it has ended, and returns when the API server is ready.
    pub async fn start_etcd(&mut self) -> anyhow::Result<()> {
        if self.etcd.exited().is_some() {
            let ports = [self.etcd_client_port.number, self.etcd_peer_port.number];
            self.etcd = spawn_etcd(&self.data, &self.binaries, self.options.durable, ports)?;
        }
        self.wait_ready().await
    }

    /// Suspends etcd: the API server answers nothing that needs the store until `resume_etcd`.
    pub fn pause_etcd(&self) {
        self.etcd.pause();
    }

    /// Resumes etcd.
    pub fn resume_etcd(&self) {
        self.etcd.resume();
    }

    /// Returns the audit log's file, if the options asked for it.
    #[must_use]
    pub fn audit_log(&self) -> Option<PathBuf> {
        self.options.audit.then(|| self.data.path("audit.log"))
    }

    /// Returns every write so far, and every request of a ServiceAccount, ordered by response.
    pub fn audit_events(&self) -> anyhow::Result<Vec<AuditEvent>> {
        self.audit_events_about("")
    }

    /// Returns those [`audit_events`](Self::audit_events) whose line in the log contains `text`, such as a
    /// namespace. The others are not parsed, which saves time in the log of a long run.
    pub fn audit_events_about(&self, text: &str) -> anyhow::Result<Vec<AuditEvent>> {
        let log = self
            .audit_log()
            .context("no audit log: start with Options::with_audit")?;
        self.audit.read_about(&log, text)
    }

    /// Fails with the end of its log when a component that should be running has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.etcd.check()?;
        self.apiserver.as_mut().map_or(Ok(()), Component::check)?;
        self.controller_manager.as_mut().map_or(Ok(()), Component::check)
    }

    /// Stops everything, each component with a grace period. Dropping does the same with SIGKILL.
    pub async fn shutdown(self) {
        drop(self.into_snapshot().await);
    }

    /// Stops everything, and returns the data for others to start with: they need no processor time to create the same kinds.
    pub async fn into_snapshot(mut self) -> Snapshot {
        drop(self.node.take());
        if let Some(mut controller_manager) = self.controller_manager.take() {
            controller_manager.kill();
        }
        self.stop_apiserver().await;
        self.etcd.resume();
        self.etcd.stop(GRACE).await;
        Snapshot { data: self.data }
    }

    /// Waits until `/readyz` answers 200 and the namespace `default` exists.
    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut client = None;
        loop {
            let last = match self.ready(&mut client).await {
                Ok(()) => return Ok(()),
                Err(error) => format!("{error:#}"),
            };
            self.etcd.check()?;
            let apiserver = self.apiserver.as_mut().context("kube-apiserver does not run")?;
            apiserver.check()?;
            if started.elapsed() > READY_LIMIT {
                return Err(apiserver.failed(&format!("was not ready after {READY_LIMIT:?} ({last})")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn ready(&self, client: &mut Option<Client>) -> anyhow::Result<()> {
        let client = match client {
            Some(client) => client,
            // The key is written after the certificate: an earlier client could trust half a certificate.
            None if !self.data.certificate().with_extension("key").exists() => {
                bail!("it has not written its certificate yet");
            }
            None => client.insert(self.client().await?),
        };
        // These two checks take another second, in steps of a second. The administrator needs neither; other users
        // need the roles.
        let mut checks =
            "/readyz?exclude=poststarthook/scheduling/bootstrap-system-priority-classes".to_owned();
        if self.options.users.is_empty() {
            checks.push_str("&exclude=poststarthook/rbac/bootstrap-roles");
        }
        let checks = http::Request::get(checks)
            .body(Vec::new())
            .map_err(kube::Error::HttpError)?;
        client.request_text(checks).await?;
        // The server creates it, too, a second later.
        client::create_namespace(client, "default").await
    }

    fn apiserver_flags(&self) -> Vec<String> {
        let path = |name: &str| self.data.path(name).display().to_string();
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_client_port.number),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            // The `kubernetes` Service has no endpoints, since nothing in this cluster could reach them.
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--secure-port={}", self.apiserver_port.number),
            format!("--cert-dir={}", path("certificates")),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", path("service-account.key")),
            format!(
                "--service-account-signing-key-file={}",
                path("service-account.key")
            ),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--enable-priority-and-fairness=false".to_owned(),
            "--max-requests-inflight=0".to_owned(),
            "--max-mutating-requests-inflight=0".to_owned(),
            format!("--disable-admission-plugins={}", self.disabled_admission()),
        ];
        if let Some(log) = self.audit_log() {
            flags.push(format!("--audit-policy-file={}", path("audit-policy.yaml")));
            flags.push(format!("--audit-log-path={}", log.display()));
            // In MB; by default the log is replaced at 100, and what was written before would be missing.
            flags.push("--audit-log-maxsize=100000".to_owned());
        }
        flags.extend(self.options.apiserver_flags.iter().cloned());
        flags
    }

    fn disabled_admission(&self) -> &'static str {
        match self.options.controller_manager {
            true => "ServiceAccount",
            false => "ServiceAccount,StorageObjectInUseProtection",
        }
    }
}

fn spawn_etcd(
    data: &DataDir,
    binaries: &Binaries,
    durable: bool,
    ports: [u16; 2],
) -> anyhow::Result<Component> {
    Component::spawn(
        "etcd",
        &binaries.etcd,
        &etcd_flags(data, durable, ports),
        &[],
        Output::File(data.path("etcd.log")),
    )
}

fn etcd_flags(data: &DataDir, durable: bool, [client_port, peer_port]: [u16; 2]) -> Vec<String> {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    let mut flags = vec![
        format!("--data-dir={}", data.path("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--log-level=warn".to_owned(),
        "--logger=zap".to_owned(),
        // The only member elects itself; with the defaults it would wait a second for others.
        "--heartbeat-interval=10".to_owned(),
        "--election-timeout=100".to_owned(),
    ];
    // Data that is deleted with the process needs no fsync, for which each write would wait. Without it etcd may
    // lose the last writes.
    if !durable {
        flags.push("--unsafe-no-fsync".to_owned());
    }
    flags
}

fn controller_manager_flags(kubeconfig: &Path, program: &Path) -> Vec<String> {
    let mut flags = vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--controllers={CONTROLLERS}"),
        "--leader-elect=false".to_owned(),
        // Disable the port: nothing uses it.
        "--secure-port=0".to_owned(),
        "--kube-api-qps=1000".to_owned(),
        "--kube-api-burst=2000".to_owned(),
        "--concurrent-gc-syncs=20".to_owned(),
    ];
    // Before 1.24 it also has an insecure port, which must be disabled; 1.24 removed the flag.
    if minor_version(program).is_some_and(|minor| minor < 24) {
        flags.push("--port=0".to_owned());
    }
    flags
}

/// Returns the 20 of `Kubernetes v1.20.2`.
fn minor_version(program: &Path) -> Option<u32> {
    let text = binaries::version_of(program).ok()?;
    text.split("v1.").nth(1)?.split('.').next()?.parse().ok()
}
