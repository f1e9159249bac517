//! Shared parts of all scenarios: a control plane, a namespace, a host process, and functions that wait.

// With paths, since `benches/main.rs` includes this file by its own.
#[path = "support/bystander.rs"]
pub mod bystander;
#[path = "support/measure.rs"]
pub mod measure;
#[path = "support/mount.rs"]
pub mod mount;
#[path = "support/program.rs"]
pub mod program;
#[path = "support/puppet.rs"]
pub mod puppet;
#[path = "support/reload_memory.rs"]
pub mod reload_memory;

use std::fmt::Write as _;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::LazyLock;
use std::time::Duration;

use control_plane::{AuditEvent, Component, ControlPlane, Options, Output, Snapshot, last_lines, manifests};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::runtime::wait::{self, await_condition};
use kube::{Api, Client, ResourceExt};
use operator_host_runtime::{Cache, Compiler, EngineOptions, Limits, Runtime, Subprocess};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::time::error::Elapsed;

/// What most scenarios use.
#[allow(unused_imports, reason = "the benchmarks use none of it")]
pub mod prelude {
    pub use std::path::{Path, PathBuf};
    pub use std::process::Command;
    pub use std::time::{Duration, Instant};

    pub use control_plane::proxy::{Mode, Proxy};
    pub use control_plane::{ControlPlane, Options};
    pub use kube::ResourceExt as _;
    pub use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
    pub use serde_json::{Value, json};

    pub use super::mount::Mount;
    pub use super::program::{Answer, Call as _, program};
    pub use super::puppet::*;
    pub use super::{
        Host, LIMIT, LIMITED, Scenario, cluster, condition, contains, eventually, own_cluster, plugin,
        resource, root, until_true, user, writes_to,
    };
}

/// How long anything may take before a scenario fails. Generous, since the machine is shared.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The program.
const HOST: &str = env!("CARGO_BIN_EXE_operator-host");

/// A user of the shared control plane whose permissions each scenario grants with a role.
pub const LIMITED: &str = "limited";

/// Returns the repository's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the file of a sample plugin that `plugins/build.sh` built.
pub fn plugin(name: &str) -> PathBuf {
    let file = root().join(format!("plugins/target/plugins/{name}.wasm"));
    assert!(
        file.is_file(),
        "{} is not there: run plugins/build.sh",
        file.display()
    );
    file
}

/// Returns a cache with the compiled sample plugins. Hosts that compile them at each start would spend most of their
/// time on that.
fn compiled() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
        let fill = {
            let folder = folder.clone();
            move || {
                let compiler = Compiler::Subprocess(Subprocess::program(HOST, 512 << 20));
                let cache = Cache::open(&folder, 1 << 30).expect("a cache");
                let runtime =
                    Runtime::with(EngineOptions::default(), compiler, Some(cache)).expect("a runtime");
                let tokio = tokio::runtime::Runtime::new().expect("threads");
                for name in ["puppet", "echo", "hello", "myapp", "mysql", "webapp"] {
                    let file = std::fs::read(plugin(name)).expect("a plugin");
                    tokio
                        .block_on(runtime.load(file, Limits::default()))
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            }
        };
        // A thread of another runtime must not wait for this one.
        std::thread::spawn(fill)
            .join()
            .expect("the sample plugins are compiled");
        folder
    });
    &FOLDER
}

/// Creates a host's cache in a folder, with the sample plugins in it.
fn warm_cache(folder: &Path) -> PathBuf {
    let cache = tempfile::tempdir_in(folder).expect("a folder").keep();
    for part in std::fs::read_dir(compiled()).expect("the cache").flatten() {
        let to = cache.join(part.file_name());
        DirBuilder::new().mode(0o700).create(&to).expect("a folder");
        for file in std::fs::read_dir(part.path()).expect("the cache").flatten() {
            // Another run of the tests may be writing it.
            if file.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let to = to.join(file.file_name());
            // An entry is replaced or removed, never changed, so it can be shared on one file system.
            std::fs::hard_link(file.path(), &to)
                .or_else(|_| std::fs::copy(file.path(), &to).map(drop))
                .expect("a copy");
        }
    }
    cache
}

/// Returns the control plane that scenarios share, with the kinds of samples and tests installed and an audit log.
pub async fn cluster() -> &'static ControlPlane {
    static CLUSTER: OnceCell<ControlPlane> = OnceCell::const_new();
    CLUSTER
        .get_or_init(|| own_cluster(Options::default().with_audit().with_user(LIMITED, &[])))
        .await
}

/// Starts a separate control plane for a scenario that breaks it, with the same kinds installed.
pub async fn own_cluster(options: Options) -> ControlPlane {
    static KINDS: OnceCell<Snapshot> = OnceCell::const_new();
    let kinds = async || {
        let mut cluster = ControlPlane::start(Options::bare())
            .await
            .expect("a control plane");
        for kinds in ["manifests/crds", "tests/fixtures/puppet/crds.yaml"] {
            cluster.install(&root().join(kinds)).await.expect("the kinds");
        }
        cluster.into_snapshot().await
    };
    let options = options.with_data(KINDS.get_or_init(kinds).await);
    ControlPlane::start(options).await.expect("a control plane")
}

/// The kinds that are in no namespace.
const CLUSTER_SCOPED: &str = "CustomResourceDefinition Node Namespace ClusterRole ClusterRoleBinding Controller \
                              ClusterPuppet MutatingWebhookConfiguration ValidatingWebhookConfiguration";

/// A scenario: a namespace in a cluster, and a folder for its files.
pub struct Scenario {
    pub client: Client,
    pub namespace: String,
    pub folder: TempDir,
    kubeconfig: PathBuf,
}

impl Scenario {
    /// Creates a scenario in the shared cluster, with its own namespace.
    pub async fn new(name: &str) -> Self {
        Self::within(cluster().await, name).await
    }

    /// Creates such a scenario, whose hosts run as the user [`LIMITED`].
    pub async fn limited(name: &str) -> Self {
        let kubeconfig = cluster().await.kubeconfig_of(LIMITED).expect("the user");
        Self::new(name).await.with_kubeconfig(kubeconfig)
    }

    /// Creates a scenario in its own cluster.
    pub async fn within(cluster: &ControlPlane, name: &str) -> Self {
        let client = cluster.client().await.expect("a client");
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        let namespaces = Api::<Namespace>::all(client.clone());
        let created = namespaces.create(&PostParams::default(), &namespace).await;
        created.expect("a namespace of its own");
        let folder = tempfile::tempdir().unwrap();
        // The host's own namespace distinguishes its records from those of other hosts in the cluster.
        let kubeconfig = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
        let own = kubeconfig.replace("namespace: default", &format!("namespace: {name}"));
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, own).expect("a kubeconfig");
        Self {
            client,
            namespace: name.to_owned(),
            folder,
            kubeconfig,
        }
    }

    /// Returns a scenario for a namespace that another one's host or test makes.
    pub fn beside(&self, namespace: &str) -> Self {
        Self {
            client: self.client.clone(),
            namespace: namespace.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            kubeconfig: self.kubeconfig.clone(),
        }
    }

    /// Sets the kubeconfig that hosts of this scenario use.
    pub fn with_kubeconfig(mut self, kubeconfig: PathBuf) -> Self {
        self.kubeconfig = kubeconfig;
        self
    }

    /// Returns the kubeconfig of the cluster.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Writes a file into the scenario's folder.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        file
    }

    /// Writes a configuration for this namespace with these controllers, a YAML list.
    pub fn config(&self, controllers: &str) -> PathBuf {
        self.config_in(&root().join("plugins/target/plugins"), controllers)
    }

    /// Writes such a configuration with plugins in this folder.
    pub fn config_in(&self, plugins: &Path, controllers: &str) -> PathBuf {
        let mut text = format!(
            "plugins: {}\nnamespaces: [{}]\ncontrollers:\n",
            plugins.display(),
            self.namespace
        );
        for line in controllers.lines() {
            let _ = writeln!(text, "  {line}");
        }
        self.file("config.yaml", text)
    }

    /// Writes such a configuration with additional lines at the top.
    pub fn config_with(&self, top: &str, controllers: &str) -> PathBuf {
        let text = std::fs::read_to_string(self.config(controllers)).unwrap();
        self.file("config.yaml", format!("{top}\n{text}"))
    }

    /// Starts one of several hosts, with its own name and log.
    pub fn start_named(&self, name: &str, config: &Path) -> Host {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let environment = [("HOSTNAME", name)];
        Host::start(config, &self.kubeconfig, &[], &environment, &folder)
    }

    /// Starts a host with these controllers.
    pub fn start(&self, controllers: &str) -> Host {
        self.start_with(&self.config(controllers), &[])
    }

    /// Starts a host with a configuration file and additional arguments.
    pub fn start_with(&self, config: &Path, arguments: &[&str]) -> Host {
        self.start_in(config, arguments, &[])
    }

    /// Starts a host with a configuration file, additional arguments, and additional environment variables.
    pub fn start_in(&self, config: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Host {
        Host::start(
            config,
            &self.kubeconfig,
            arguments,
            environment,
            self.folder.path(),
        )
    }

    /// Starts a host that keeps no compiled code.
    #[allow(dead_code, reason = "the benchmark uses it")]
    pub fn start_uncached(&self, controllers: &str, arguments: &[&str]) -> Host {
        let config = self.config(controllers);
        Host::start_through(&[], &config, &self.kubeconfig, arguments, &[], self.folder.path())
    }

    /// Starts a host in its own mount namespace, after running a shell script in it.
    pub fn start_after(&self, script: &str, config: &Path, arguments: &[&str]) -> Host {
        let script = format!("set -e\n{script}\nexec \"$0\" \"$@\"");
        let wrapper = ["unshare", "-m", "sh", "-c", &script].map(str::to_owned);
        Host::start_through(
            &wrapper,
            config,
            &self.kubeconfig,
            arguments,
            &[],
            self.folder.path(),
        )
    }

    /// Starts `operator-host egress` with a file of endpoints, as the replica of this name.
    #[allow(dead_code, reason = "the benchmark does not use it")]
    pub fn start_egress(&self, name: &str, endpoints: &Path) -> Host {
        self.start_egress_in(name, endpoints, &[])
    }

    /// Starts it with additional environment variables.
    pub fn start_egress_in(&self, name: &str, endpoints: &Path, more: &[(&str, &str)]) -> Host {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let log = folder.join("host.log");
        let arguments = ["egress", "--endpoints", &endpoints.display().to_string()].map(str::to_owned);
        let mut environment = vec![
            ("KUBECONFIG", self.kubeconfig()),
            ("OPERATOR_HOST_LOG", Path::new("info,operator_host_egress=debug")),
            ("OPERATOR_HOST_HEALTH_ADDR", Path::new("127.0.0.1:0")),
            ("HOSTNAME", Path::new(name)),
        ];
        environment.extend(more.iter().map(|(name, value)| (*name, Path::new(*value))));
        let output = Output::File(log.clone());
        let process = Component::spawn("egress", Path::new(HOST), &arguments, &environment, output);
        Host {
            process: process.expect("it starts"),
            log,
        }
    }

    /// Returns the API of a kind in this namespace, or in none; `kind` is as in [`resource`].
    pub fn api(&self, kind: &str) -> Api<DynamicObject> {
        self.api_in(&self.namespace, kind)
    }

    /// Returns the API of a kind in another namespace.
    pub fn api_in(&self, namespace: &str, kind: &str) -> Api<DynamicObject> {
        let resource = resource(kind);
        if CLUSTER_SCOPED.split(' ').any(|kind| kind == resource.kind) {
            return Api::all_with(self.client.clone(), &resource);
        }
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// Gives a user of the cluster, or another subject, a Role of this name with these rules.
    pub async fn grant(&self, name: &str, subject: Value, rules: Value) {
        let group = "rbac.authorization.k8s.io";
        let version = format!("{group}/v1");
        let role = json!({"apiVersion": version, "kind": "Role", "metadata": {"name": name}, "rules": rules});
        self.apply(&role.to_string()).await;
        let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name}, "subjects": [subject]});
        self.apply(&binding.to_string()).await;
    }

    /// Creates a ServiceAccount.
    pub async fn create_account(&self, name: &str) {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        self.apply(&account.to_string()).await;
    }

    /// Creates a ServiceAccount of the namespace's name with these roles and bindings, as which hosts then run.
    pub async fn with_account(self, cluster: &ControlPlane, roles: &[Value]) -> Self {
        let name = self.namespace.clone();
        self.create_account(&name).await;
        for role in roles {
            self.apply(&role.to_string()).await;
        }
        let kubeconfig = cluster.kubeconfig_of_account(&name, &name).await;
        self.with_kubeconfig(kubeconfig.expect("a token"))
    }

    /// Creates a namespace.
    pub async fn create_namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.apply(&namespace.to_string()).await;
    }

    /// Creates or changes an object from YAML with one field manager, as a user would.
    pub async fn apply(&self, yaml: &str) -> DynamicObject {
        let object: DynamicObject = serde_saphyr::from_str(yaml).expect("a manifest");
        let types = object.types.clone().expect("a type");
        let (api_version, kind) = (types.api_version, types.kind);
        let api = self.api(&format!("{api_version}/{kind}"));
        let params = PatchParams::apply("user").force();
        api.patch(&object.name_any(), &params, &Patch::Apply(&object))
            .await
            .expect("the manifest is taken")
    }

    /// Replaces the finalizers of an object.
    pub async fn set_finalizers(&self, kind: &str, name: &str, all: &[&str]) {
        self.patch(kind, name, json!({"metadata": {"finalizers": all}}))
            .await;
    }

    /// Changes an object with a JSON merge patch.
    pub async fn patch(&self, kind: &str, name: &str, patch: Value) -> DynamicObject {
        let patch = Patch::Merge(patch);
        self.api(kind)
            .patch(name, &PatchParams::default(), &patch)
            .await
            .expect("the patch is taken")
    }

    /// Deletes an object.
    pub async fn delete(&self, kind: &str, name: &str) {
        self.api(kind)
            .delete(name, &DeleteParams::default())
            .await
            .expect("it can be deleted");
    }

    /// Deletes an object, and waits until it is gone.
    pub async fn remove(&self, kind: &str, name: &str) {
        self.delete(kind, name).await;
        self.until_gone(kind, name).await;
    }

    /// Returns the object if it exists.
    pub async fn get(&self, kind: &str, name: &str) -> Option<DynamicObject> {
        self.api(kind).get_opt(name).await.expect("an answer")
    }

    /// Returns the names of all objects of a kind, sorted.
    pub async fn names(&self, kind: &str) -> Vec<String> {
        let list = self.api(kind).list(&ListParams::default()).await.expect("a list");
        let mut names: Vec<_> = list.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    }

    /// Waits until an object satisfies `condition`; `what` describes it in the failure message.
    pub async fn until(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        condition: impl Fn(&DynamicObject) -> bool,
    ) -> DynamicObject {
        let holds = |object: Option<&DynamicObject>| object.is_some_and(&condition);
        match self.await_condition(kind, name, holds).await {
            Ok(result) => result.expect("a watch").expect("an object"),
            Err(_) => panic!(
                "{kind} {name} never came to this: {what}\nit is: {}\nthe host's log ends:\n{}",
                serde_json::to_string_pretty(&self.get(kind, name).await).unwrap(),
                self.log_tail(),
            ),
        }
    }

    /// Waits for a condition as [`await_condition`] does, but watches again every few seconds: an API server may send nothing more on
    /// a watch that began while the definition of the kind changed.
    async fn await_condition(
        &self,
        kind: &str,
        name: &str,
        holds: impl Fn(Option<&DynamicObject>) -> bool,
    ) -> Result<Result<Option<DynamicObject>, wait::Error>, Elapsed> {
        let watch = async || loop {
            let watch = await_condition(self.api(kind), name, &holds);
            if let Ok(result) = tokio::time::timeout(LIMIT / 8, watch).await {
                return result;
            }
        };
        tokio::time::timeout(LIMIT, watch()).await
    }

    /// Waits until an object exists.
    pub async fn until_there(&self, kind: &str, name: &str) -> DynamicObject {
        self.until(kind, name, "there", |_| true).await
    }

    /// Waits until an Echo says that it is ready.
    pub async fn until_echo(&self, name: &str) -> DynamicObject {
        let is_ready = |echo: &DynamicObject| echo.data["status"]["isReady"] == true;
        self.until("my-operator.dev/v1/Echo", name, "ready", is_ready)
            .await
    }

    /// Waits until an object is deleted.
    pub async fn until_gone(&self, kind: &str, name: &str) {
        let gone = |object: Option<&DynamicObject>| object.is_none();
        assert!(
            self.await_condition(kind, name, gone).await.is_ok(),
            "{kind} {name} never went; it is {:?}",
            self.get(kind, name).await
        );
    }

    /// Waits until a condition is as `says`, such as `Ready=False ChildRefused: ConfigMap … not allowed`: its status, its
    /// reason, and words of its message, as in [`contains`]. Returns the message.
    pub async fn until_condition(&self, kind: &str, name: &str, says: &str) -> String {
        let (state, words) = says.split_once(": ").unwrap_or((says, ""));
        let (status, reason) = state.split_once(' ').expect("a status and a reason");
        let (type_, status) = status.split_once('=').expect("a type and a status");
        let message = |it: &Value| it["message"].as_str().unwrap_or_default().to_owned();
        let is_so =
            |it: &Value| it["status"] == status && it["reason"] == reason && contains(&message(it), words);
        let holds = |object: &DynamicObject| condition(object, type_).is_some_and(is_so);
        let object = self.until(kind, name, says, holds).await;
        message(condition(&object, type_).unwrap())
    }

    /// Waits for an Event about an object that is as `says`, such as `Warning BackOff: it was deleted`: its type, its
    /// reason, and words of its note, as in [`contains`]. Returns the note.
    pub async fn until_event(&self, name: &str, says: &str) -> String {
        let (state, words) = says.split_once(": ").unwrap_or((says, ""));
        let (type_, reason) = state.split_once(' ').expect("a type and a reason");
        let api = self.api("events.k8s.io/v1/Event");
        let note = |event: &DynamicObject| event.data["note"].as_str().unwrap_or_default().to_owned();
        let matches = |event: &DynamicObject| {
            event.data["regarding"]["name"] == name
                && event.data["type"] == type_
                && event.data["reason"] == reason
                && contains(&note(event), words)
        };
        eventually(&format!("an Event about {name}: {says}"), async || {
            let events = api.list(&ListParams::default()).await.expect("a list");
            let others = || {
                events
                    .iter()
                    .map(|event| format!("{} {}", event.data["reason"], note(event)))
            };
            let found = events.iter().find(|event| matches(event)).map(note);
            found.ok_or_else(|| others().collect::<Vec<_>>().join("\n"))
        })
        .await
    }

    /// Returns the end of the log of this scenario's hosts.
    pub fn log_tail(&self) -> String {
        let logs = ["host.log", "egress/host.log"].map(|log| tail(&self.folder.path().join(log)));
        logs.join("\n")
    }

    /// Returns [`Scenario::writes`] including everything observed so far. An object can be observed before its
    /// write is in the audit log, so this makes another write and waits for it.
    pub async fn all_writes(&self, cluster: &ControlPlane) -> Vec<AuditEvent> {
        let name = format!("mark-{}", self.writes(cluster).len());
        self.apply(&format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}"
        ))
        .await;
        let is_mark = |event: &AuditEvent| {
            let object = event.object_ref.clone().unwrap_or_default();
            object.namespace == self.namespace && object.name == name
        };
        eventually(&format!("{name} in the audit log"), async || {
            let marks = cluster.audit_events_about(&name).expect("the audit log");
            marks.iter().any(is_mark).then_some(()).ok_or_else(String::new)
        })
        .await;
        self.writes(cluster)
    }

    /// Returns the writes of hosts in this namespace, except Events.
    pub fn writes(&self, cluster: &ControlPlane) -> Vec<AuditEvent> {
        let events = cluster
            .audit_events_about(&self.namespace)
            .expect("the audit log");
        let own = |event: &AuditEvent| {
            let object = event.object_ref.clone().unwrap_or_default();
            object.namespace == self.namespace && object.resource != "events" && is_host(event)
        };
        events.into_iter().filter(own).collect()
    }
}

/// Returns what the writes to objects of this resource did, such as `patch a` or `patch a/status`.
pub fn writes_to(writes: &[AuditEvent], resource: &str) -> Vec<String> {
    let of_it = writes.iter().filter_map(|write| {
        let object = write.object_ref.clone()?;
        let part = if object.subresource.is_empty() { "" } else { "/" };
        let did = format!("{} {}{part}{}", write.verb, object.name, object.subresource);
        (object.resource == resource).then_some(did)
    });
    of_it.collect()
}

fn is_host(event: &AuditEvent) -> bool {
    event
        .field_manager()
        .is_some_and(|manager| manager.starts_with("operator-host/"))
        || event.verb == "delete"
}

/// Waits until `look` finds something, and returns that. Fails after a while with the state that it last returned.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(state) => assert!(
                tokio::time::Instant::now() < deadline,
                "never came: {what}; {state}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until something holds.
pub async fn until_true(what: &str, holds: impl AsyncFn() -> bool) {
    let look = async || holds().await.then_some(()).ok_or_else(String::new);
    eventually(what, look).await;
}

/// Returns a user, as a subject of [`Scenario::grant`].
pub fn user(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name})
}

/// Reports whether a text contains all of these words, parts that ` … ` divides, in whatever order.
pub fn contains(text: &str, words: &str) -> bool {
    words.split(" … ").all(|part| text.contains(part))
}

/// Returns the condition of a type.
pub fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    object.data["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == type_)
}

/// Converts `v1/Pod` or `group/version/Kind` to a resource. Plurals are regular, except those of the samples.
pub fn resource(kind: &str) -> ApiResource {
    let (api_version, kind) = kind.rsplit_once('/').expect("version/Kind");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    match kind {
        "Echo" => ApiResource::from_gvk_with_plural(&gvk, "echoes"),
        "Hello" => ApiResource::from_gvk_with_plural(&gvk, "helloes"),
        _ => ApiResource::from_gvk(&gvk),
    }
}

/// Installs the definitions in a YAML text and waits until they are served.
pub async fn install(client: &Client, folder: &Path, yaml: &str) {
    let file = folder.join("definitions.yaml");
    std::fs::write(&file, yaml).unwrap();
    manifests::apply(client, &manifests::read(&file).unwrap())
        .await
        .expect("definitions");
}

/// A host process, which is killed when dropped.
pub struct Host {
    process: Component,
    log: PathBuf,
}

impl Host {
    /// Starts a host with all that varies; `folder` is for its log.
    pub fn start(
        config: &Path,
        kubeconfig: &Path,
        arguments: &[&str],
        more: &[(&str, &str)],
        folder: &Path,
    ) -> Self {
        let mut arguments = arguments.to_vec();
        let cache = warm_cache(folder).display().to_string();
        if !arguments.contains(&"--cache-dir") {
            arguments.extend(["--cache-dir", &cache]);
        }
        Self::start_through(&[], config, kubeconfig, &arguments, more, folder)
    }

    /// Starts one of several hosts with another kubeconfig than the others.
    pub fn through(config: &Path, kubeconfig: &Path, name: &str, folder: &Path) -> Self {
        Self::start(config, kubeconfig, &[], &[("HOSTNAME", name)], folder)
    }

    fn start_through(
        wrapper: &[String],
        config: &Path,
        kubeconfig: &Path,
        arguments: &[&str],
        more: &[(&str, &str)],
        folder: &Path,
    ) -> Self {
        let log = folder.join("host.log");
        let mut command = wrapper.iter().cloned().chain([HOST.to_owned()]);
        let program = PathBuf::from(command.next().expect("a program"));
        let mut all: Vec<String> = command.collect();
        all.extend([
            "run".to_owned(),
            "--config".to_owned(),
            config.display().to_string(),
        ]);
        all.extend(arguments.iter().map(ToString::to_string));
        let mut environment = vec![
            ("KUBECONFIG", kubeconfig),
            ("OPERATOR_HOST_LOG", Path::new("info,operator_host=debug")),
            ("OPERATOR_HOST_HEALTH_ADDR", Path::new("127.0.0.1:0")),
        ];
        environment.extend(more.iter().map(|(name, value)| (*name, Path::new(*value))));
        let output = Output::File(log.clone());
        let process =
            Component::spawn("operator-host", &program, &all, &environment, output).expect("the host starts");
        Self { process, log }
    }

    /// Returns its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until a line of the log has these words, as in [`contains`], and returns that line.
    pub async fn until_log(&self, words: &str) -> String {
        eventually(&format!("a log line with {words:?}"), async || {
            let log = self.log();
            let found = log.lines().find(|line| contains(line, words));
            found.map(str::to_owned).ok_or_else(|| tail(&self.log))
        })
        .await
    }

    /// Waits until a line of the log has these words and an address of this machine, and returns its port: that of the host that was
    /// started last.
    pub async fn until_port(&self, words: &str) -> u16 {
        self.until_log(words).await;
        let log = self.log();
        let address = log
            .rsplit(words)
            .next()
            .and_then(|rest| rest.split("127.0.0.1:").nth(1));
        let port = address
            .expect("an address")
            .chars()
            .take_while(char::is_ascii_digit);
        port.collect::<String>().parse().unwrap()
    }

    /// Waits until so many lines of the log have these words, as in [`contains`].
    pub async fn until_logged(&self, text: &str, times: usize) {
        eventually(&format!("{times} times {text:?} in the log"), async || {
            let found = self.log().lines().filter(|line| contains(line, text)).count();
            (found >= times)
                .then_some(())
                .ok_or_else(|| format!("{found} so far; {}", tail(&self.log)))
        })
        .await;
    }

    /// Sends SIGTERM without waiting.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Sends SIGTERM, later SIGKILL, and returns the exit status.
    pub async fn stop(mut self) -> ExitStatus {
        self.process.stop(LIMIT).await.expect("it has ended")
    }

    /// Waits until it ends by itself.
    pub async fn ended(mut self) -> ExitStatus {
        self.process
            .wait(LIMIT)
            .await
            .expect("it should have ended by itself")
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Reports whether it is running.
    pub fn is_alive(&mut self) -> bool {
        self.process.exited().is_none()
    }

    /// Returns the process.
    pub fn process(&self) -> &Component {
        &self.process
    }
}

fn tail(file: &Path) -> String {
    last_lines(file, "", 30).join("\n")
}
