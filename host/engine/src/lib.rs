//! One reconcile of one parent, and the queue that it comes from.
//!
//! [`reconcile`] and its module `settle` alone know the order of the steps. [`operator_host_desired`] computes what should exist, without I/O. [`work_queue`] says
//! which parent is next.

pub mod calls;
pub mod reconcile;
pub mod validation;
pub mod work_queue;
