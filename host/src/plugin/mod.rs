//! The plugin runtime: from a file of WebAssembly to a call in a fresh sandbox. Knows no Kubernetes client.

pub mod contract;
