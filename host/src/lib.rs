//! operator-host: one process that is every Kubernetes operator a team needs.

pub mod config;
pub mod plugin;
