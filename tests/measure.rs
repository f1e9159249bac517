//! What tests and benchmarks measure: the memory of a process, changes with the time at which they are seen, and
//! percentiles.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::mpsc;

use crate::support::{Host, Scenario};

/// One megabyte in bytes.
pub const MB: f64 = 1e6;

/// States of objects, each with the time at which it was received.
pub type Changes = mpsc::UnboundedReceiver<(Instant, DynamicObject)>;

/// Returns every later state of every object of a kind.
pub async fn follow(scenario: &Scenario, kind: &str) -> Changes {
    let api = scenario.api(kind);
    let (sender, receiver) = mpsc::unbounded_channel();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut ready = Some(ready);
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::InitDone) => drop(ready.take().map(|ready| ready.send(()))),
                // `InitApply` after the first list: a list again, after a lost watch.
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) if ready.is_none() => {
                    let seen = (Instant::now(), object);
                    if sender.send(seen).is_err() {
                        return;
                    }
                }
                _ => {}
            }
        }
    });
    is_ready.await.expect("a list");
    receiver
}

/// Returns the resident memory of a host in bytes.
pub fn resident(host: &Host) -> u64 {
    memory(host.process().id(), "VmRSS:")
}

/// Returns the peak of the resident memory of a host in bytes, since [`forget_peak`] or its start.
pub fn peak(host: &Host) -> u64 {
    memory(host.process().id(), "VmHWM:")
}

/// Begins a new peak at the current resident memory. Source: proc_pid_clear_refs(5).
pub fn forget_peak(host: &Host) {
    std::fs::write(format!("/proc/{}/clear_refs", host.process().id()), "5").expect("it is our process");
}

/// Returns a value in bytes from the status of a process. Source: proc_pid_status(5).
fn memory(process: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let rest = status.lines().find_map(|text| text.strip_prefix(line));
    let kib = rest.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a figure") << 10
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
