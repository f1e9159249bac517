//! operator-host: runs Kubernetes operators whose logic is WebAssembly plugins, in one process.
//!
//! A change takes these steps:
//!
//! 1. `cluster::cache` receives it; [`controller`] maps it to a parent and adds that to the `work_queue`;
//! 2. [`reconcile`] takes the parent; `reconcile::freshness` reads it from the API server if the cache may be behind;
//! 3. a paused parent ends here, and one with the finalizer of another controller;
//! 4. `plugin::registry` has the live version of the plugin, kept for the whole reconcile;
//! 5. `reconcile::release` removes the owner references of children whose kind became retained, the plugin validates the
//!    parent, and `reconcile::finalizer` sets the finalizer;
//! 6. `reconcile::evaluate` calls the plugin until it has all that it needs; the runtime, a crate of its own
//!    ([`operator_host_runtime`]), makes each call in a fresh sandbox;
//! 7. `desired::plan` checks and completes what it asked for, without I/O;
//! 8. `reconcile::secrets` generates the Secrets that are missing;
//! 9. `reconcile::apply` applies the children that differ from what is known to be there;
//! 10. `reconcile::prune` deletes what is owned and no longer wanted, after every apply has succeeded; if steps 8 to 10
//!     changed anything, step 6 is next;
//! 11. `reconcile::status` writes the status when something in it changed;
//! 12. back to the queue, with the next time or the back-off.
//!
//! `reconcile` alone knows that order. The runtime never sees a Kubernetes client. `desired` does no I/O.

pub mod cli;
pub mod memory_limit;

pub mod telemetry;

pub mod operator;
pub mod supervisor;
pub mod ui;

pub mod controller;
pub mod rollout;

pub mod definitions;
pub mod dry_run;

pub mod rbac;
pub mod uninstall;

mod freed_memory;
