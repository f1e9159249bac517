//! Computes the desired state and how the live state differs from it. Pure functions of objects: nothing here does I/O,
//! and the crate has neither a client nor a runtime.

pub mod ownership;
pub mod plan;
pub mod planned;
pub mod provenance;
pub mod refusal;

pub mod conditions;
pub mod drift;
pub mod generated;
pub mod left_fields;
pub mod names;
pub mod order;
pub mod parent_fields;
pub mod readiness;
pub mod selectors;
pub mod update;
