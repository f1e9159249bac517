//! Manages plugin files: detects when they appear, change or disappear, and selects the version that is live.
//! The [runtime](operator_host_runtime) compiles and calls them.

pub mod acceptance;
pub mod candidate_check;
pub mod cosign;
pub mod history;
pub mod kept;
pub mod keys;
pub mod location;
pub mod pack;
pub mod registry;
pub mod reload;
pub mod report;
pub mod statement;

mod follow;

pub(crate) mod source;

pub use candidate_check::Prefix;
pub use location::Location;
pub use operator_host_runtime::{
    Cache, CacheError, Call, CallError, CallStats, Class, CodeOrigin, Compiler, Digest, EngineError,
    EngineOptions, Form, LOG_TARGET, Limited, Limits, LoadError, Plugin, PluginBytes, RandomSource, Runtime,
    Share, Shown, Subprocess, compile_memory, compile_plugin, container, contract, estimate, interfaces,
    limits, max_memory_of_call, max_memory_of_one_call,
};

#[cfg(test)]
mod tests;
