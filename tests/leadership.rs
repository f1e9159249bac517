//! Several replicas of the host.

pub mod leaders;
