//! Compiles each plugin in a separate process that runs this same program.
//!
//! The limits are its arguments ([`Limited`]), and the plugin's file is its standard input. The exit codes are:
//! - 0: standard output contains the machine code;
//! - [`REFUSED`]: the file is not a plugin, and standard output contains the [`LoadError`] as JSON;
//! - [`UNLIMITED`]: the process could not start or limit itself, and nothing was compiled;
//! - any other, or a signal: the compiler reached a limit, or failed.
//!
//! The kernel enforces the limits, and the process sets them before it reads a byte of the file. The parent
//! enforces the wall-clock limit by killing the process.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::thread::available_parallelism;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpriority_process, setpriority_process};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::child::{COMMAND, Limited, NICE_LATER, REFUSED, UNLIMITED};
use crate::error::{LoadError, Part, shortened};
use crate::limits::MIB;

/// Ratio of the wall-clock limit to the processor time limit. Compiling has a low priority, and no file can make it
/// wait.
const PATIENCE: u32 = 10;
/// How long the compilation of a plugin that is not large keeps its first priority. Most are compiled by then.
const SOON: Duration = Duration::from_secs(1);
/// Bytes of a plugin that takes long to compile in any case. If it began with the first priority, one tenant who delivers such
/// plugins again and again would always have it.
const LARGE: usize = MIB;
/// Maximum number of threads of one compilation.
const THREADS: usize = 4;
/// Machine code may have 1/`CODE_SHARE` of the compilation's memory, because the host keeps the code in its
/// own memory.
const CODE_SHARE: usize = 4;
/// Maximum number of bytes read from a compiling process's standard error; users read less.
const STDERR_LIMIT: u64 = 64 << 10;

/// How plugins are compiled.
#[derive(Clone, Debug)]
pub enum Compiler {
    /// In this process: for tests.
    InProcess,
    /// In a separate process for each file.
    Subprocess(Subprocess),
}

/// The compiling program and its memory limit.
#[derive(Clone, Debug)]
pub struct Subprocess {
    /// The program. It must be this program, because its output is executed.
    program: PathBuf,
    /// Bytes of memory that one compilation may have.
    memory: usize,
}

impl Subprocess {
    /// Compiles with this program, even when its file was replaced since it was started.
    #[must_use]
    pub fn this_program(memory: usize) -> Self {
        Self::program("/proc/self/exe", memory)
    }

    /// Compiles with another file, which must be of the same build. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn program(program: impl Into<PathBuf>, memory: usize) -> Self {
        Self {
            program: program.into(),
            memory,
        }
    }

    /// Compiles a file. Dropping the future ends the process.
    pub(crate) async fn compile(&self, file: &[u8], time: Duration) -> Result<Vec<u8>, LoadError> {
        let limited = Limited {
            memory: self.memory as u64,
            seconds: time.as_secs() + u64::from(time.subsec_nanos() > 0),
            parent: std::process::id(),
        };
        let threads = available_parallelism().map_or(1, usize::from).min(THREADS);
        // `PR_SET_PDEATHSIG` kills the child when the thread that started it exits. This thread is a worker of the
        // runtime, or the thread that waits for it; both live as long as the runtime.
        let mut child = Command::new(&self.program)
            .arg(COMMAND)
            .args(limited.arguments())
            .env_clear()
            .env("RAYON_NUM_THREADS", threads.to_string())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| no_process(&format!("{}: {error}", self.program.display())))?;
        let most = self.memory / CODE_SHARE;
        let wall = time.saturating_mul(PATIENCE);
        let process = child.id();
        let soon = if file.len() > LARGE { Duration::ZERO } else { SOON };
        let ended = async {
            let mut ended = pin!(communicate(&mut child, file, most));
            match tokio::time::timeout(soon, &mut ended).await {
                Ok(ended) => ended,
                Err(_) => {
                    give_way(process);
                    ended.await
                }
            }
        };
        let Ok(ended) = tokio::time::timeout(wall, ended).await else {
            // Waits for the exit, so that there are never more processes than are counted.
            let _ = child.kill().await;
            return Err(LoadError::new(
                Part::Size,
                format!(
                    "the plugin was not compiled within {wall:?} of wall-clock time: the machine is too busy, or the plugin \
                     too large"
                ),
            ));
        };
        let ended = ended.map_err(|error| no_process(&error.to_string()))?;
        if ended.output.len() > most {
            return Err(LoadError::new(
                Part::Size,
                format!(
                    "the plugin is more than {} MiB of machine code: make it smaller",
                    most / MIB
                ),
            ));
        }
        self.judge(ended, time)
    }

    fn judge(&self, ended: Ended, time: Duration) -> Result<Vec<u8>, LoadError> {
        let Ended {
            status,
            output,
            stderr,
        } = ended;
        let memory = || {
            let message = format!(
                "compiling the plugin takes more than {} MiB of memory: make it smaller, or give the container more memory, \
                 part of which the compiler may use, or raise `--compile-memory`",
                self.memory / MIB
            );
            LoadError::new(Part::Size, message)
        };
        let error = match (status.code(), status.signal().and_then(Signal::from_named_raw)) {
            (Some(0), _) => return Ok(output),
            (Some(REFUSED), _) => refused(&output),
            (Some(UNLIMITED), _) => no_process(&stderr),
            (_, Some(Signal::SYS)) => no_process("a system call is not permitted"),
            (_, Some(Signal::XCPU)) => LoadError::new(
                Part::Size,
                format!(
                    "the plugin was not compiled within {time:?} of processor time: make it smaller, or raise \
                     `limits.compile`"
                ),
            ),
            // Nothing else sends SIGKILL here, so the OOM killer did.
            (_, Some(Signal::KILL)) => memory(),
            _ if is_out_of_memory(&stderr) => memory(),
            _ => LoadError::new(
                Part::Compiler,
                format!(
                    "internal error: the compiler failed ({status}: {stderr}); please report it, with the plugin"
                ),
            ),
        };
        Err(error)
    }
}

/// Lowers the priority of a process that takes long, so that what others deliver meanwhile hardly waits for it.
fn give_way(process: Option<u32>) {
    // Only root may give a process a higher priority than this one has.
    let nice = NICE_LATER.max(getpriority_process(None).unwrap_or_default());
    // Priority is a property of a thread.
    let threads = process.map(|process| std::fs::read_dir(format!("/proc/{process}/task")));
    for thread in threads.into_iter().flatten().flatten().flatten() {
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(id) = id.and_then(Pid::from_raw) {
            // It may have ended.
            let _ = setpriority_process(Some(id), nice);
        }
    }
}

/// Returns the error when no process can be started, or none with limits.
fn no_process(why: &str) -> LoadError {
    let message = format!(
        "cannot start a process to compile the plugin ({why}): allow the container to start processes"
    );
    LoadError::new(Part::Host, message)
}

/// Reads the output of a process that refused a file.
fn refused(output: &[u8]) -> LoadError {
    match serde_json::from_slice::<LoadError>(output) {
        // It may list the imports of the file, or repeat their names.
        Ok(error) => LoadError::new(error.part(), shortened(&error.to_string())),
        Err(error) => LoadError::new(Part::Compiler, error.to_string()),
    }
}

/// How a compiling process ended, and its output.
struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    stderr: String,
}

async fn communicate(child: &mut Child, file: &[u8], most: usize) -> std::io::Result<Ended> {
    let (mut input, output, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(input) = &mut input {
            // The process may end before it has read everything; its exit status contains the reason.
            let _ = input.write_all(file).await;
        }
        drop(input.take());
    };
    let ((), output, stderr) = tokio::join!(write, read(output, most as u64 + 1), read(stderr, STDERR_LIMIT));
    let output = output?;
    if output.len() > most {
        child.kill().await?;
    }
    Ok(Ended {
        status: child.wait().await?,
        output,
        stderr: String::from_utf8_lossy(&stderr?).trim().to_owned(),
    })
}

async fn read(from: Option<impl AsyncRead + Unpin>, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // glibc maps allocations over 32 MiB directly and returns them to the kernel when they are freed. Smaller
    // allocations would come from its heaps and stay there. Pages that are not written cost nothing. If the
    // reservation fails, the vector grows.
    let _ = bytes.try_reserve_exact(usize::try_from(most).unwrap_or(0).max(33 * MIB));
    if let Some(from) = from {
        from.take(most).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Whether the output contains an out-of-memory message of Rust, its allocator or wasmtime.
fn is_out_of_memory(stderr: &str) -> bool {
    ["memory allocation of", "out of memory", "Cannot allocate memory"]
        .iter()
        .any(|words| stderr.contains(words))
}

/// Returns the memory limit of one compilation for a process with `process` bytes. It is a part of that
/// memory, because two compilations can run beside everything else.
#[must_use]
pub fn compile_memory(process: usize) -> usize {
    const MOST: usize = 1024 * MIB;
    const SHARE: usize = 3;
    (process / SHARE).min(MOST)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// In place of the compiler: prints its niceness when it has read the file.
    const PRIORITY: &str = "#!/bin/sh\ncat >/dev/null\nnice\n";

    #[tokio::test]
    async fn a_large_plugin_never_has_the_priority_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("compiler");
        std::fs::write(&program, PRIORITY).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let compiler = Subprocess::program(program, 64 * MIB);
        let priority = async |size| {
            let output = compiler.compile(&vec![0; size], Duration::from_secs(10)).await;
            String::from_utf8(output.unwrap())
                .unwrap()
                .trim()
                .parse::<i32>()
                .unwrap()
        };
        let usual = getpriority_process(None).unwrap();
        assert_eq!(priority(LARGE).await, usual);
        assert_eq!(priority(LARGE + 1).await, NICE_LATER.max(usual));
    }
}
