//! `operator-host plugins`: prints a running host's report about its plugins.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::Failure;
use operator_host_author::output::{Paint, RED, YELLOW, age, short, table};
use operator_host_core::text::printable;
use operator_host_delivery::report::{CandidateState, PluginReport};
use operator_host_instruments::health::server::socket;

/// The host's default health address, on this machine.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8080";
/// The time that the host has to answer.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Bytes of an answer. A host returns one bounded report per controller.
const MAX_ANSWER: u64 = 16 << 20;

mod history;

/// The options of `plugins`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// What to show, instead of the versions that there are now.
    #[command(subcommand)]
    command: Option<Command>,
    /// Show only these controllers
    #[arg(value_name = "CONTROLLER")]
    controllers: Vec<String>,
    #[command(flatten)]
    host: HostArgs,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show which versions of a plugin were live, when, why, by whose order, and what they changed
    History(history::Args),
}

/// How to reach the host, and how to print its answer.
#[derive(Debug, clap::Args)]
struct HostArgs {
    /// The compiled-plugin cache of the running host (its --cache-dir). Only the host's own user can connect there, and
    /// only there the differences that a version makes are shown
    #[arg(long, env = "OPERATOR_HOST_CACHE_DIR", value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    /// The health address of the running host (its --health-addr), as an alternative to --cache-dir [default:
    /// 127.0.0.1:8080]
    #[arg(long, env = "OPERATOR_HOST_ADDRESS", value_name = "HOST:PORT")]
    address: Option<String>,
    /// The output format [default: a table]
    #[arg(long, short, value_name = "FORMAT")]
    output: Option<Output>,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The whole report as YAML
    Yaml,
    /// The whole report as JSON
    Json,
}

impl Output {
    /// Formats a report.
    fn text(self, report: &impl Serialize) -> anyhow::Result<String> {
        Ok(match self {
            Self::Yaml => serde_saphyr::to_string(report)?,
            Self::Json => serde_json::to_string_pretty(report)? + "\n",
        })
    }
}

impl HostArgs {
    /// Sends a request to the host.
    async fn ask<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let folder = self.cache_dir.as_deref().filter(|_| self.address.is_none());
        let socket = folder.map(socket);
        let address = self.address.as_deref().unwrap_or(DEFAULT_ADDRESS);
        let place = match &socket {
            Some(socket) => socket.display().to_string(),
            None => address.to_owned(),
        };
        let asking = async {
            match &socket {
                Some(socket) => get(UnixStream::connect(socket).await?, "operator-host", path).await,
                None => {
                    let address = address.trim_start_matches("http://").trim_end_matches('/');
                    get(TcpStream::connect(address).await?, address, path).await
                }
            }
        };
        let asked = tokio::time::timeout(TIMEOUT, asking).await;
        let asked = asked.map_err(|_| anyhow!("no answer within {TIMEOUT:?}"));
        asked.flatten().with_context(|| {
            format!("cannot connect to the host at {place}: check that it runs with this --cache-dir or --health-addr")
        })
    }
}

/// Queries the host and prints its report.
///
/// # Errors
/// When no host answers at the address, or the host has no such controller.
pub async fn run(args: Args) -> Result<(), Failure> {
    if let Some(Command::History(args)) = args.command {
        return history::run(args).await;
    }
    let mut reports: Vec<PluginReport> = args.host.ask("/plugins").await?;
    let known: Vec<_> = reports.iter().map(|report| report.controller.as_str()).collect();
    let is_unknown = |name: &&String| !known.contains(&name.as_str());
    if let Some(name) = args.controllers.iter().find(is_unknown) {
        let known = known.join(", ");
        return Err(Failure::Usage(anyhow!(
            "the host has no controller {name:?}; it has {known}"
        )));
    }
    if !args.controllers.is_empty() {
        reports.retain(|report| args.controllers.contains(&report.controller));
    }
    let mut out = std::io::stdout().lock();
    let text = match args.host.output {
        Some(format) => format.text(&reports)?,
        None => text(&reports, Timestamp::now(), Paint::of(&out)),
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// Sends one HTTP/1.0 request, and returns the JSON in its answer. The answer ends when the connection closes.
async fn get<T: DeserializeOwned>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
) -> anyhow::Result<T> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.context("the answer is not HTTP")? + 4);
    let status = String::from_utf8_lossy(head);
    let status = status.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        let text = String::from_utf8_lossy(body);
        let error = serde_json::from_slice::<Value>(body).ok();
        let error = error.as_ref().and_then(|error| error["error"].as_str());
        bail!("the host answered {status}: {}", error.unwrap_or(text.trim()));
    }
    serde_json::from_slice(body).context("the answer is not what this version of the command expects")
}

/// Formats one line per controller, then the problems of each and the versions that it can return to.
fn text(reports: &[PluginReport], now: Timestamp, paint: Paint) -> String {
    let head = ["CONTROLLER", "PLUGIN", "VERSION", "DIGEST", "AGE", "CANDIDATE"].map(str::to_owned);
    let mut rows = vec![head];
    for report in reports {
        let live = report.live.as_ref();
        let text = |text: Option<String>| text.unwrap_or_else(|| "<none>".to_owned());
        let candidate = report.candidate.as_ref().map(|candidate| {
            let digest = candidate.digest.as_deref().map(short).unwrap_or_default();
            format!("{digest} {}", candidate.state.as_str()).trim().to_owned()
        });
        let pinned = if is_pinned(report) { " (pinned)" } else { "" };
        rows.push([
            report.controller.clone(),
            text(live.map(|live| live.name.clone())),
            text(live.map(|live| live.version.clone())),
            text(live.map(|live| short(&live.digest))) + pinned,
            text(live.map(|live| age(live.since, now))),
            text(candidate),
        ]);
    }
    let mut text = table(&rows).join("\n") + "\n";
    for report in reports {
        details(&mut text, report, now, paint);
    }
    text
}

fn details(text: &mut String, report: &PluginReport, now: Timestamp, paint: Paint) {
    let live = report.live.as_ref().map(|live| live.digest.as_str());
    let others = report.kept.iter().filter(|kept| live != Some(&*kept.digest));
    let others: Vec<_> = others
        .map(|kept| {
            let (digest, age) = (short(&kept.digest), age(kept.since, now));
            format!("{digest} ({}, live {age} ago)", kept.version)
        })
        .collect();
    let has_orders = report.pinned.is_some() || report.registry.is_some();
    if report.candidate.is_none() && others.is_empty() && !has_orders {
        return;
    }
    let _ = writeln!(text, "\n{}:", report.controller);
    if let Some(live) = &report.live {
        let _ = writeln!(text, "  live because: {}", live.because);
    }
    if let Some(registry) = &report.registry {
        let aged = |at: Option<Timestamp>, before: &str, after: &str| {
            at.map_or_else(String::new, |at| format!("{before} {}{after}", age(at, now)))
        };
        let manifest = registry.manifest.as_deref().map(short);
        let manifest = manifest.map_or_else(String::new, |it| format!(", manifest {it}"));
        let checked = aged(registry.checked, ", looked at", " ago");
        let _ = writeln!(text, "  from: {}{manifest}{checked}", report.file);
        if let Some(problem) = &registry.problem {
            let since = aged(registry.problem_since, " for", "");
            let state = paint.with(RED, "cannot be pulled");
            let _ = writeln!(text, "  {state}{since}: {}", printable(problem));
        }
    }
    if let Some(pinned) = &report.pinned {
        let problem = report.pin_problem.as_deref().map(printable);
        let problem = problem.map_or_else(String::new, |problem| format!("; {problem}"));
        let _ = writeln!(text, "  pinned: {pinned}{problem}");
    }
    if let Some(candidate) = &report.candidate {
        let code = match candidate.state {
            CandidateState::Proving | CandidateState::PutAside => YELLOW,
            CandidateState::HeldBack | CandidateState::Refused => RED,
        };
        let state = paint.with(code, candidate.state.as_str());
        let since = age(candidate.since, now);
        let _ = writeln!(text, "  {state} for {since}: {}", printable(&candidate.message));
        text.push_str(&paint.diff(&candidate.diff, "    "));
    }
    if !others.is_empty() {
        let _ = writeln!(text, "  earlier versions: {}", others.join(", "));
    }
}

/// Reports whether the live version is the pinned one.
fn is_pinned(report: &PluginReport) -> bool {
    let digits = |digest: &str| digest.trim_start_matches("sha256:").to_lowercase();
    let live = report.live.as_ref().map(|live| digits(&live.digest));
    let both = report.pinned.as_deref().map(digits).zip(live);
    both.is_some_and(|(pinned, live)| live.starts_with(&pinned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_delivery::report::{CandidateVersion, KeptVersion, LiveVersion, RegistryReport};

    fn digest(start: &str) -> String {
        format!("sha256:{start:0<64}")
    }

    #[test]
    fn the_table_shows_what_is_live_what_is_held_back_and_why() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let ago = |seconds| now - jiff::SignedDuration::from_secs(seconds);
        let report = PluginReport {
            controller: "echo".into(),
            file: "oci://r/echo:1".into(),
            registry: Some(RegistryReport {
                manifest: Some(digest("dddddddddddd")),
                checked: Some(ago(400)),
                problem: Some("r is \x1b[2Jaway".into()),
                problem_since: Some(ago(90)),
            }),
            live: Some(LiveVersion {
                digest: digest("aaaaaaaaaaaa"),
                name: "echo".into(),
                version: "1.0.0".into(),
                since: ago(300),
                because: "it was the first".into(),
                diff: String::new(),
            }),
            candidate: Some(CandidateVersion {
                digest: Some(digest("bbbbbbbbbbbb")),
                version: Some("1.1.0".into()),
                state: CandidateState::HeldBack,
                reason: Some("Fails".into()),
                message: "it fails on 1 \x1b[2Jobject".into(),
                summary: String::new(),
                diff: "-a\n+b\n c".into(),
                since: ago(5),
            }),
            pinned: None,
            pin_problem: None,
            kept: vec![KeptVersion {
                digest: digest("cccccccccccc"),
                version: "0.9.0".into(),
                since: ago(90_000),
            }],
        };
        let plain = PluginReport {
            controller: "mysql".into(),
            ..PluginReport::default()
        };
        let reports = [report, plain];
        assert_eq!(
            text(&reports, now, Paint(false)),
            "CONTROLLER   PLUGIN   VERSION   DIGEST         AGE      CANDIDATE\n\
             echo         echo     1.0.0     aaaaaaaaaaaa   5m       bbbbbbbbbbbb held back\n\
             mysql        <none>   <none>    <none>         <none>   <none>\n\
             \n\
             echo:\n  \
               live because: it was the first\n  \
               from: oci://r/echo:1, manifest dddddddddddd, looked at 6m ago\n  \
               cannot be pulled for 90s: r is  [2Jaway\n  \
               held back for 5s: it fails on 1  [2Jobject\n    \
                 -a\n    \
                 +b\n     \
                  c\n  \
               earlier versions: cccccccccccc (0.9.0, live 25h ago)\n"
        );
        let [echo, _] = &reports;
        let pinned = |digest: &str, problem: Option<&str>| {
            text(
                &[PluginReport {
                    pinned: Some(digest.to_owned()),
                    pin_problem: problem.map(str::to_owned),
                    ..echo.clone()
                }],
                now,
                Paint(false),
            )
        };
        let matches = pinned("sha256:aaaaaaaa", None);
        assert!(matches.contains("aaaaaaaaaaaa (pinned)"), "{matches}");
        let none = pinned("0123456789", Some("it is not \x1b[2Jkept"));
        assert!(
            !none.contains("(pinned)") && none.contains("pinned: 0123456789; it is not  [2Jkept\n"),
            "{none}"
        );
        let coloured = text(&reports, now, Paint(true));
        assert!(coloured.contains("\x1b[31m-a\x1b[0m"), "{coloured}");
    }
}
