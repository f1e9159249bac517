//! Plugins as files that come, go and change: from a folder to the version that is live. What compiles and calls them is
//! the [runtime](operator_host_runtime).

pub mod keys;
pub mod pack;
pub mod proof;
pub mod registry;
pub mod reload;
pub mod report;
pub mod statement;
pub mod trust;
pub mod versions;

pub(crate) mod source;

pub use operator_host_runtime::{
    Cache, CacheError, Call, CallError, CallStats, Class, Compiler, Digest, Draw, EngineError, EngineOptions,
    Form, LOG_TARGET, Limited, Limits, LoadError, Made, Outside, Plugin, Runtime, Share, compile_memory,
    compile_plugin, container, contract, limits, most, room_for_one, weigh,
};
pub use proof::Prefix;

#[cfg(test)]
mod tests;
