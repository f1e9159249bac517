//! Fuzz targets: each takes any bytes, passes them to one part of the host or of the SDK, and panics when an
//! invariant does not hold.
//!
//! `tests/corpora.rs` runs them on the corpora and on mutations of those in `make test`; `coverage/` runs them
//! under libFuzzer in `make fuzz`.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a target fails by panicking"
)]

mod draw;

mod answer;
mod config;
mod conversion;
mod mask;
mod pack;
mod plugin_file;
mod registry;
mod review;
mod selector;
mod watch;

mod scanner;

// The tested modules of the SDK, included from its crate: they depend only on the standard library and serde_json.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../plugins/sdk/src/kinds.rs"]
mod kinds;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../plugins/sdk/src/object.rs"]
mod object;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../plugins/sdk/src/readiness.rs"]
mod readiness;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../plugins/sdk/src/scan.rs"]
mod scan;

/// One target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of its corpus, a folder in `corpora/`.
    pub name: &'static str,
    /// Panics when an invariant does not hold for these bytes.
    pub run: fn(&[u8]),
    /// Maximum size of an input in bytes: longer ones find nothing new and take longer.
    pub longest: usize,
    /// Number of mutations per file of the corpus in a short run; lower for slow targets.
    pub mutations: u32,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("plugin-file", plugin_file::run, 16 << 10, 2_000),
    target("answer", answer::run, 8 << 10, 2_000),
    target("pack", pack::run, 4 << 10, 150),
    target("config", config::run, 8 << 10, 500),
    target("selector", selector::run, 1 << 10, 5_000),
    target("review", review::run, 4 << 10, 2_000),
    target("conversion", conversion::run, 4 << 10, 2_000),
    target("registry", registry::run, 2 << 10, 2_000),
    target("mask", mask::run, 4 << 10, 2_000),
    target("scan", scanner::run, 4 << 10, 5_000),
    target("watch", watch::run, 4 << 10, 2_000),
];

const fn target(name: &'static str, run: fn(&[u8]), longest: usize, mutations: u32) -> Target {
    Target {
        name,
        run,
        longest,
        mutations,
    }
}

/// Returns the target of this name.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}
