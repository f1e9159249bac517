//! The scenarios: tests of the real program.
//!
//! One file per subject. Most start the real host and share a control plane; they run in parallel, each with its own
//! namespace and host. Those that break the control plane start their own. A few need no cluster.

// A test binary exports nothing, and the names of its items describe them.
#![allow(missing_docs, unreachable_pub)]
// A helper that fails is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bystander;
mod measure;
mod mount;
mod puppet;
mod reload_memory;
mod support;

mod author_tools;
mod backup;
mod bad_answers;
mod bad_calls;
mod bad_files;
mod behind;
mod chart;
mod cluster_scoped;
mod compiling;
mod configuration;
mod contested;
mod contract;
mod convergence;
mod conversion;
mod crds;
mod deep;
mod definitions;
mod definitions_install;
mod deploy;
mod discovery;
mod drift;
mod echo;
mod evaluate;
mod explain;
mod figures;
mod first_sign;
mod hello;
mod hostile;
mod hot_loop;
mod impersonation;
mod invalid_spec;
mod killed;
mod leaders;
mod left_fields;
mod lifecycle;
mod limits;
mod many_echoes;
mod mutated;
mod myapp;
mod mysql;
mod namespaces;
mod needs;
mod neighbours;
mod order;
mod outages;
mod ownership;
mod packs;
mod page;
mod permanent_errors;
mod permissions;
mod process;
mod proving;
mod ready;
mod recreated_parent;
mod refused;
mod registry;
mod release;
mod reload;
mod requeue;
mod rights;
mod rules;
mod sbom;
mod secrets;
mod sharding;
mod telemetry;
mod tenancy;
mod threat_model;
mod transient_errors;
mod troubleshooting;
mod uninstall;
mod untouched;
mod versions;
mod volumes;
mod webapp;
mod webhook;
