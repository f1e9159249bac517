//! The host as a child process, and its log.

use std::{
    fs::File,
    io::{BufRead, BufReader, PipeReader, Write},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::Context;
use clap::ValueEnum;
use control_plane::{
    Component, Output,
    ports::{self, Port},
};

use crate::{Arguments, DRAIN, plugin_changes, screen::Screen};

/// Where the host keeps the last versions of each plugin, next to its log.
pub(crate) const VERSIONS: &str = "versions";
/// Where compiled plugins are kept, for the next run, too.
const COMPILED: &str = "compiled";
/// The variable that names this folder.
const CACHE_DIR: &str = "OPERATOR_HOST_CACHE_DIR";

/// Which lines of the host's log are shown.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum HostLog {
    /// Every line.
    All,
    /// Warnings and errors.
    Warn,
    /// None.
    None,
}

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
    /// Starts the host. `more` contains additional environment variables; with `OPERATOR_HOST_CONFIG` among them
    /// the arguments need no configuration.
    pub(crate) fn start(
        program: &Path,
        arguments: &Arguments,
        kubeconfig: Option<&Path>,
        more: &[(String, PathBuf)],
        logs: &Path,
        screen: &Screen,
    ) -> anyhow::Result<Self> {
        let log = logs.join("operator-host.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let (reader, writer) = std::io::pipe()?;
        let mut environment: Vec<_> = kubeconfig.iter().map(|path| ("KUBECONFIG", *path)).collect();
        environment.extend(more.iter().map(|(name, value)| (name.as_str(), value.as_path())));
        let mut ports = Vec::new();
        let address = address("OPERATOR_HOST_HEALTH_ADDR", &mut ports)?;
        environment.push(("OPERATOR_HOST_HEALTH_ADDR", Path::new(&address)));
        let page = self::address("OPERATOR_HOST_UI_ADDR", &mut ports)?;
        environment.push(("OPERATOR_HOST_UI_ADDR", Path::new(&page)));
        environment.push(("OPERATOR_HOST_LOG_FORMAT", Path::new("json")));
        let compiled = logs.join(COMPILED);
        environment.push((CACHE_DIR, &compiled));
        let versions = logs.join(VERSIONS).display().to_string();
        let mut arguments_of_host = ["run", "--state-dir", &versions].map(str::to_owned).to_vec();
        if let Some(config) = &arguments.config {
            arguments_of_host.extend(["--config".to_owned(), config.display().to_string()]);
        }
        let component = Component::spawn(
            "operator-host",
            program,
            &arguments_of_host,
            &environment,
            Output::Pipe(writer),
        )?;
        let (shown, screen) = (arguments.host_log, screen.clone());
        let reader = std::thread::spawn(move || copy(reader, file, shown, &screen));
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

fn copy(reader: PipeReader, mut file: File, shown: HostLog, screen: &Screen) {
    for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let _ = writeln!(file, "{line}");
        if shown != HostLog::None && plugin_changes::show(&line, screen) {
            continue;
        }
        let show = match shown {
            HostLog::All => true,
            HostLog::Warn => is_warning(&line),
            HostLog::None => false,
        };
        if show {
            screen.log(&line);
        }
    }
}

/// Reports whether a line of the log, as text or as JSON, has the level WARN or ERROR.
fn is_warning(line: &str) -> bool {
    if line.starts_with('{') {
        return line.contains(r#""level":"WARN""#) || line.contains(r#""level":"ERROR""#);
    }
    // The time precedes the level.
    line.split_whitespace()
        .take(3)
        .any(|word| matches!(word, "WARN" | "ERROR"))
        || line.starts_with("error")
        || line.starts_with("thread ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_known_in_both_forms_of_the_log() {
        assert!(is_warning("2026-01-01T00:00:00Z  WARN operator_host: slow"));
        assert!(is_warning(r#"{"timestamp":"…","level":"ERROR","fields":{}}"#));
        assert!(!is_warning(
            "2026-01-01T00:00:00Z  INFO operator_host: the word WARN in a message"
        ));
    }
}
