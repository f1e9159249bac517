//! What the crates of operator-host share: values such as objects, definitions and digests, and small tools for files, text
//! and time. It has neither a client nor a runtime.

pub mod backoff;
pub mod child_rules;
pub mod clock;
pub mod crd;
pub mod digest;
pub mod field_path;
pub mod files;
pub mod json_text;
pub mod managed_fields;
pub mod namespaces;
pub mod object;
pub mod sync;
pub mod text;
