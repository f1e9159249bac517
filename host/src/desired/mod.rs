//! What should be there, and whether it is: pure functions of objects. Nothing here does I/O or knows a client.

pub mod plan;

pub mod conditions;
pub mod drift;
pub mod selectors;
pub mod versions;
