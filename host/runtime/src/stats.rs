//! What a call used.

use std::time::Duration;

/// What a call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Time until the call had its turn and its share of the memory.
    pub waited: Duration,
    /// Time on a processor: making the sandbox and running the guest, without the time in which other calls
    /// had the thread.
    pub guest_time: Duration,
    /// Bytes of linear memory and tables at the end, which is also the most there were.
    pub peak_memory: usize,
    /// Bytes of JSON that went in.
    pub request_bytes: usize,
    /// Bytes of JSON that came out.
    pub response_bytes: usize,
    /// Lines that reached the log.
    pub log_lines: u32,
    /// Lines over the cap.
    pub log_lines_dropped: u32,
}
