//! The compiling process: reads a file, writes machine code and exits. `subprocess` starts it.

use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getppid, getpriority_process, set_dumpable_behavior,
    set_parent_process_death_signal, setpriority_process, setrlimit,
};

use crate::compile;
use crate::engine;
use crate::error::{Part, with_causes};

/// Name of the subcommand.
pub(crate) const COMMAND: &str = "compile-plugin";
/// Exit code when the file is not a plugin; standard output contains the [`LoadError`](crate::LoadError) as JSON.
pub(crate) const REFUSED: i32 = 1;
/// Exit code when the process could not limit itself or could not start; standard error contains the reason.
pub(crate) const UNLIMITED: i32 = 70;

/// Address space that is reserved and not used: the program, its libraries, stacks, the allocator's arenas.
const RESERVED: u64 = 1 << 30;
/// The niceness at first: that of slow plugins (see `lane`).
const NICE: i32 = 5;
/// The niceness of a compilation that takes long: it gets a third of the time of one that has just begun, and when a slow plugin
/// spins on every processor, a quarter of its time. With the lowest priority it would get a twentieth, and another controller's
/// first plugin would not start for minutes.
pub(crate) const NICE_LATER: i32 = 10;
/// Maximum number of open files: the three standard streams, and the files in `/proc` and `/sys` that the
/// compiler reads about the processor.
const FILES: u64 = 16;

/// The limits of a compiling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Bytes of memory.
    pub memory: u64,
    /// Seconds of processor time, summed over all threads.
    pub seconds: u64,
    /// The parent process; the compiling process ends with it.
    pub parent: u32,
}

impl Limited {
    /// Returns the arguments of the subcommand.
    pub(crate) fn arguments(&self) -> [String; 3] {
        [self.memory, self.seconds, u64::from(self.parent)].map(|number| number.to_string())
    }

    /// Applies the limits to this process before it starts threads, because priority is a property of a
    /// thread and new threads inherit it.
    fn enter(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
        if parent != Some(self.parent) {
            return Err(io::Error::other("the host that started it has ended"));
        }
        let both = |limit| Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(Resource::Data, both(self.memory))?;
        setrlimit(Resource::As, both(self.memory.saturating_add(RESERVED)))?;
        setrlimit(Resource::Fsize, both(0))?;
        setrlimit(Resource::Nofile, both(FILES))?;
        setrlimit(Resource::Core, both(0))?;
        // When the first of the two is reached, the process is ended by a signal that identifies the limit.
        let time = Rlimit {
            current: Some(self.seconds),
            maximum: Some(self.seconds + 1),
        };
        setrlimit(Resource::Cpu, time)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        // Only root may give a process a higher priority than its parent has.
        setpriority_process(None, NICE.max(getpriority_process(None)?))?;
        Ok(())
    }
}

/// Compiles the file on standard input, on behalf of [`crate::Subprocess`].
#[must_use]
pub fn compile_plugin(limits: &Limited) -> ExitCode {
    // When a container runs out of memory, the kernel should kill this process first. This is written before
    // the process becomes non-dumpable, because the file then belongs to root.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // The host shows these words to users, who have no use for a place in the compiler's sources.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{}", panic.payload_as_str().unwrap_or("it panicked"));
    }));
    let mut file = Vec::new();
    let begun = limits
        .enter()
        .and_then(|()| io::stdin().lock().read_to_end(&mut file).map(drop));
    if let Err(error) = begun {
        return unlimited(&error);
    }
    let engine = match engine::compiling() {
        Ok(engine) => engine,
        Err(error) => return unlimited(&with_causes(&error)),
    };
    let (output, code) = match compile::machine_code(&engine, &file) {
        Ok(code) => (code, ExitCode::SUCCESS),
        // Written to standard error, as the allocator does.
        Err(error) if error.part() == Part::Host => {
            eprintln!("{error}");
            return ExitCode::from(101);
        }
        Err(error) => (serde_json::to_vec(&error).unwrap_or_default(), exit_code(REFUSED)),
    };
    let mut stdout = io::stdout().lock();
    match stdout.write_all(&output).and_then(|()| stdout.flush()) {
        Ok(()) => code,
        // No process reads the output any more.
        Err(_) => ExitCode::from(101),
    }
}

fn unlimited(reason: &dyn Display) -> ExitCode {
    eprintln!("{reason}");
    exit_code(UNLIMITED)
}

fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
