//! operator-host: runs Kubernetes operators whose logic is WebAssembly plugins, in one process.
//!
//! A change takes these steps:
//!
//! 1. `cluster::cache` receives it; [`controller`] maps it to a parent and adds that to the `work_queue`;
//! 2. [`reconcile`](operator_host_engine::reconcile) takes the parent; `reconcile::freshness` reads it from the API server if the cache may be behind;
//! 3. a paused parent ends here with a condition, and one with the finalizer of another controller;
//! 4. `reconcile::release` removes the owner references of children whose kind became retained, also while the plugin fails;
//! 5. `delivery::registry` has the live version of the plugin (`reconcile::canary` another one, for the parents of a stage), kept
//!    for the whole reconcile; it validates the parent, and `reconcile::finalizer` sets the finalizer;
//! 6. `reconcile::settle` goes through steps 6 to 10 until nothing changes any more: `reconcile::evaluate` calls the plugin
//!    until it has all that it needs; the [runtime](operator_host_runtime) makes each call in a fresh sandbox;
//! 7. `desired::plan` checks and completes what it asked for, without I/O;
//! 8. `reconcile::secrets` generates the Secrets that are missing;
//! 9. `reconcile::apply` applies the children that differ from what is known to be there;
//! 10. `reconcile::prune` deletes what is owned and no longer wanted, after every apply has succeeded;
//! 11. `reconcile::status` writes the status when something in it changed;
//! 12. back to the queue, with the next time or the back-off.
//!
//! For a parent that is being deleted, steps 6 to 10 ask the plugin to clean up, and `reconcile::teardown` deletes what is in an
//! order. What is left of one that is gone is deleted by `reconcile::orphans`. An error ends in `reconcile::failure`.
//!
//! The names are those of the crates `operator-host-…`; ARCHITECTURE.md has the map. `reconcile` and `reconcile::settle` alone know that order. The
//! runtime never sees a Kubernetes client. `desired` does no I/O.

pub mod cli;
pub mod controller;
pub mod operator;
pub mod supervisor;
pub mod telemetry;
pub mod ui;
pub mod uninstall;

mod freed_memory;
