//! A child process with its own log file and process group, which is never orphaned.

use std::{
    fs::OpenOptions,
    io::{self, PipeWriter},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{LazyLock, mpsc},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use anyhow::{Context as _, anyhow};

/// How often a condition outside of this process is polled.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// The destination of a component's output.
#[derive(Debug)]
pub enum Output {
    /// stdout and stderr are appended to this file.
    File(PathBuf),
    /// stdout and stderr go into this pipe.
    Pipe(PipeWriter),
}

/// A running child process. It is killed when the value is dropped and when this process dies, in whatever way.
///
/// It has its own process group, so that Ctrl-C in a terminal reaches only this process, which then stops its
/// components in order.
#[derive(Debug)]
pub struct Component {
    name: &'static str,
    child: Child,
    log: Option<PathBuf>,
}

impl Component {
    /// Starts `program` with `arguments`, and with `environment` in addition to this process's own.
    pub fn spawn(
        name: &'static str,
        program: &Path,
        arguments: &[String],
        environment: &[(&str, &Path)],
        output: Output,
    ) -> anyhow::Result<Self> {
        // Set PR_SET_PDEATHSIG through util-linux, which needs no `unsafe` between fork and exec. setpriv replaces
        // itself with the program, so the signal reaches the right process.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments);
        command
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .process_group(0);
        let log = match output {
            Output::Pipe(pipe) => {
                let copy = pipe.try_clone().with_context(|| "share a pipe".to_owned())?;
                command.stdout(copy).stderr(pipe);
                None
            }
            Output::File(path) => {
                let open = || OpenOptions::new().create(true).append(true).open(&path);
                let (stdout, stderr) = open()
                    .and_then(|file| Ok((file.try_clone()?, file)))
                    .with_context(|| format!("open the log {}", path.display()))?;
                command.stdout(stdout).stderr(stderr);
                Some(path)
            }
        };
        let child = spawn_from_lasting_thread(command).with_context(|| {
            format!(
                "start {name} ({}) through setpriv of util-linux",
                program.display()
            )
        })?;
        Ok(Self { name, child, log })
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails with the end of its log when the component has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(self.failed(&format!("ended with {status}"))),
        }
    }

    /// Returns an error about it, with the end of its log.
    pub(crate) fn failed(&self, what: &str) -> anyhow::Error {
        let log = self.log.clone().unwrap_or_default();
        anyhow!(
            "{} {what}; the end of its log {}:\n{}",
            self.name,
            log.display(),
            self.tail()
        )
    }

    /// Waits up to `limit` until it has ended.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.exited() {
                None if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                ended => return ended,
            }
        }
    }

    /// Sends SIGTERM without waiting.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGTERM, then SIGKILL if it has not ended after `grace`. Returns the exit status.
    pub async fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        self.terminate();
        if let Some(status) = self.wait(grace).await {
            return Some(status);
        }
        self.kill()
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        // Fails only when it was already waited for; then `wait` returns the status.
        let _ = self.child.kill();
        self.child.wait().ok()
    }

    /// Sends SIGSTOP: the process keeps its connections and answers nothing. Returns when all its threads are
    /// stopped, which takes a while on a busy machine.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reports whether one of its threads is neither stopped nor ended.
    fn runs(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        tasks.into_iter().flatten().flatten().any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name in parentheses: proc_pid_stat(5).
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state.is_some_and(|state| !matches!(state, 'T' | 't' | 'Z' | 'X'))
        })
    }

    /// Sends SIGCONT, which undoes `pause`.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // The child is not reaped before `self` is dropped, so the id is still its own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Returns the last lines of the log, indented.
    fn tail(&self) -> String {
        let last = self.log.iter().flat_map(|log| last_lines(log, "", 15));
        last.map(|line| format!("  | {line}\n")).collect()
    }
}

/// Returns the last lines of a log that contain `text`.
#[must_use]
pub fn last_lines(log: &Path, text: &str, lines: usize) -> Vec<String> {
    let log = std::fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let about: Vec<_> = log.lines().filter(|line| line.contains(text)).collect();
    let last = &about[about.len().saturating_sub(lines)..];
    last.iter().map(|line| (*line).to_owned()).collect()
}

impl Drop for Component {
    fn drop(&mut self) {
        self.kill();
    }
}

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process.
///
/// The kernel sends the parent-death signal when the *thread* that created the child ends, and a control plane
/// outlives the thread of the test or of the tokio runtime that started it.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: LazyLock<mpsc::Sender<Request>> = LazyLock::new(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in requests {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, answered) = mpsc::channel();
    SPAWNER.send((command, answer)).map_err(io::Error::other)?;
    answered.recv().map_err(io::Error::other)?
}
