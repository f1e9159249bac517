//! The cluster, the host, and the two teams.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use control_plane::{Component, ControlPlane, Options, Output, create_namespace, manifests, node, process};
use futures::StreamExt as _;
use k8s_openapi::ByteString;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use operator_host_core::digest::Digest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Args;
use crate::group::Group;

/// The host's namespace, that of the quiet team, and that of the hostile tenant.
const HOST: &str = "operator-host";
pub(crate) const TEAM: &str = "team-a";
pub(crate) const TENANT: &str = "team-evil";
/// The group of the quiet team's kind.
pub(crate) const ECHO_GROUP: &str = "my-operator.dev";
/// The group of the tenant's kinds.
pub(crate) const GROUP: &str = "tenant.example.com";
/// How many kinds the tenant has.
pub(crate) const KINDS: usize = 100;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How many requests of the tenant are on their way at the same time.
const AT_ONCE: usize = 16;

/// See the module.
pub(crate) struct Stage {
    host: Component,
    client: Client,
    /// The tenant's own client.
    pub(crate) tenant: Client,
    start: Start,
    /// Versions of Echo and Echoes get a number each.
    number: u32,
    echo: Vec<u8>,
    _cluster: ControlPlane,
    _group: Option<Group>,
    _folder: TempDir,
}

/// How the host is started.
struct Start {
    program: PathBuf,
    arguments: Vec<String>,
    kubeconfig: PathBuf,
    log: PathBuf,
}

impl Start {
    fn start(&self) -> anyhow::Result<Component> {
        let environment = [
            ("KUBECONFIG", self.kubeconfig.as_path()),
            ("OPERATOR_HOST_LOG", Path::new("info")),
            ("OPERATOR_HOST_HEALTH_ADDR", Path::new("127.0.0.1:0")),
        ];
        let output = Output::File(self.log.clone());
        Component::spawn(
            "operator-host",
            &self.program,
            &self.arguments,
            &environment,
            output,
        )
    }
}

/// Returns the objects of a kind.
pub(crate) fn api(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let (group, kind, plural) = match kind {
        "Echo" => ("my-operator.dev/v1", "Echo", "echoes"),
        "Controller" => ("operator-host.dev/v1alpha1", "Controller", "controllers"),
        "ConfigMap" => ("v1", "ConfigMap", "configmaps"),
        "CustomResourceDefinition" => ("apiextensions.k8s.io/v1", kind, "customresourcedefinitions"),
        _ => ("v1", "Pod", "pods"),
    };
    let (group, version) = group.split_once('/').unwrap_or(("", group));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    match kind {
        "Controller" | "CustomResourceDefinition" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

/// Returns a ConfigMap with a plugin.
pub(crate) fn config_map(namespace: &str, name: &str, key: &str, file: &[u8]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"operator-host.dev/plugin": name}},
        "binaryData": {key: ByteString(file.to_vec())},
    })
}

/// Returns a Controller of the tenant, with a plugin that is in a ConfigMap of its name.
pub(crate) fn controller(name: &str, kind: &str, group: &str, more: &Value) -> Value {
    let mut spec = json!({
        "parent": {"apiVersion": format!("{group}/v1"), "kind": kind},
        "plugin": {"configMap": {"name": format!("{name}-plugin"), "namespace": TENANT, "key": "bomb.wasm"}},
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    controller_of(name, &spec)
}

fn controller_of(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller", "metadata": {"name": name}, "spec": spec})
}

fn definition(number: usize) -> Value {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let plural = format!("tenants{number}");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": format!("Tenant{number}"), "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                          "schema": {"openAPIV3Schema": any}}],
        },
    })
}

/// Returns the Controller of the quiet team.
fn of_echo() -> Value {
    let spec = json!({
        "parent": {"apiVersion": format!("{ECHO_GROUP}/v1"), "kind": "Echo"},
        "plugin": {"configMap": {"name": "echo-plugin", "namespace": TEAM, "key": "echo.wasm"}},
        "children": [{"apiVersion": "v1", "kind": "Pod"}],
    });
    controller_of("echo", &spec)
}

/// Returns the condition of a Controller that does not run.
fn stalled(object: &DynamicObject) -> Option<&Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|it| it["type"] == "Stalled" && it["status"] == "True")
}

impl Stage {
    pub(crate) async fn build(args: &Args) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("a folder")?;
        let options = Options {
            node: Some(node::Options::default()),
            ..Options::default()
        };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client().await?;
        let own = (0..KINDS).map(|number| serde_json::from_value(definition(number)));
        let mut definitions = own.collect::<Result<Vec<DynamicObject>, _>>()?;
        for file in &args.crds {
            definitions.extend(manifests::read(file)?);
        }
        manifests::apply(&client, &definitions).await?;
        for namespace in [HOST, TEAM, TENANT] {
            create_namespace(&client, namespace).await?;
        }
        let config = folder.path().join("config.yaml");
        let ceilings = json!({
            "hostNamespace": HOST,
            "leadership": "single",
            "ceilings": [
                {
                    "names": ["echo", "other"],
                    "parents": [{"apiGroups": [ECHO_GROUP], "kinds": ["*"]}],
                    "children": [{"apiGroups": [""], "kinds": ["Pod"]}],
                    "configMaps": [TEAM],
                },
                {
                    "parents": [{"apiGroups": ["*.dev", GROUP], "kinds": ["*"]}],
                    "children": [
                        {"apiGroups": [""], "kinds": ["Pod"]},
                        {"apiGroups": ["autoscaling", "*.dev"], "kinds": ["*"]},
                    ],
                    "configMaps": [TENANT],
                },
            ],
        });
        // JSON is YAML.
        std::fs::write(&config, ceilings.to_string()).context("write the configuration")?;
        let all = folder.path().join("definitions.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": definitions});
        std::fs::write(&all, list.to_string()).context("write the definitions")?;
        let account = |namespace: &str, name: &str| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}});
        let mut rights = rights(&args.host, &config, &all)?;
        rights.extend([account(HOST, HOST), account(TENANT, "tenant")]);
        rights.extend(rights_of_the_tenant());
        let rights: Result<Vec<DynamicObject>, _> = rights.into_iter().map(serde_json::from_value).collect();
        manifests::apply(&client, &rights?).await?;
        let tenant = cluster.kubeconfig_of_account(TENANT, "tenant").await?;
        let group = Group::create();
        let run = ["run", "--memory", "512Mi", "--config"].map(str::to_owned);
        let cache = folder.path().join("cache").display().to_string();
        let run = run
            .into_iter()
            .chain([config.display().to_string(), "--cache-dir".to_owned(), cache]);
        let (program, arguments) = match &group {
            Some(group) => {
                let join = format!("echo $$ > {} && exec \"$@\"", group.processes().display());
                let shell = [
                    "-c".to_owned(),
                    join,
                    "sh".to_owned(),
                    args.host.display().to_string(),
                ];
                (PathBuf::from("/bin/sh"), shell.into_iter().chain(run).collect())
            }
            None => {
                println!(
                    "no control group of 512 MiB can be made here: that the host is not killed in one is not checked"
                );
                (args.host.clone(), run.collect())
            }
        };
        std::fs::create_dir_all(&args.keep).context("the folder for the log")?;
        let start = Start {
            program,
            arguments,
            kubeconfig: cluster.kubeconfig_of_account(HOST, HOST).await?,
            log: args.keep.join("host.log"),
        };
        let _ = std::fs::remove_file(&start.log);
        let mut stage = Self {
            host: start.start()?,
            client,
            tenant: connect(&tenant).await?,
            start,
            number: 0,
            echo: std::fs::read(&args.plugin).with_context(|| args.plugin.display().to_string())?,
            _cluster: cluster,
            _group: group,
            _folder: folder,
        };
        stage.upgrade().await?;
        Ok(stage)
    }

    pub(crate) fn log(&self) -> &Path {
        &self.start.log
    }

    /// Returns the peak of the host's memory in bytes.
    pub(crate) fn peak(&self) -> anyhow::Result<u64> {
        Ok(process::memory(self.host.id())?.peak)
    }

    pub(crate) fn threads(&self) -> u64 {
        process::handles(self.host.id()).map_or(0, |handles| handles.threads)
    }

    /// Starts the host again after SIGKILL. Returns how long it takes until an Echo is served.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<Duration> {
        self.host.kill();
        self.host = self.start.start()?;
        self.echo().await
    }

    /// Returns what is wrong with the process.
    pub(crate) fn check_host(&mut self) -> Option<String> {
        let ended = self.host.exited()?;
        Some(format!("the host has ended: {ended}"))
    }

    /// Creates, or changes, an object of somebody.
    pub(crate) async fn apply(client: &Client, object: Value) -> anyhow::Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(object)?;
        let kind = object.types.as_ref().context("a kind")?.kind.clone();
        let api = api(client, &kind, &object.namespace().unwrap_or_default());
        let params = PatchParams::apply("tenant").force();
        Ok(api
            .patch(&object.name_any(), &params, &Patch::Apply(&object))
            .await?)
    }

    /// Applies objects of the tenant. Returns the errors of the API server.
    pub(crate) async fn attack(&self, objects: impl Iterator<Item = Value>) -> Vec<String> {
        let tenant = &self.tenant;
        let applied = objects.map(|object| Self::apply(tenant, object));
        futures::stream::iter(applied)
            .buffer_unordered(AT_ONCE)
            .filter_map(|applied| async { applied.err().map(|error| format!("{error:#}")) })
            .collect()
            .await
    }

    /// Waits until an object is as it should be. Returns how long that took.
    async fn until(
        &self,
        kind: &str,
        name: &str,
        is_done: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<Duration> {
        self.wait(kind, name, |object| object.is_some_and(&is_done)).await
    }

    /// Does the same for an object that may be gone.
    async fn wait(
        &self,
        kind: &str,
        name: &str,
        is_done: impl Fn(Option<&DynamicObject>) -> bool,
    ) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let wait = await_condition(api(&self.client, kind, TEAM), name, is_done);
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(waited) => drop(waited?),
            Err(_) => bail!("{kind} {name} is not as expected after {LIMIT:?}"),
        }
        Ok(start.elapsed())
    }

    /// Creates an Echo. Returns how long it takes until its first pod is there.
    pub(crate) async fn echo(&mut self) -> anyhow::Result<Duration> {
        self.number += 1;
        let name = format!("e{}", self.number);
        let echo = json!({
            "apiVersion": "my-operator.dev/v1", "kind": "Echo", "metadata": {"name": name, "namespace": TEAM},
            "spec": {"replicas": 1, "image": "echo:1"},
        });
        let start = Instant::now();
        let echoes = api(&self.client, "Echo", TEAM);
        echoes
            .create(&PostParams::default(), &serde_json::from_value(echo)?)
            .await?;
        self.until("Pod", &format!("{name}-pod-0"), |_| true).await?;
        let taken = start.elapsed();
        echoes.delete(&name, &DeleteParams::default()).await?;
        Ok(taken)
    }

    /// Measures Echoes one after the other for a time. Returns the median.
    pub(crate) async fn echoes(&mut self, time: Duration) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < 5 || start.elapsed() < time {
            taken.push(self.echo().await?);
        }
        Ok(median(taken))
    }

    /// Measures so many Echoes without an attack. Returns the median.
    pub(crate) async fn quiet(&mut self, count: usize) -> anyhow::Result<Duration> {
        self.echo().await?;
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.push(self.echo().await?);
        }
        Ok(median(taken))
    }

    /// Gives the quiet team's Echo another version of its plugin. Returns how long it takes until that is live.
    pub(crate) async fn upgrade(&mut self) -> anyhow::Result<Duration> {
        self.number += 1;
        // With a custom section at the end.
        let version = [&self.echo[..], &[0, 6, 1, b'v'], &self.number.to_le_bytes()].concat();
        let map = config_map(TEAM, "echo-plugin", "echo.wasm", &version);
        let start = Instant::now();
        Self::apply(&self.client, map).await?;
        let controllers = api(&self.client, "Controller", "");
        if controllers.get_opt("echo").await?.is_none() {
            Self::apply(&self.client, of_echo()).await?;
        }
        // The host records it there at once; the status comes up to two seconds later.
        let digest = Digest::of(&version).to_string();
        self.until("CustomResourceDefinition", "echoes.my-operator.dev", |object| {
            object.annotations().values().any(|recorded| *recorded == digest)
        })
        .await?;
        Ok(start.elapsed())
    }

    /// Applies a Controller of the quiet team that has no plugin. Returns how long it takes until its status says so.
    pub(crate) async fn first_status(&mut self) -> anyhow::Result<Duration> {
        let spec = json!({
            "parent": {"apiVersion": format!("{ECHO_GROUP}/v1"), "kind": "Other"},
            "plugin": {"configMap": {"name": "other-plugin", "namespace": TEAM}},
        });
        let start = Instant::now();
        Self::apply(&self.client, controller_of("other", &spec)).await?;
        self.until("Controller", "other", |object| !object.data["status"].is_null())
            .await?;
        let taken = start.elapsed();
        self.delete("other").await?;
        Ok(taken)
    }

    /// Deletes a Controller, and waits until it is gone.
    pub(crate) async fn delete(&self, name: &str) -> anyhow::Result<()> {
        let all = api(&self.client, "Controller", "");
        all.delete(name, &DeleteParams::default()).await?;
        self.wait("Controller", name, |object| object.is_none()).await?;
        Ok(())
    }

    /// Waits until a Controller is refused for this reason.
    pub(crate) async fn until_refused(&self, name: &str, reason: &str) -> anyhow::Result<()> {
        let refused = self
            .until("Controller", name, |object| {
                stalled(object).is_some_and(|it| it["reason"] == reason)
            })
            .await;
        refused
            .map(drop)
            .with_context(|| format!("it is not refused as {reason}"))
    }

    /// Makes the Controller of Echo again, and does what its status says so that it may go on.
    pub(crate) async fn take_back_echo(&self) -> anyhow::Result<()> {
        Self::apply(&self.client, of_echo()).await?;
        self.until_refused("echo", "NameUsedBefore").await?;
        let echo = api(&self.client, "Controller", "").get("echo").await?;
        let said = stalled(&echo).and_then(|it| it["message"].as_str());
        let command = said.and_then(|it| it.split("kubectl annotate crd ").nth(1));
        let mut words = command.context("no command in the status")?.split(' ');
        let (crd, record) = (
            words.next().context("a definition")?,
            words.next().context("a record")?,
        );
        let (key, value) = record.split_once('=').context("an annotation")?;
        let record = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let definitions = api(&self.client, "CustomResourceDefinition", "");
        definitions.patch(crd, &PatchParams::default(), &record).await?;
        self.until("Controller", "echo", |object| stalled(object).is_none())
            .await?;
        Ok(())
    }

    /// Returns the refusals of the tenant's Controllers that name no field.
    pub(crate) async fn unnamed_refusals(&self) -> anyhow::Result<Vec<String>> {
        let mut unnamed = Vec::new();
        for object in self.of_tenant().await? {
            let Some(stalled) = stalled(&object) else {
                continue;
            };
            let (reason, message) = (
                &stalled["reason"],
                stalled["message"].as_str().unwrap_or_default(),
            );
            // These name the other Controller, or the plugin.
            let is_named = reason == "KindTaken" || reason == "PluginRefused" || message.contains('`');
            if !is_named {
                unnamed.push(format!(
                    "{} is refused without a field: {message}",
                    object.name_any()
                ));
            }
        }
        Ok(unnamed)
    }

    async fn of_tenant(&self) -> anyhow::Result<Vec<DynamicObject>> {
        let all = api(&self.client, "Controller", "");
        let mut all = all.list(&ListParams::default()).await?.items;
        all.retain(|object| object.name_any() != "echo");
        Ok(all)
    }

    /// Deletes what the tenant has made, and waits until it is gone.
    pub(crate) async fn tidy_up(&mut self) -> anyhow::Result<()> {
        let own = self.of_tenant().await?;
        let controllers = api(&self.client, "Controller", "");
        let deleted = own.iter().map(|object| {
            let (controllers, name) = (&controllers, object.name_any());
            async move {
                controllers
                    .delete(&name, &DeleteParams::default())
                    .await
                    .map(drop)
            }
        });
        let deleted: Vec<_> = futures::stream::iter(deleted)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        deleted.into_iter().collect::<kube::Result<()>>()?;
        let maps = api(&self.client, "ConfigMap", TENANT);
        let labelled = ListParams::default().labels("operator-host.dev/plugin");
        maps.delete_collection(&DeleteParams::default(), &labelled)
            .await?;
        let start = Instant::now();
        while !self.of_tenant().await?.is_empty() {
            ensure!(start.elapsed() < LIMIT, "the tenant's Controllers do not go");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // A bomb that is compiled ends with its Controller.
        self.echo().await?;
        Ok(())
    }
}

async fn connect(kubeconfig: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).context("read a kubeconfig")?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    control_plane::connect(&config)
}

fn median(mut taken: Vec<Duration>) -> Duration {
    taken.sort();
    taken.get(taken.len() / 2).copied().unwrap_or_default()
}

/// Returns the host's roles, as the program prints them.
fn rights(host: &Path, config: &Path, definitions: &Path) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(host);
    command.args([
        "rbac",
        "--service-account",
        "operator-host/operator-host",
        "-o",
        "json",
        "--config",
    ]);
    command.arg(config).arg("--crd").arg(definitions);
    // It must not ask a cluster: the definitions of all kinds are in the file.
    let output = command.env("KUBECONFIG", "/nonexistent").output();
    let output = output.context("run operator-host rbac")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "operator-host rbac: {error}");
    let list: Value = serde_json::from_slice(&output.stdout).context("roles")?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Returns what the tenant may do: everything with Controllers, and with ConfigMaps in its namespace.
fn rights_of_the_tenant() -> [Value; 4] {
    let role = |kind: &str, namespace: Option<&str>, group: &str, resource: &str| {
        let rule = json!({"apiGroups": [group], "resources": [resource], "verbs": ["*"]});
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
               "metadata": {"name": "tenant", "namespace": namespace}, "rules": [rule]})
    };
    let binding = |kind: &str, role: &str, namespace: Option<&str>| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
               "metadata": {"name": "tenant", "namespace": namespace},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": "tenant"},
               "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": TENANT}]})
    };
    [
        role("ClusterRole", None, "operator-host.dev", "controllers"),
        binding("ClusterRoleBinding", "ClusterRole", None),
        role("Role", Some(TENANT), "", "configmaps"),
        binding("RoleBinding", "Role", Some(TENANT)),
    ]
}
