//! Previews a reconcile: offline, on files (`render`), and on the objects of a cluster (`diff`).

pub mod documents;

pub mod offline;
pub mod server_side;
