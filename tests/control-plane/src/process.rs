//! What a process uses, from `/proc`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::Context;

/// The unit of processor time that Linux always reports.
const TICK: Duration = Duration::from_millis(10);

/// Processor time since the start of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Its own.
    pub own: Duration,
    /// That of its children that have ended.
    pub children: Duration,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Resident.
    pub resident: u64,
    /// Resident and not from a file: a limit of memory counts this for certain.
    pub anonymous: u64,
    /// The most that was resident.
    pub peak: u64,
}

/// What a process has open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Handles {
    /// File descriptors, sockets included.
    pub descriptors: u64,
    /// Sockets.
    pub sockets: u64,
    /// Threads.
    pub threads: u64,
}

/// Returns the processor time of a process.
pub fn times(pid: u32) -> anyhow::Result<Times> {
    parse_stat(&read(pid, "stat")?)
        .map(|stat| stat.times)
        .with_context(|| format!("/proc/{pid}/stat has another form"))
}

/// Returns the memory of a process.
pub fn memory(pid: u32) -> anyhow::Result<Memory> {
    let status = read(pid, "status")?;
    let field = |name| kib(&status, name).with_context(|| format!("no {name} in /proc/{pid}/status"));
    Ok(Memory {
        resident: field("VmRSS:")?,
        anonymous: field("RssAnon:")?,
        peak: field("VmHWM:")?,
    })
}

/// Returns what a process has open.
pub fn handles(pid: u32) -> anyhow::Result<Handles> {
    let folder = format!("/proc/{pid}/fd");
    let targets: Vec<_> = fs::read_dir(&folder)
        .with_context(|| folder.clone())?
        .flatten()
        .map(|entry| fs::read_link(entry.path()).unwrap_or_default())
        .collect();
    let sockets = targets
        .iter()
        .filter(|target| target.to_string_lossy().starts_with("socket:"));
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .context("the threads")?
        .count();
    Ok(Handles {
        descriptors: targets.len() as u64,
        sockets: sockets.count() as u64,
        threads: threads as u64,
    })
}

/// Returns the ids of this process's children, by the names of their programs.
pub fn children() -> HashMap<String, u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let stat = parse_stat(&fs::read_to_string(process.path().join("stat")).ok()?)?;
        (stat.parent == std::process::id()).then_some((stat.name, pid))
    });
    stats.collect()
}

fn read(pid: u32, file: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).with_context(|| format!("read {path}: has the process ended?"))
}

struct Stat {
    name: String,
    parent: u32,
    times: Times,
}

/// Source: proc_pid_stat(5). The name is in parentheses and may contain any character.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Field 3 of the manual is the first here.
    let ticks = |field: usize| fields.get(field - 3)?.parse::<u32>().ok();
    Some(Stat {
        name: name.to_owned(),
        parent: ticks(4)?,
        times: Times {
            own: TICK * (ticks(14)? + ticks(15)?),
            children: TICK * (ticks(16)? + ticks(17)?),
        },
    })
}

/// Returns a field of proc_pid_status(5) in bytes.
fn kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
