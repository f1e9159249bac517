//! The resources used by a call.

use std::time::Duration;

/// The resources used by a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Time until the call had its code, its turn and its share of the memory.
    pub waited: Duration,
    /// Processor time for creating the sandbox and running the guest, without the time in which other calls
    /// used the thread.
    pub guest_time: Duration,
    /// Bytes of linear memory and tables at the end, which is also the peak.
    pub peak_memory: usize,
    /// Bytes of JSON in the request.
    pub request_bytes: usize,
    /// Bytes of JSON in the response.
    pub response_bytes: usize,
    /// Lines written to the log.
    pub log_lines: u32,
    /// Lines dropped because of the cap.
    pub log_lines_dropped: u32,
}
