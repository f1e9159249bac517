//! Ports on 127.0.0.1 that stay reserved even while nothing listens on them.
//!
//! A port found by binding to port 0 is free only until it is assigned to another process. These are below the
//! ephemeral range, from which outgoing connections get their ports, and each is reserved by a lock on a file:
//! against every process of this user, for as long as the value lives, and no longer than the process.

use std::{
    fs::{File, OpenOptions},
    hash::{BuildHasher, RandomState},
    net::TcpListener,
    path::PathBuf,
};

use anyhow::{Context as _, bail};

const FROM: u16 = 15_000;

/// A port that is reserved until this is dropped.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub number: u16,
    _lock: File,
}

/// Reserves a free port.
pub fn reserve() -> anyhow::Result<Port> {
    let folder = shared_folder()?.join("ports");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let to = ephemeral_from().clamp(FROM + 1, 32_768);
    let span = to - FROM;
    // Start at a random port, so that processes that start together do not try the same ports in turn.
    let start = (RandomState::new().hash_one(std::process::id()) % u64::from(span)) as u16;
    for offset in 0..span {
        let number = FROM + (start + offset) % span;
        let path = folder.join(number.to_string());
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
            return Ok(Port { number, _lock: lock });
        }
    }
    bail!("no free port on 127.0.0.1 between {FROM} and {to}")
}

/// Returns the folder below the system's temporary one that this user's control planes share.
pub(crate) fn shared_folder() -> anyhow::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("operator-host-control-plane-{user}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

fn ephemeral_from() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}
