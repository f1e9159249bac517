//! The scenarios: the real host, as a process, against a real API server.
//!
//! One file per scenario. They share a control plane and run in parallel, each with its own namespace and host;
//! those that break the control plane start their own.

// A test binary exports nothing, and the names of its items describe them.
#![allow(missing_docs, unreachable_pub)]
// A helper that fails is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod mount;
mod puppet;
mod support;

mod author_tools;
mod bad_answers;
mod bad_calls;
mod bad_files;
mod behind;
mod cluster_scoped;
mod compiling;
mod configuration;
mod contract;
mod convergence;
mod crds;
mod definitions;
mod deploy;
mod echo;
mod echoes;
mod evaluate;
mod hello;
mod hostile;
mod impersonation;
mod killed;
mod leaders;
mod lifecycle;
mod mysql;
mod namespaces;
mod needs;
mod neighbours;
mod outages;
mod ownership;
mod packs;
mod permissions;
mod process;
mod proving;
mod recreated_parent;
mod refused;
mod reload;
mod renamed;
mod requeue;
mod rights;
mod sbom;
mod secrets;
mod sharding;
mod telemetry;
mod tenancy;
mod threat_model;
mod transient_errors;
mod troubleshooting;
mod uninstall;
mod versions;
mod volumes;
mod webhook;
