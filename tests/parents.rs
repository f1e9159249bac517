//! Parents: when they are reconciled, what their status says, and how they are deleted.

pub mod cluster_scoped;
pub mod explain;
pub mod initial_condition;
pub mod invalid_spec;
pub mod lifecycle;
pub mod namespaces;
pub mod permanent_errors;
pub mod ready;
pub mod recreated_parent;
pub mod requeue;
pub mod untouched;
