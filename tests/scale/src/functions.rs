//! Which functions of the host run, and the linker script that puts them side by side.
//!
//! The kernel makes 64 KiB of a program resident around each page that is used. Most of the host's functions do not run in
//! an ordinary day; as long as those that do lie among them, nearly all of the program is resident.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use nix::libc::PTRACE_EVENT_EXEC;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use object::{Object as _, ObjectSymbol as _, SymbolKind};
use tokio::signal::unix::{SignalKind, signal};

/// The instruction `int3`.
const BREAKPOINT: &[u8] = &[0xcc];

/// Runs the host until it ends, and adds the names of its functions that ran to `list`, in the order in which they first
/// did. SIGTERM is passed on. What the host starts is not looked at.
pub(crate) async fn record(
    list: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("handle SIGTERM")?;
    let (started, pid) = tokio::sync::oneshot::channel();
    // A process obeys only the thread that traces it.
    let traced = tokio::task::spawn_blocking(move || {
        let tracer = Tracer::start(&program, &arguments)?;
        // Nobody is told when SIGTERM cannot be waited for.
        let _ = started.send(tracer.host);
        let (names, code) = tracer.run()?;
        add(&list, &names)?;
        anyhow::Ok(code)
    });
    tokio::spawn(async move {
        if let Ok(host) = pid.await {
            terminate.recv().await;
            // It may have ended by itself.
            let _ = kill(host, Signal::SIGTERM);
        }
    });
    traced.await?
}

fn add(list: &Path, names: &[String]) -> anyhow::Result<()> {
    let known = std::fs::read_to_string(list).unwrap_or_default();
    let known: BTreeSet<&str> = known.lines().collect();
    let new = names.iter().filter(|name| !known.contains(name.as_str()));
    let text: String = new.flat_map(|name| [name, "\n"]).collect();
    let file = OpenOptions::new().create(true).append(true).open(list);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
        .with_context(|| format!("write {}", list.display()))
}

/// A function of the program's file.
struct Function {
    /// More than one when the linker found that they are the same.
    names: Vec<String>,
    first_byte: u8,
}

struct Tracer {
    host: Pid,
    program: PathBuf,
    /// By address in the file.
    functions: HashMap<u64, Function>,
    /// What is added to an address of the file, as soon as the program is loaded.
    base: u64,
}

impl Tracer {
    fn start(program: &Path, arguments: &[String]) -> anyhow::Result<Self> {
        let program = program
            .canonicalize()
            .with_context(|| program.display().to_string())?;
        let functions = functions(&program)?;
        // It stops before it becomes the host, so that it can be traced from the host's first instruction.
        let child = Command::new("sh")
            .args(["-c", r#"kill -STOP $$; exec "$0" "$@""#])
            .arg(&program)
            .args(arguments)
            .spawn()
            .context("start a shell")?;
        let host = Pid::from_raw(child.id().cast_signed());
        waitpid(host, Some(WaitPidFlag::WUNTRACED)).context("wait for the shell")?;
        let options = Options::PTRACE_O_EXITKILL
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK;
        ptrace::seize(host, options)
            .context("trace the host: is another program tracing it, or is it forbidden here?")?;
        kill(host, Signal::SIGCONT).context("continue the shell")?;
        Ok(Self {
            host,
            program,
            functions,
            base: 0,
        })
    }

    /// Returns the names of the functions that ran, and the exit status.
    fn run(mut self) -> anyhow::Result<(Vec<String>, ExitCode)> {
        let mut ran = Vec::new();
        loop {
            let (thread, signal) =
                match waitpid(None, Some(WaitPidFlag::__WALL)).context("wait for the host")? {
                    WaitStatus::Exited(pid, code) if pid == self.host => {
                        let code = u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from);
                        return Ok((ran, code));
                    }
                    WaitStatus::Signaled(pid, signal, _) if pid == self.host => {
                        bail!("the host ended by {signal}")
                    }
                    WaitStatus::PtraceEvent(pid, _, PTRACE_EVENT_EXEC) if pid == self.host => {
                        self.set_breakpoints()?;
                        (pid, None)
                    }
                    // A child of the host has become another process.
                    WaitStatus::PtraceEvent(pid, _, PTRACE_EVENT_EXEC) => {
                        detach(pid)?;
                        continue;
                    }
                    WaitStatus::PtraceEvent(pid, ..) => (pid, None),
                    WaitStatus::Stopped(pid, Signal::SIGTRAP) => match self.hit(pid)? {
                        Some(function) => {
                            ran.extend(function);
                            (pid, None)
                        }
                        None => (pid, Some(Signal::SIGTRAP)),
                    },
                    WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                    _ => continue,
                };
            match ptrace::cont(thread, signal) {
                // It was killed meanwhile.
                Ok(()) | Err(nix::Error::ESRCH) => {}
                Err(error) => return Err(error).context("continue the host"),
            }
        }
    }

    fn set_breakpoints(&mut self) -> anyhow::Result<()> {
        let maps = format!("/proc/{}/maps", self.host);
        let maps = std::fs::read_to_string(&maps).with_context(|| maps.clone())?;
        let program = self.program.to_string_lossy();
        let first = maps.lines().find(|line| line.ends_with(program.as_ref()));
        let start = first.and_then(|line| line.split('-').next());
        let start = start.and_then(|start| u64::from_str_radix(start, 16).ok());
        self.base = start.with_context(|| format!("{program} is not in the memory of the host"))?;
        let memory = memory(self.host)?;
        for address in self.functions.keys() {
            memory
                .write_all_at(BREAKPOINT, self.base + address)
                .context("write a breakpoint")?;
        }
        Ok(())
    }

    /// Removes the breakpoint that a thread is at, and returns the names of the function. Returns none when the thread is
    /// at no breakpoint.
    fn hit(&mut self, thread: Pid) -> anyhow::Result<Option<Vec<String>>> {
        let mut registers = ptrace::getregs(thread).context("read the registers")?;
        let address = registers.rip - 1;
        let Some(function) = self.functions.get_mut(&address.wrapping_sub(self.base)) else {
            return Ok(None);
        };
        memory(thread)?
            .write_all_at(&[function.first_byte], address)
            .context("remove a breakpoint")?;
        registers.rip = address;
        ptrace::setregs(thread, registers).context("write the registers")?;
        // A second thread may be at the same one already.
        Ok(Some(std::mem::take(&mut function.names)))
    }
}

fn detach(pid: Pid) -> anyhow::Result<()> {
    match ptrace::detach(pid, None) {
        Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
        Err(error) => Err(error).context("let a child of the host go"),
    }
}

fn memory(pid: Pid) -> anyhow::Result<File> {
    let path = format!("/proc/{pid}/mem");
    let file = OpenOptions::new().write(true).open(&path);
    file.with_context(|| format!("open {path}"))
}

/// Returns the functions of a program by their addresses.
fn functions(program: &Path) -> anyhow::Result<HashMap<u64, Function>> {
    let bytes = std::fs::read(program)?;
    let file =
        object::File::parse(&*bytes).with_context(|| format!("{} is not a program", program.display()))?;
    let mut functions = HashMap::new();
    for symbol in file.symbols() {
        let is_function = symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0;
        let section = symbol.section_index().filter(|_| is_function);
        let Some(section) = section.and_then(|index| file.section_by_index(index).ok()) else {
            continue;
        };
        let first = object::ObjectSection::data_range(&section, symbol.address(), 1)?;
        let (Some([first_byte]), Ok(name)) = (first, symbol.name()) else {
            continue;
        };
        let function = functions.entry(symbol.address()).or_insert(Function {
            names: Vec::new(),
            first_byte: *first_byte,
        });
        function.names.push(name.to_owned());
    }
    ensure!(
        !functions.is_empty(),
        "{} has no symbols: build it with CARGO_PROFILE_RELEASE_STRIP=none",
        program.display()
    );
    Ok(functions)
}

/// Returns the linker script that puts the functions of a list side by side, each in its place in the list.
pub(crate) fn order(list: &str) -> String {
    let patterns: Vec<String> = list.lines().map(pattern).collect();
    let mut seen = BTreeSet::new();
    let mut script =
        "/* The functions that run in an ordinary day, side by side. `make order` writes this file. */\n\
        SECTIONS {\n.text.hot : {\n"
            .to_owned();
    for pattern in patterns.iter().filter(|pattern| seen.insert(pattern.as_str())) {
        // Writing to a string cannot fail.
        let _ = writeln!(script, "*(.text.{pattern})");
    }
    script + "}\n}\nINSERT BEFORE .text;\n"
}

/// Returns a pattern for the symbol of a function that also fits in another folder and with other options: the hash of a
/// crate is left open, and with it the references to earlier places of the symbol, whose numbers depend on its length. So
/// is the number behind a dot, by which LLVM tells functions of the same name apart.
///
/// Source: <https://doc.rust-lang.org/rustc/symbol-mangling/v0.html>
fn pattern(symbol: &str) -> String {
    let mut pattern = String::new();
    let (mut rest, end) = match symbol.split_once('.') {
        Some((name, _)) => (name, ".*"),
        None => (symbol, ""),
    };
    while let Some(at) = rest.find(['C', 'B']) {
        let (before, tail) = rest.split_at(at);
        pattern.push_str(before);
        let start = if tail.starts_with("Cs") { 2 } else { 1 };
        let digits = tail[start..].find(|c: char| !c.is_ascii_alphanumeric());
        let end = digits
            .map(|digits| start + digits)
            .filter(|end| tail[*end..].starts_with('_'));
        match end {
            Some(end) if start == 2 || tail.starts_with('B') => {
                pattern.push_str(&tail[..start]);
                pattern.push('*');
                rest = &tail[end..];
            }
            _ => {
                pattern.push_str(&tail[..1]);
                rest = &tail[1..];
            }
        }
    }
    pattern + rest + end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_leaves_the_hash_of_a_crate_and_references_open() {
        let symbol = "_RINvNtCs1bXw_5serde2de3fooNtCsfY8hzX_4kube6ClientB4_E";
        assert_eq!(pattern(symbol), "_RINvNtCs*_5serde2de3fooNtCs*_4kube6ClientB*_E");
        assert_eq!(pattern("_RNvCsA_1a.2387"), "_RNvCs*_1a.*");
        // Names of C, and letters that only look like references.
        for same in [
            "aws_lc_0_47_0_EVP_Cipher",
            "main",
            "B",
            "C",
            "ZSTD_decompressBlock",
        ] {
            assert_eq!(pattern(same), same);
        }
    }

    #[test]
    fn the_order_is_that_of_the_list_without_repetitions() {
        let script = order("b\n_RNvCsA_1a\n_RNvCsB_1a\na\n");
        let lines: Vec<&str> = script.lines().filter(|line| line.starts_with('*')).collect();
        assert_eq!(lines, ["*(.text.b)", "*(.text._RNvCs*_1a)", "*(.text.a)"]);
        assert!(script.ends_with("INSERT BEFORE .text;\n"), "{script}");
    }

    #[test]
    fn a_program_has_functions() {
        let functions = functions(&std::env::current_exe().unwrap()).unwrap();
        let is_main = |function: &Function| function.names.iter().any(|name| name == "main");
        assert!(functions.values().any(is_main));
        let error = functions_of_text();
        assert!(error.contains("is not a program"), "{error}");
    }

    fn functions_of_text() -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "text").unwrap();
        functions(file.path()).err().unwrap().to_string()
    }
}
