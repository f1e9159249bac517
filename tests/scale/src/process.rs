//! What a process uses, from `/proc`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::Context;

/// The unit of processor time that Linux always reports.
const TICK: Duration = Duration::from_millis(10);

/// Processor time since the start of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    /// Its own.
    pub(crate) own: Duration,
    /// That of its children that have ended.
    pub(crate) children: Duration,
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    /// Resident.
    pub(crate) resident: u64,
    /// Resident and not from a file: a limit of memory counts this for certain.
    pub(crate) anonymous: u64,
    /// The most that was resident.
    pub(crate) peak: u64,
}

/// What a process has open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Handles {
    pub(crate) descriptors: u64,
    pub(crate) sockets: u64,
    pub(crate) threads: u64,
}

pub(crate) fn times(pid: u32) -> anyhow::Result<Times> {
    parse_stat(&read(pid, "stat")?)
        .map(|stat| stat.times)
        .with_context(|| format!("/proc/{pid}/stat has another form"))
}

pub(crate) fn memory(pid: u32) -> anyhow::Result<Memory> {
    let status = read(pid, "status")?;
    let field = |name| kib(&status, name).with_context(|| format!("no {name} in /proc/{pid}/status"));
    Ok(Memory {
        resident: field("VmRSS:")?,
        anonymous: field("RssAnon:")?,
        peak: field("VmHWM:")?,
    })
}

pub(crate) fn handles(pid: u32) -> anyhow::Result<Handles> {
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
pub(crate) fn children() -> HashMap<String, u32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_a_name_with_parentheses() {
        let stat = "42 (a (b) c) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 20 10 20 0 9 0 100";
        let stat = parse_stat(stat).unwrap();
        assert_eq!(stat.name, "a (b) c");
        assert_eq!(stat.parent, 7);
        assert_eq!(stat.times.own, Duration::from_secs(2));
        assert_eq!(stat.times.children, Duration::from_millis(300));
        assert!(parse_stat("42 (a) S 7").is_none());
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t     12 kB\nThreads:\t3\n";
        assert_eq!(kib(status, "VmRSS:"), Some(12 << 10));
        assert_eq!(kib(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(kib(status, "RssAnon:"), None);
    }

    #[test]
    fn this_process_has_memory_threads_and_descriptors() {
        let pid = std::process::id();
        let memory = memory(pid).unwrap();
        assert!(
            memory.resident > 1 << 20 && memory.peak >= memory.anonymous,
            "{memory:?}"
        );
        let before = handles(pid).unwrap();
        let _socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(handles(pid).unwrap().sockets >= 1);
        assert!(before.threads >= 1);
        assert!(
            times(u32::MAX)
                .unwrap_err()
                .to_string()
                .contains("has the process ended?")
        );
    }
}
