//! One child process: a log file of its own, a process group of its own, and never an orphan.

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

use crate::error::{Context, Error};

/// How often a condition outside of this process is looked at while waiting for it.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// Where a component writes.
#[derive(Debug)]
pub enum Output {
    /// stdout and stderr are appended to this file.
    File(PathBuf),
    /// stdout and stderr go into this pipe.
    Pipe(PipeWriter),
}

/// A running child process. Killed when the value is dropped and when this process dies, however it dies.
///
/// It has a process group of its own, so that Ctrl-C in a terminal reaches this process alone, which then
/// stops its components in order.
#[derive(Debug)]
pub struct Component {
    name: &'static str,
    child: Child,
    log: Option<PathBuf>,
}

impl Component {
    /// Starts `program` with `arguments` and `environment` on top of this process's own.
    ///
    /// # Errors
    /// [`Error::Io`] when the log cannot be opened or the program cannot be run.
    pub fn spawn(
        name: &'static str,
        program: &Path,
        arguments: &[String],
        environment: &[(&str, &Path)],
        output: Output,
    ) -> Result<Self, Error> {
        // PR_SET_PDEATHSIG through util-linux: no `unsafe` between fork and exec here. setpriv replaces
        // itself with the program, so the process that is killed is the right one.
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
                let copy = pipe.try_clone().context(|| "share a pipe".to_owned())?;
                command.stdout(copy).stderr(pipe);
                None
            }
            Output::File(path) => {
                let open = || OpenOptions::new().create(true).append(true).open(&path);
                let (stdout, stderr) = open()
                    .and_then(|file| Ok((file.try_clone()?, file)))
                    .context(|| format!("open the log {}", path.display()))?;
                command.stdout(stdout).stderr(stderr);
                Some(path)
            }
        };
        let child = spawn_from_lasting_thread(command).context(|| {
            format!(
                "start {name} ({}) through setpriv of util-linux",
                program.display()
            )
        })?;
        Ok(Self { name, child, log })
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, when it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails when the component has ended, with the end of its log.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(Error::Ended {
                component: self.name,
                status,
                log: self.log.clone().unwrap_or_default(),
                tail: self.tail(),
            }),
        }
    }

    pub(crate) fn not_ready(&self, after: Duration, last: String) -> Error {
        Error::NotReady {
            component: self.name,
            after,
            last,
            log: self.log.clone().unwrap_or_default(),
            tail: self.tail(),
        }
    }

    /// Waits until it has ended, at most `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.exited() {
                None if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                ended => return ended,
            }
        }
    }

    /// SIGTERM, and no wait for what it does with it.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// SIGTERM, then SIGKILL when it has not ended after `grace`. Says how it ended.
    pub async fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        self.terminate();
        if let Some(status) = self.wait(grace).await {
            return Some(status);
        }
        self.kill()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        // Fails only when it has been waited for already, which `wait` then answers.
        let _ = self.child.kill();
        self.child.wait().ok()
    }

    /// SIGSTOP: it keeps its connections and answers nothing. Returns when all its threads stand still, which
    /// on a busy machine is later than the signal.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a thread of it is neither stopped nor ended.
    fn runs(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        tasks.into_iter().flatten().flatten().any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which stands in parentheses: proc_pid_stat(5).
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state.is_some_and(|state| !matches!(state, 'T' | 't' | 'Z' | 'X'))
        })
    }

    /// SIGCONT: undoes `pause`.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // The child is not waited for before `self` goes, so the id is still its own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// The last lines of the log, each indented.
    fn tail(&self) -> String {
        let text = self
            .log
            .as_ref()
            .and_then(|log| std::fs::read(log).ok())
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(15)..].iter();
        last.map(|line| format!("  | {line}\n")).collect()
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        self.kill();
    }
}

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process does.
///
/// The kernel sends the parent-death signal when the *thread* that made the child ends, and a control plane
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
