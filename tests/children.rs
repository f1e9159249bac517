//! Children: what the host applies, leaves alone and deletes.

pub mod contested;
pub mod deep;
pub mod drift;
pub mod hot_loop;
pub mod keyed_lists;
pub mod left_fields;
pub mod metacontroller;
pub mod mutated;
pub mod order;
pub mod ownership;
pub mod refused;
pub mod replaced;
pub mod secrets;
pub mod turns;
pub mod warnings;
