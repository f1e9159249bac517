//! The memory available to this process.

use std::path::Path;

/// Returns the available memory in bytes: the smallest limit of the process's control group and its
/// ancestors, or the memory of the machine. Returns `None` when neither can be read.
#[must_use]
pub fn memory() -> Option<usize> {
    limit(Path::new("/"))
}

fn limit(root: &Path) -> Option<usize> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups
        .lines()
        .filter_map(|line| group(root, line))
        .chain(machine(root))
        .min()
}

/// Returns the limit in a line of `/proc/self/cgroup`: `0::/path`, or in version 1 `4:memory:/path`. Source:
/// cgroups(7).
fn group(root: &Path, line: &str) -> Option<usize> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (folder, file) = match controllers {
        "" => (root.join("sys/fs/cgroup"), "memory.max"),
        "memory" => (root.join("sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    // In a container the path may be outside of the container; the group mounted at the top is then the
    // container's own.
    let inner = folder.join(path.trim_start_matches('/'));
    let groups = inner.ancestors().take_while(|group| group.starts_with(&folder));
    groups
        .filter_map(|group| number(&std::fs::read_to_string(group.join(file)).ok()?))
        .min()
}

/// Parses a number; `max` yields `None`.
fn number(text: &str) -> Option<usize> {
    text.trim().parse().ok()
}

fn machine(root: &Path) -> Option<usize> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    number(line.trim().strip_suffix("kB")?)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        root
    }

    const MEMORY: (&str, &str) = ("proc/meminfo", "MemTotal:       4194304 kB\nMemFree: 1 kB\n");

    #[test]
    fn the_smallest_of_the_groups_around_the_process_counts() {
        let root = machine_with(&[
            MEMORY,
            ("proc/self/cgroup", "0::/kubepods/pod1\n"),
            ("sys/fs/cgroup/kubepods/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/kubepods/pod1/memory.max", "max\n"),
        ]);
        assert_eq!(limit(root.path()), Some(2 << 30));
        let root = machine_with(&[
            MEMORY,
            ("proc/self/cgroup", "0::/../../kubepods/pod1\n"),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
        ]);
        assert_eq!(limit(root.path()), Some(512 << 20), "in a container");
        let root = machine_with(&[
            MEMORY,
            ("proc/self/cgroup", "5:cpu:/a\n4:memory:/docker/1\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"),
        ]);
        assert_eq!(limit(root.path()), Some(256 << 20), "version 1, in a container");
    }

    #[test]
    fn without_a_limit_it_is_the_machines_memory() {
        let root = machine_with(&[
            MEMORY,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ]);
        assert_eq!(limit(root.path()), Some(4 << 30));
        assert_eq!(limit(machine_with(&[]).path()), None);
    }
}
