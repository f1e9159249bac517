//! What tests and benchmarks measure: the memory of a process, changes with the time at which they are seen, and
//! percentiles.

use std::path::Path;
use std::time::Duration;

use control_plane::{Changes, observe, process};

use crate::support::{Host, Scenario};

/// One megabyte in bytes.
pub const MB: f64 = 1e6;

/// Returns every later state of every object of a kind.
pub async fn follow(scenario: &Scenario, kind: &str) -> Changes {
    observe(scenario.api(kind)).await.expect("a list")
}

/// Returns the resident memory of a host in bytes.
pub fn resident(host: &Host) -> u64 {
    memory(host).resident
}

/// Returns the anonymous memory of a host in bytes. It shows growth: the host unmaps its code once, some seconds after its start.
pub fn anonymous(host: &Host) -> u64 {
    memory(host).anonymous
}

/// Returns the peak of the resident memory of a host in bytes, since [`forget_peak`] or its start.
pub fn peak(host: &Host) -> u64 {
    memory(host).peak
}

fn memory(host: &Host) -> process::Memory {
    process::memory(host.process().id()).expect("it runs")
}

/// Begins a new peak at the current resident memory. Source: proc_pid_clear_refs(5).
pub fn forget_peak(host: &Host) {
    std::fs::write(format!("/proc/{}/clear_refs", host.process().id()), "5").expect("it is our process");
}

/// Returns the value below which this share of the samples is.
pub fn percentile(samples: &[Duration], share: f64) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Keeps figures of a test, one a line, for the end of `make test`: what a test prints is hidden when it passes.
pub fn report(test: &str, figures: &str) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(test), format!("{figures}\n")).expect("a file");
}
