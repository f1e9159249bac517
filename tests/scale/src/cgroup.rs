//! What the kernel counts against the memory limit of a container: a control group with the measured process in it.
//!
//! Unlike the resident memory, it includes the kernel's memory for the process (sockets, page tables) and the files that
//! it was the first to read, but not pages of programs that were in memory before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What a column with this figure means.
pub(crate) const EXPLAINED: &str = "The memory of its control group is what a container's limit counts: also the kernel's \
    memory for the process, but not pages of its program that were in memory before.";

/// A control group of its own, which is removed when dropped.
pub(crate) struct Group {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    One,
    Two,
}

impl Group {
    /// Creates a group below the one of this process; `None` where that is not permitted.
    pub(crate) fn create() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (parent, version) = own()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("bench-scale-{}-{number}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let this = Self { folder, version };
        // Without the memory controller in the second version, there is nothing to read.
        this.working_set().is_some().then_some(this)
    }

    /// Returns the file that takes the ids of processes.
    pub(crate) fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Returns the memory in use but for files that the kernel can drop, in bytes: what `kubectl top` shows.
    pub(crate) fn working_set(&self) -> Option<u64> {
        let (usage, inactive) = match self.version {
            Version::One => ("memory.usage_in_bytes", "total_inactive_file"),
            Version::Two => ("memory.current", "inactive_file"),
        };
        let usage: u64 = self.read(usage)?.trim().parse().ok()?;
        let inactive = field(&self.read("memory.stat")?, inactive)?;
        Some(usage.saturating_sub(inactive))
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails while a process is in it, which was killed a moment ago.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Returns the group of this process.
fn own() -> Option<(PathBuf, Version)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    place(&groups, &mounts).filter(|(folder, _)| folder.exists())
}

/// Finds the folder of a group from proc_pid_cgroup(5) and the mounts. The first version of control groups is preferred:
/// where both are mounted, it has the controller of memory.
fn place(groups: &str, mounts: &str) -> Option<(PathBuf, Version)> {
    let path = |is_it: fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            is_it(controllers).then_some(path)
        })
    };
    let mount = |r#type: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, folder, kind, options, ..] = fields.as_slice() else {
                return None;
            };
            let has_option = option.is_empty() || options.split(',').any(|it| it == option);
            (*kind == r#type && has_option).then(|| Path::new(*folder))
        })
    };
    let below = |folder: &Path, path: &str| folder.join(path.trim_start_matches('/'));
    if let Some(path) = path(|controllers| controllers.split(',').any(|it| it == "memory")) {
        return mount("cgroup", "memory").map(|folder| (below(folder, path), Version::One));
    }
    let path = path(str::is_empty)?;
    mount("cgroup2", "").map(|folder| (below(folder, path), Version::Two))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(field, _)| *field == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_process_is_found_in_both_versions() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
            cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let one = place("4:memory:/pod/a\n1:cpu:/\n0::/b\n", mounts);
        assert_eq!(one, Some(("/sys/fs/cgroup/memory/pod/a".into(), Version::One)));
        let two = place("0::/b\n", mounts);
        assert_eq!(two, Some(("/sys/fs/cgroup/unified/b".into(), Version::Two)));
        assert_eq!(place("", mounts), None);
        assert_eq!(place("0::/b\n", ""), None);
    }

    #[test]
    fn a_field_has_the_whole_name() {
        let stat = "total_inactive_file 3\ninactive_file 4096\n";
        assert_eq!(field(stat, "inactive_file"), Some(4096));
        assert_eq!(field(stat, "file"), None);
    }

    #[test]
    fn a_process_in_a_group_takes_memory() {
        // Not permitted everywhere.
        let Some(group) = Group::create() else { return };
        let mut process = std::process::Command::new("sh")
            .args(["-c", r#"echo $$ >"$0" && echo in && exec sleep 100"#])
            .arg(group.processes())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = std::io::BufReader::new(process.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { output }, &mut line).unwrap();
        assert_eq!(line, "in\n");
        assert!(group.working_set().unwrap() > 0);
        process.kill().unwrap();
        process.wait().unwrap();
        let folder = group.folder.clone();
        drop(group);
        assert!(!folder.exists());
    }
}
