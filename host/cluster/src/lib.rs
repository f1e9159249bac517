//! Access to the cluster: connections, discovery, caches, requests and Events.

pub mod client;

pub mod discovery;

pub mod cache;
pub mod kind_reflectors;
pub mod namespaces;

pub mod api_error;
pub mod event_recorder;
pub mod objects;
pub mod refusal;
pub mod renewed;
pub mod resource_client;
pub mod term;
pub mod turn;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
