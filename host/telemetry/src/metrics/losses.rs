//! How much telemetry was dropped, counted where it is dropped and exported as a metric like any other.

use std::sync::atomic::{AtomicU64, Ordering};

/// One of the things that are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
    /// Log records.
    Logs,
}

impl Signal {
    /// In lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

/// Why telemetry was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The host produced more than the collector accepted.
    QueueFull,
    /// The collector was away, too slow, or refused it.
    Refused,
}

impl LossReason {
    /// One word, for a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
        }
    }
}

/// Counts of what was dropped: spans, log records, and exports of metrics.
#[derive(Debug, Default)]
pub struct Losses([[AtomicU64; 2]; 3]);

impl Losses {
    /// Counts what was dropped.
    pub fn add(&self, signal: Signal, reason: LossReason, items: usize) {
        self.0[signal as usize][reason as usize].fetch_add(items as u64, Ordering::Relaxed);
    }

    /// The count of each signal and reason, those of nothing too.
    pub fn all(&self) -> impl Iterator<Item = (Signal, LossReason, u64)> {
        let signals = [Signal::Traces, Signal::Metrics, Signal::Logs].into_iter();
        let reasons = [LossReason::QueueFull, LossReason::Refused];
        let each = signals.flat_map(move |signal| reasons.map(|reason| (signal, reason)));
        each.map(|(signal, reason)| {
            let count = &self.0[signal as usize][reason as usize];
            (signal, reason, count.load(Ordering::Relaxed))
        })
    }
}
