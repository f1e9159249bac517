//! Plugins in OCI registries, in the CNCF layout for Wasm artifacts: pulls them, pushes them, and bounds what a
//! registry can do to the host.
//!
//! Sources: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md>,
//! <https://tag-runtime.cncf.io/wgs/wasm/deliverables/wasm-oci-artifact/>,
//! <https://distribution.github.io/distribution/spec/auth/token/>.
//!
//! The configuration names [a reference](operator_host_config::reference). From the outside in: [`pull`] and [`push`], [`registry`] (the requests, with authentication), [`transport`] (one bounded exchange).

pub mod artifact;
pub mod credentials;
pub mod error;
pub mod pull;
pub mod push;
pub mod registry;
pub mod transport;

mod challenge;

#[cfg(test)]
mod tests;
