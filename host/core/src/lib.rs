//! What the crates of operator-host share: objects and definitions of Kubernetes, metrics and spans, and small tools for
//! files, text and time. Nothing here knows a client.

pub mod backoff;
pub mod changes;
pub mod clock;
pub mod crd;
pub mod field_path;
pub mod files;
pub mod http_client;
pub mod json_text;
pub mod managed_fields;
pub mod metrics;
pub mod object;
pub mod printable;
pub mod renewed;
pub mod server;
pub mod sync;
pub mod trace;
