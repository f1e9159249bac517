//! The control plane of a measurement, and the processes that are measured.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use control_plane::{Component, ControlPlane, Options, Output, create_namespace, last_lines, manifests};
use kube::Client;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{CONCURRENCY, Common, plugins};
use control_plane::process;

/// How long anything may take before a measurement fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(1800);
/// How often a condition outside of this process is polled.
const POLL: Duration = Duration::from_millis(10);
/// How long a process is left alone before its memory is read: an idle host returns freed memory, and unmaps the code of its
/// start, within this time.
pub(crate) const IDLE: Duration = Duration::from_secs(11);
/// The group of the sample's kind.
pub(crate) const GROUP: &str = "my-operator.dev";

/// A control plane without controllers and nodes, and a folder for files.
pub(crate) struct Stage {
    pub(crate) cluster: ControlPlane,
    pub(crate) client: Client,
    folder: TempDir,
    host: PathBuf,
    record: Option<PathBuf>,
}

impl Stage {
    /// Starts a control plane that serves Echo.
    pub(crate) async fn start(common: &Common) -> anyhow::Result<Self> {
        Self::start_with(common, Options::bare()).await
    }

    pub(crate) async fn start_with(common: &Common, options: Options) -> anyhow::Result<Self> {
        let mut cluster = ControlPlane::start(options).await?;
        cluster.install(&common.crd).await?;
        let this = Self {
            client: cluster.client().await?,
            cluster,
            folder: tempfile::tempdir().context("create a folder")?,
            host: common.host.clone(),
            record: common.record.clone(),
        };
        std::fs::create_dir(this.plugins()).context("create the folder of the plugins")?;
        let echo = std::fs::read(&common.plugin).with_context(|| common.plugin.display().to_string())?;
        this.put_plugin("echo.wasm", &echo)?;
        Ok(this)
    }

    pub(crate) async fn namespace(&self, name: &str) -> anyhow::Result<()> {
        let created = create_namespace(&self.client, name).await;
        created.with_context(|| format!("create the namespace {name}"))?;
        Ok(())
    }

    /// Installs the definitions of a YAML text and waits until they are served.
    pub(crate) async fn install(&self, definitions: &str) -> anyhow::Result<()> {
        let file = self.folder.path().join("definitions.yaml");
        std::fs::write(&file, definitions).context("write the definitions")?;
        manifests::apply(&self.client, &manifests::read(&file)?).await
    }

    /// Writes a plugin file, or replaces it in one step.
    pub(crate) fn put_plugin(&self, name: &str, content: &[u8]) -> anyhow::Result<()> {
        let (file, new) = (self.plugins().join(name), self.folder.path().join("new.wasm"));
        std::fs::write(&new, content)
            .and_then(|()| std::fs::rename(&new, &file))
            .with_context(|| format!("write {}", file.display()))
    }

    /// Adds copies of Echo with their definitions.
    pub(crate) async fn add_copies(&self, common: &Common, numbers: Range<usize>) -> anyhow::Result<()> {
        let echo = std::fs::read(&common.plugin).context("read the plugin")?;
        let crd = std::fs::read_to_string(&common.crd).context("read the definition")?;
        for number in numbers.clone() {
            self.put_plugin(&format!("echo-{number:03}.wasm"), &plugins::copy(&echo, number)?)?;
        }
        let new: Vec<String> = numbers.map(|number| plugins::definition(&crd, number)).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.install(&new.join("\n---\n")).await
    }

    fn plugins(&self) -> PathBuf {
        self.folder.path().join("plugins")
    }

    /// Returns a new folder for compiled plugins.
    pub(crate) fn cache(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the host with one controller for Echo.
    pub(crate) fn start_host(&self, cache: &Path) -> anyhow::Result<Running> {
        self.start_host_with(&[controller("echo", GROUP, "echo.wasm")], cache)
    }

    /// Starts the host with these controllers, as it is deployed: with a cache folder and logs of level `info`.
    pub(crate) fn start_host_with(&self, controllers: &[String], cache: &Path) -> anyhow::Result<Running> {
        self.start_host_of(&format!("controllers:\n{}", controllers.concat()), cache)
    }

    /// Does the same with the rest of the configuration after the folder of plugins.
    pub(crate) fn start_host_of(&self, settings: &str, cache: &Path) -> anyhow::Result<Running> {
        let config = self.folder.path().join("config.yaml");
        let text = format!("plugins: {}\n{settings}", self.plugins().display());
        std::fs::write(&config, text).context("write the configuration")?;
        let arguments = [
            "run",
            "--config",
            path(&config)?,
            "--cache-dir",
            path(cache)?,
            "--log",
            "info",
        ];
        let Some(list) = &self.record else {
            return self.run("host", &self.host, &arguments);
        };
        let recorded = [&["record", path(list)?, path(&self.host)?], arguments.as_slice()];
        self.run("host", &this_program()?, &recorded.concat())
    }

    /// Starts one of the contenders of this program.
    pub(crate) fn start_contender(&self, name: &'static str, namespace: &str) -> anyhow::Result<Running> {
        self.run(name, &this_program()?, &["contender", name, namespace])
    }

    /// Starts `operator-host egress` with a file of endpoints.
    pub(crate) fn start_egress(&self, endpoints: &str) -> anyhow::Result<Running> {
        let file = self.folder.path().join("endpoints.yaml");
        std::fs::write(&file, endpoints).context("write the file of endpoints")?;
        let arguments = ["egress", "--endpoints", path(&file)?, "--log", "warn"];
        self.run("egress", &self.host, &arguments)
    }

    fn run(&self, name: &'static str, program: &Path, arguments: &[&str]) -> anyhow::Result<Running> {
        let log = self.folder.path().join(format!("{name}.log"));
        // From an earlier process of this name.
        let _ = std::fs::remove_file(&log);
        let kubeconfig = self.cluster.kubeconfig();
        let environment = [
            ("KUBECONFIG", kubeconfig.as_path()),
            ("OPERATOR_HOST_HEALTH_ADDR", Path::new("127.0.0.1:0")),
        ];
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let output = Output::File(log.clone());
        let started = Instant::now();
        let process = Component::spawn(name, program, &arguments, &environment, output)?;
        Ok(Running {
            process,
            log,
            port: OnceLock::new(),
            started,
        })
    }

    /// Waits until API server and etcd have nothing to do, such as building their schema after a new definition.
    pub(crate) async fn until_quiet(&self) -> anyhow::Result<()> {
        const WINDOW: Duration = Duration::from_secs(2);
        let deadline = Instant::now() + Duration::from_secs(120);
        let total = || anyhow::Ok(servers()?.iter().map(|server| server.as_secs_f64()).sum::<f64>());
        while Instant::now() < deadline {
            let before = total()?;
            tokio::time::sleep(WINDOW).await;
            if total()? - before < 0.1 * WINDOW.as_secs_f64() {
                return Ok(());
            }
        }
        eprintln!("API server and etcd are still busy after two minutes; measuring all the same");
        Ok(())
    }

    /// Returns how many writes and reads of pods, Echos and Events the API server has answered, by its own metrics.
    /// A watch counts when it ends.
    pub(crate) async fn requests(&self) -> anyhow::Result<(f64, f64)> {
        let request = http::Request::get("/metrics")
            .body(Vec::new())
            .context("a request")?;
        let text = self
            .client
            .request_text(request)
            .await
            .context("read the API server's metrics")?;
        Ok(requests(&text))
    }

    pub(crate) async fn shutdown(self) {
        self.cluster.shutdown().await;
    }
}

fn requests(metrics: &str) -> (f64, f64) {
    let count = |verbs: &[&str]| {
        let is = |line: &&str| {
            let has = |label: &str, values: &[&str]| {
                values
                    .iter()
                    .any(|value| line.contains(&format!("{label}=\"{value}\"")))
            };
            line.starts_with("apiserver_request_total{")
                && has("resource", &["pods", "echoes", "events"])
                && has("verb", verbs)
        };
        let lines = metrics.lines().filter(is);
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    };
    (
        count(&["APPLY", "PATCH", "POST", "PUT", "DELETE"]),
        count(&["GET", "LIST"]),
    )
}

/// Returns the processor time of API server and etcd.
pub(crate) fn servers() -> anyhow::Result<[Duration; 2]> {
    let children = process::children();
    let time = |name: &str| {
        let pid = children
            .get(name)
            .with_context(|| format!("{name} is not running"))?;
        anyhow::Ok(process::times(*pid)?.own)
    };
    Ok([time("kube-apiserver")?, time("etcd")?])
}

/// Returns a controller for the kind Echo of a group. Its limit of writes is out of the way: the other contenders have
/// none.
pub(crate) fn controller(name: &str, group: &str, plugin: &str) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "- name: {name}\n  parent: {{apiVersion: {group}/v1, kind: Echo}}\n  plugin: {plugin}\n  \
         children: [{{apiVersion: v1, kind: Pod}}]\n  concurrency: {CONCURRENCY}\n  \
         writes: {{qps: 100000, burst: 100000}}\n"
    );
    text
}

/// Returns the controllers of `count` copies of Echo.
pub(crate) fn controllers(count: usize) -> Vec<String> {
    let each = (0..count).map(|number| {
        let name = format!("echo-{number:03}");
        controller(&name, &plugins::group(number), &format!("{name}.wasm"))
    });
    each.collect()
}

/// A measured process, which is killed when dropped.
pub(crate) struct Running {
    process: Component,
    log: PathBuf,
    port: OnceLock<u16>,
    pub(crate) started: Instant,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Fails with the end of its log when it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.exited() {
            bail!(
                "{} has ended: {status}; its log ends:\n{}",
                self.name(),
                self.tail()
            );
        }
        Ok(())
    }

    /// Returns the port of health and metrics. Reads the log once, which grows with every write.
    fn port(&self) -> Option<u16> {
        if let Some(known) = self.port.get() {
            return Some(*known);
        }
        let port = port(&self.log())?;
        Some(*self.port.get_or_init(|| port))
    }

    fn name(&self) -> String {
        self.log
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn tail(&self) -> String {
        last_lines(&self.log, "", 20).join("\n")
    }

    /// Waits until `condition` holds; `what` describes it in the error.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        condition: impl AsyncFn(&Self) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(value) = condition(self).await {
                return Ok(value);
            }
            self.check()?;
            ensure!(
                Instant::now() < deadline,
                "{}: not {what} after {LIMIT:?}; its log ends:\n{}",
                self.name(),
                self.tail()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the log contains `text`.
    pub(crate) async fn until_logged(&mut self, text: &str) -> anyhow::Result<()> {
        let logged = async |this: &Self| this.log().contains(text).then_some(());
        self.until(&format!("logged: {text:?}"), logged).await
    }

    /// Waits until the host is ready with `count` controllers.
    pub(crate) async fn until_ready(&mut self, count: usize) -> anyhow::Result<()> {
        let port = self
            .until("listening for health", async |this| this.port())
            .await?;
        self.until("ready", async |_| {
            let answer = get(port, "/readyz?verbose").await.ok()?;
            is_ready(&answer, count).then_some(())
        })
        .await
    }

    /// Returns the host's metrics.
    pub(crate) async fn metrics(&self) -> anyhow::Result<Metrics> {
        let port = self.port().context("the host does not listen for health")?;
        Ok(Metrics(get(port, "/metrics").await?))
    }

    /// Waits until the process computes next to nothing, and then for [`IDLE`].
    pub(crate) async fn until_idle(&self) -> anyhow::Result<()> {
        const WINDOW: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut before = process::times(self.id())?.own;
        while Instant::now() < deadline {
            tokio::time::sleep(WINDOW).await;
            let now = process::times(self.id())?.own;
            if now - before <= WINDOW / 50 {
                tokio::time::sleep(IDLE).await;
                return Ok(());
            }
            before = now;
        }
        eprintln!("{} is still busy a minute later", self.name());
        Ok(())
    }

    /// Sends SIGTERM, later SIGKILL.
    pub(crate) async fn stop(mut self) {
        self.process.stop(Duration::from_secs(20)).await;
    }
}

/// The text of a `/metrics` page.
pub(crate) struct Metrics(String);

impl Metrics {
    /// Returns the sum of a metric's series that have `label`, which may be empty.
    pub(crate) fn sum(&self, name: &str, label: &str) -> f64 {
        let series = self.0.lines().filter_map(|line| line.rsplit_once(' '));
        let wanted = series.filter(|(series, _)| {
            let rest = series.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{')) && series.contains(label)
        });
        wanted.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }
}

/// Reports whether an answer of `/readyz?verbose` has `count` controllers that run with their plugins. The status alone
/// also means success for a host that knows no controller yet, or that waits for definitions.
fn is_ready(answer: &str, count: usize) -> bool {
    let passed = |check: &str, end: &str| {
        let lines = answer.lines().map(str::trim_end);
        lines
            .filter(|line| line.starts_with(check) && line.ends_with(end))
            .count()
    };
    passed("[+]controller/", " ok") == count && passed("[+]plugin/", "") == count
}

/// Returns the port that the host's log names.
fn port(log: &str) -> Option<u16> {
    let line = log
        .lines()
        .find(|line| line.contains("serving health and metrics"))?;
    let digits = line.split("127.0.0.1:").nth(1)?;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

async fn get(port: u16, url: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))
        .await
        .context("connect to the health port")?;
    stream
        .write_all(format!("GET {url} HTTP/1.0\r\n\r\n").as_bytes())
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("find this program")
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}
