//! How plugins reach the host, and how a new version takes over.

pub mod packs;
pub mod proving;
pub mod registry;
pub mod reload;
