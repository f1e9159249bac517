//! operator-host: one process that is every Kubernetes operator a team needs.
//!
//! A change takes nine steps:
//!
//! 1. `cluster::cache` receives it; [`controller`] maps it to a parent and adds that to the `work_queue`;
//! 2. [`reconcile`] takes the parent, checks the pause annotation and the finalizer;
//! 3. `plugin::registry` has the live version of the plugin, kept for the whole reconcile;
//! 4. the runtime, a crate of its own ([`operator_host_runtime`]), calls it in a fresh sandbox;
//! 5. `desired::plan` checks and completes what it asked for, without I/O;
//! 6. `reconcile::apply` applies the children that differ from what is known to be there;
//! 7. `reconcile::prune` deletes what is owned and no longer wanted, after every apply has succeeded;
//! 8. `reconcile::status` writes the status when something in it changed;
//! 9. back to the queue, with the next time or the back-off.
//!
//! `reconcile` alone knows that order. The runtime never sees a Kubernetes client. `desired` does no I/O.

pub mod cli;
pub mod config;
pub mod memory;

pub mod health;
pub mod metrics;
pub mod telemetry;
pub mod trace;

pub mod cluster;

pub mod backoff;
pub mod object;

pub mod leader;
pub mod operator;
pub mod supervisor;
pub mod webhook;

pub mod controller;
pub mod desired;
pub mod reconcile;
pub mod rollout;
pub mod work_queue;

pub mod crd;
pub mod dry_run;

pub mod record;

pub mod rbac;
pub mod uninstall;

pub mod plugin;

mod files;

#[cfg(test)]
mod layers;
