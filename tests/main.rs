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

mod bad_answers;
mod bad_calls;
mod bad_files;
mod behind;
mod cluster_scoped;
mod compiling;
mod configuration;
mod contract;
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
mod kit;
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
mod refused;
mod reload;
mod renamed;
mod rights;
mod rounds;
mod sbom;
mod secrets;
mod spreading;
mod successors;
mod telemetry;
mod tenancy;
mod threat_model;
mod troubleshooting;
mod turns;
mod uninstall;
mod versions;
mod volumes;
mod weather;
mod webhook;
