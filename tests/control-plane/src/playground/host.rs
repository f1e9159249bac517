//! The host as a child process, and its log.

use std::{
    fs::File,
    io::{BufRead, BufReader, PipeReader, Write},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::Context;
use control_plane::{
    Component, Output,
    ports::{self, Port},
};

use crate::DRAIN;

/// Where the host keeps the last versions of each plugin, next to its log.
pub(crate) const VERSIONS: &str = "versions";
/// Where compiled plugins are kept, for the next run, too.
const COMPILED: &str = "compiled";
/// The variable that names this folder.
const CACHE_DIR: &str = "OPERATOR_HOST_CACHE_DIR";

/// The running host.
pub(crate) struct Host {
    component: Component,
    program: PathBuf,
    address: String,
    page: String,
    /// Those of the two addresses that the user has not chosen.
    _ports: Vec<Port>,
    compiled: PathBuf,
    log: PathBuf,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Host {
    /// Starts the host. Its log is a file in `data`; warnings, errors, and lines about new versions of plugins are shown.
    pub(crate) fn start(
        program: &Path,
        config: &Path,
        kubeconfig: &Path,
        data: &Path,
    ) -> anyhow::Result<Self> {
        let log = data.join("operator-host.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let (reader, writer) = std::io::pipe()?;
        let mut ports = Vec::new();
        let address = address("OPERATOR_HOST_HEALTH_ADDR", &mut ports)?;
        let page = self::address("OPERATOR_HOST_UI_ADDR", &mut ports)?;
        let compiled = data.join(COMPILED);
        let environment = [
            ("KUBECONFIG", kubeconfig),
            ("OPERATOR_HOST_HEALTH_ADDR", Path::new(&address)),
            ("OPERATOR_HOST_UI_ADDR", Path::new(&page)),
            ("OPERATOR_HOST_LOG_FORMAT", Path::new("json")),
            (CACHE_DIR, &compiled),
        ];
        let (versions, config) = (
            data.join(VERSIONS).display().to_string(),
            config.display().to_string(),
        );
        let arguments = ["run", "--state-dir", &versions, "--config", &config].map(str::to_owned);
        let component = Component::spawn(
            "operator-host",
            program,
            &arguments,
            &environment,
            Output::Pipe(writer),
        )?;
        let reader = std::thread::spawn(move || copy(reader, file));
        Ok(Self {
            component,
            program: program.to_owned(),
            address,
            page,
            _ports: ports,
            compiled,
            log,
            reader: Some(reader),
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.component.id()
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the address of its health port.
    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Returns where the page is.
    pub(crate) fn page(&self) -> String {
        format!("http://{}/ui/", self.page)
    }

    /// Returns the variable, and its value, that let other commands use the compiled plugins.
    pub(crate) fn compiled(&self) -> (&'static str, PathBuf) {
        (CACHE_DIR, self.compiled.clone())
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// Sends SIGTERM; SIGKILL if it has not drained in time.
    pub(crate) async fn stop(&mut self) -> Option<ExitStatus> {
        let status = self.component.stop(DRAIN).await;
        self.finish_log();
        status
    }

    /// Returns when the host ends.
    pub(crate) async fn ended(&mut self) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.component.wait(Duration::from_secs(3600)).await {
                self.finish_log();
                return Some(status);
            }
        }
    }

    /// Returns the end of its log, since the file may be deleted with the cluster.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(15)..].join("\n    ");
        format!("the end of its log {}:\n    {last}", self.log.display())
    }

    fn finish_log(&mut self) {
        // Ends when the host has closed its end.
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Returns the address that the user wants, or one with a free port, which is then among the reserved ones.
fn address(variable: &str, reserved: &mut Vec<Port>) -> anyhow::Result<String> {
    if let Ok(address) = std::env::var(variable) {
        return Ok(address);
    }
    let port = ports::reserve()?;
    let address = format!("127.0.0.1:{}", port.number);
    reserved.push(port);
    Ok(address)
}

fn copy(reader: PipeReader, mut file: File) {
    const SHOWN: [&str; 4] = [
        r#""level":"WARN""#,
        r#""level":"ERROR""#,
        r#""message":"plugin loaded""#,
        r#""message":"plugin held back"#,
    ];
    for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let _ = writeln!(file, "{line}");
        // What is no JSON is the end of the program.
        if !line.starts_with('{') || SHOWN.iter().any(|shown| line.contains(shown)) {
            println!("log {line}");
        }
    }
}
