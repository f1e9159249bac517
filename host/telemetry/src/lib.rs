//! The metrics and the spans of the host, and both of each HTTP request that it sends. What exports them is in the program.

pub mod http_client;
pub mod metrics;
pub mod trace;
