//! Compiling in a process of its own: the same program, started for one file and gone after it.
//!
//! What goes between the two: the limits as arguments ([`Limited`]), the plugin's file on standard input, machine code on
//! standard output with the exit code 0, or with [`REFUSED`] the reason why the file is no plugin. [`UNLIMITED`] means that
//! nothing was compiled. Any other end is the compiler's: it ran into a limit, or failed.
//!
//! The kernel keeps the limits, and the process sets them before it reads a byte of the file; the time by the clock is
//! this side's, which kills it.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::thread::available_parallelism;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::child::{COMMAND, Limited, REFUSED, UNLIMITED};
use crate::error::LoadError;
use crate::limits::MIB;

/// By the clock, compiling may take so many times its processor time: it has the lowest priority, and no file can make it
/// wait.
const PATIENCE: u32 = 10;
/// The most threads that one compilation has.
const THREADS: usize = 4;
/// Machine code may have this part of the memory in which it is made: the host keeps it in its own.
const CODE_SHARE: usize = 4;
/// Bytes of what a compiling process says that are read; people read less.
const SAID: u64 = 64 << 10;

/// Who compiles plugins.
#[derive(Clone, Debug)]
pub enum Compiler {
    /// This process: for programs that end when they have looked at a plugin, and for tests.
    Inside,
    /// A process for each file.
    Outside(Outside),
}

/// The program that compiles, and how much memory it may have.
#[derive(Clone, Debug)]
pub struct Outside {
    /// The program: it must be this very one, since what it writes is run.
    program: PathBuf,
    /// Bytes of memory that one compilation may have.
    memory: usize,
}

/// Why there is no machine code.
#[derive(Debug)]
pub(crate) enum Failed {
    /// No process can be started, or none that is limited.
    Start(String),
    /// It is the plugin's fault.
    Plugin(LoadError),
}

impl Outside {
    /// By this program, whatever has become of its file since it was started.
    #[must_use]
    pub fn this_program(memory: usize) -> Self {
        Self::program("/proc/self/exe", memory)
    }

    /// By another file, which must be of the same build. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn program(program: impl Into<PathBuf>, memory: usize) -> Self {
        Self {
            program: program.into(),
            memory,
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Compiles a file. Dropping the future ends the process.
    pub(crate) async fn compile(&self, file: &[u8], time: Duration) -> Result<Vec<u8>, Failed> {
        let limited = Limited {
            memory: self.memory as u64,
            seconds: time.as_secs() + u64::from(time.subsec_nanos() > 0),
            parent: std::process::id(),
        };
        let threads = available_parallelism().map_or(1, usize::from).min(THREADS);
        // The kernel ends the child with the thread that started it. This one is a worker of the runtime, or the thread
        // that waits for it: both live as long as the runtime does.
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
            .map_err(|error| Failed::Start(format!("{}: {error}", self.program.display())))?;
        let most = self.memory / CODE_SHARE;
        let wall = time.saturating_mul(PATIENCE);
        let Ok(ended) = tokio::time::timeout(wall, talk(&mut child, file, most)).await else {
            // Not only asked to end: there are never more than are counted.
            let _ = child.kill().await;
            return Err(Failed::Plugin(LoadError::CompileStalled(wall)));
        };
        let ended = ended.map_err(|error| Failed::Start(error.to_string()))?;
        if ended.output.len() > most {
            return Err(Failed::Plugin(LoadError::TooMuchCode { limit: most }));
        }
        self.judge(ended, time)
    }

    fn judge(&self, ended: Ended, time: Duration) -> Result<Vec<u8>, Failed> {
        let Ended { status, output, said } = ended;
        let memory = || LoadError::CompileMemory { limit: self.memory };
        let error = match (status.code(), status.signal().and_then(Signal::from_named_raw)) {
            (Some(0), _) => return Ok(output),
            (Some(REFUSED), _) => LoadError::Refused {
                message: String::from_utf8_lossy(&output).into_owned(),
            },
            (Some(UNLIMITED), _) => return Err(Failed::Start(said)),
            (_, Some(Signal::SYS)) => {
                return Err(Failed::Start("a system call is forbidden to it".into()));
            }
            (_, Some(Signal::XCPU)) => LoadError::CompileTimeout(time),
            // Not by us: by the kernel, when the container has no memory left.
            (_, Some(Signal::KILL)) => memory(),
            _ if is_out_of_memory(&said) => memory(),
            _ => LoadError::Compiler {
                message: format!("{status}: {said}"),
            },
        };
        Err(Failed::Plugin(error))
    }
}

/// How a compiling process ended, and what it wrote.
struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    said: String,
}

async fn talk(child: &mut Child, file: &[u8], most: usize) -> std::io::Result<Ended> {
    let (mut input, output, said) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(input) = &mut input {
            // It may end before it has read all; how it ended says why.
            let _ = input.write_all(file).await;
        }
        drop(input.take());
    };
    let ((), output, said) = tokio::join!(write, read(output, most as u64 + 1), read(said, SAID));
    let output = output?;
    if output.len() > most {
        child.kill().await?;
    }
    Ok(Ended {
        status: child.wait().await?,
        output,
        said: String::from_utf8_lossy(&said?).trim().to_owned(),
    })
}

async fn read(from: Option<impl AsyncRead + Unpin>, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // glibc takes what is larger than 32 MiB from the kernel and gives it back at once, whatever was allocated before. Less
    // would come from its heaps and stay there. What is not written to costs nothing; without it the vector grows.
    let _ = bytes.try_reserve_exact(usize::try_from(most).unwrap_or(0).max(33 * MIB));
    if let Some(from) = from {
        from.take(most).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// What Rust, its allocator and wasmtime say then.
fn is_out_of_memory(said: &str) -> bool {
    ["memory allocation of", "out of memory", "Cannot allocate memory"]
        .iter()
        .any(|words| said.contains(words))
}

/// The memory that one compilation may have in a process that may have so much: a part of it, since two compile at a time
/// beside all else.
#[must_use]
pub fn compile_memory(process: usize) -> usize {
    const MOST: usize = 1024 * MIB;
    const SHARE: usize = 3;
    (process / SHARE).min(MOST)
}
