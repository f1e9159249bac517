//! A control group with a limit of memory, of version 1 or 2.

use std::path::{Path, PathBuf};

/// The limit.
const MEMORY: u64 = 512 << 20;

/// A control group, which is removed when it is dropped.
pub(crate) struct Group(PathBuf);

impl Group {
    /// Creates the group; `None` where this is not permitted.
    pub(crate) fn create() -> Option<Self> {
        let name = format!("operator-host-tenant-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let (folder, limit) = match root.join("cgroup.controllers").exists() {
            true => (root.join(name), "memory.max"),
            false => (root.join("memory").join(name), "memory.limit_in_bytes"),
        };
        std::fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        std::fs::write(group.0.join(limit), MEMORY.to_string()).ok()?;
        // Not everywhere is there swap, or a limit for it.
        let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
        let _ = std::fs::write(group.0.join("memory.memsw.limit_in_bytes"), MEMORY.to_string());
        Some(group)
    }

    /// Returns the file into which a process writes its id to join.
    pub(crate) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have just been killed, and leave it in a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
