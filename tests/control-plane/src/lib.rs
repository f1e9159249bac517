//! A real Kubernetes control plane on this machine, for the tests and for `make run`.
//!
//! [`ControlPlane::start`] runs etcd, kube-apiserver and kube-controller-manager on free ports of 127.0.0.1, with
//! data in a temporary folder. They are ready in a second or two, and are killed when the value is dropped and when
//! the process dies, in whatever way. Any number of them can run side by side, in one process or in many.
//!
//! There is no kubelet, scheduler or volume provisioner. [`node`] simulates them: pods become Ready after a moment
//! without any running container, and claims are bound to empty volumes. The ServiceAccount admission plugin is
//! off, so that a pod does not wait for its namespace's `default` account; `StorageObjectInUseProtection` is off
//! when there is no kube-controller-manager to remove its finalizers.
//!
//! Modules in reading order: `options` what to start, `cluster` the control plane, `component` one process,
//! `ports`, `binaries` and `install.sh` that provide the programs, `client`, `manifests`, `audit`, `observe`,
//! `accounts`, `process` what a process uses, `deployed` programs that have no node here, `proxy` network faults between a client and the API server, then
//! `node`.

mod accounts;
mod audit;
mod binaries;
mod client;
mod cluster;
mod component;
mod data;
pub mod deployed;
pub mod manifests;
pub mod node;
mod observe;
mod options;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod servers;

pub use audit::{AuditEvent, AuditObject, AuditStatus, AuditUser, read_since as audit_events_since};
pub use binaries::version;
pub use client::{connect, create_namespace};
pub use cluster::{ControlPlane, Snapshot};
pub use component::{Component, Output, last_lines};
pub use data::token;
pub use observe::{Changes, observe};
pub use options::{Options, User};
