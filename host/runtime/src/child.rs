//! The compiling process: reads a file, writes machine code, ends. `outside` starts it.

use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getppid, set_dumpable_behavior,
    set_parent_process_death_signal, setpriority_process, setrlimit,
};

use crate::compile;
use crate::engine;
use crate::error::LoadError;

/// The subcommand.
pub(crate) const COMMAND: &str = "compile-plugin";
/// The exit code when the file is no plugin; standard output says why.
pub(crate) const REFUSED: i32 = 1;
/// The exit code when the process could not limit itself, or could not begin; standard error says why.
pub(crate) const UNLIMITED: i32 = 70;

/// Address space that is reserved and not used: the program, its libraries, stacks, the allocator's arenas.
const RESERVED: u64 = 1 << 30;
/// Open files: the three standard ones, and what the compiler asks of the processor in `/proc` and `/sys`.
const FILES: u64 = 16;

/// The limits of a compiling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Bytes of memory.
    pub memory: u64,
    /// Seconds of processor time, over all its threads.
    pub seconds: u64,
    /// The process that it must not outlive.
    pub parent: u32,
}

impl Limited {
    /// As the subcommand takes them.
    pub(crate) fn arguments(&self) -> [String; 3] {
        [self.memory, self.seconds, u64::from(self.parent)].map(|number| number.to_string())
    }

    /// Puts the limits on this process, before it has threads: priority is a thread's, and those that it starts have it
    /// from this one.
    fn enter(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
        if parent != Some(self.parent) {
            return Err(io::Error::other("the host that asked for it is gone"));
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
        // At the first of the two it is ended by a signal that says why.
        let time = Rlimit {
            current: Some(self.seconds),
            maximum: Some(self.seconds + 1),
        };
        setrlimit(Resource::Cpu, time)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        setpriority_process(None, 19)?;
        Ok(())
    }
}

/// Compiles the file on standard input, as [`crate::Outside`] asks for it.
#[must_use]
pub fn compile_plugin(limits: &Limited) -> ExitCode {
    // Where memory runs out for a whole container, this is what the kernel should take. Before the process is not
    // dumpable any more: this file is root's then.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut file = Vec::new();
    let begun = limits
        .enter()
        .and_then(|()| io::stdin().lock().read_to_end(&mut file).map(drop));
    if let Err(error) = begun {
        return unlimited(&error);
    }
    let engine = match engine::compiling() {
        Ok(engine) => engine,
        Err(error) => return unlimited(&format!("{error:#}")),
    };
    let (output, code) = match compile::machine_code(&engine, &file) {
        Ok(code) => (code, ExitCode::SUCCESS),
        // Standard error, as the allocator does it.
        Err(LoadError::Host { message }) => {
            eprintln!("{message}");
            return ExitCode::from(101);
        }
        Err(error) => (error.to_string().into_bytes(), exit_code(REFUSED)),
    };
    let mut stdout = io::stdout().lock();
    match stdout.write_all(&output).and_then(|()| stdout.flush()) {
        Ok(()) => code,
        // Nobody reads it.
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
