//! Faults around the host: of the API server, the network, volumes and the process itself.

pub mod behind;
pub mod clocks;
pub mod killed;
pub mod outages;
pub mod renewed;
pub mod restored;
pub mod slow_requests;
pub mod transient_errors;
pub mod volumes;
