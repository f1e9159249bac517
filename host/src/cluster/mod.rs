//! The cluster: connections, what kinds there are, caches of their objects, requests, Events.

pub mod client;

pub mod discovery;

pub mod cache;
pub mod namespaces;

pub mod event_recorder;
pub(crate) mod refusal;
pub mod resource_client;
