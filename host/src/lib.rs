//! operator-host: one process that is every Kubernetes operator a team needs.
//!
//! A change runs through it in a straight line:
//!
//! 1. `controller::watches` hears of it; [`controller`] turns it into a parent in the `queue`;
//! 2. `controller::reconcile` takes the parent, checks the pause annotation and the finalizer;
//! 3. `plugin::registry` says which version of the plugin is live, kept for the whole pass;
//! 4. the runtime, a crate of its own ([`operator_host_runtime`]), calls it in a fresh sandbox;
//! 5. `controller::children` checks and completes what it asked for, without I/O;
//! 6. `controller::apply` applies the children that differ from what is known to be there;
//! 7. `controller::prune` deletes what is owned and no longer wanted, after every apply has succeeded;
//! 8. `controller::status` writes the status when something in it changed;
//! 9. back to the queue, with the next time or the back-off.
//!
//! `reconcile` alone knows that order. The runtime never sees a Kubernetes client. `children` does no I/O.

pub mod cli;
pub mod config;
pub mod memory;

pub mod health;
pub mod metrics;
pub mod telemetry;
pub mod trace;

pub mod client;
pub mod leader;
pub mod operator;
pub mod supervisor;
pub mod webhook;

pub mod controller;

pub mod author;

pub mod record;

pub mod preview;

pub mod rbac;
pub mod uninstall;

pub mod plugin;

mod files;
