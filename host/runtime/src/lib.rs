//! The plugin runtime of operator-host: loads a WebAssembly file and calls it in a fresh sandbox. It contains
//! no Kubernetes client.
//!
//! The [`Runtime`] (engine, linkers) is created once per process, and the [`Plugin`] (machine code, linked)
//! once per file. Memory, clocks and log are created for one call and dropped when it ends.
//!
//! It is a separate crate because it is compiled for speed, and the rest of the program for size.

pub mod limits;

mod runtime;

mod engine;
mod fair;
mod lane;
mod share;
mod ticker;

mod cache;
mod code;
mod error;
mod failures;
mod maker;

mod child;
mod compile;
mod counts;
mod inspect;
mod outside;

pub mod container;

mod call;
mod command;
mod component;
mod convert;
mod versions;
pub mod weigh;

mod deterministic;
mod log;
mod sandbox;
mod stats;

mod bindings;
mod digest;

#[doc(hidden)]
pub mod fuzzing;

pub use cache::{Cache, CacheError};
pub use call::Call;
pub use child::{Limited, compile_plugin};

pub use contract::ContractVersion;
pub use digest::Digest;
pub use engine::EngineError;
pub use error::{CallError, Class, Count, LoadError};
pub use limits::{EngineOptions, Limits};
pub use log::TARGET as LOG_TARGET;
pub use maker::CodeOrigin;
pub use operator_host_contract as contract;
pub use outside::{Compiler, Outside, compile_memory};
pub use runtime::{Form, Plugin, RandomSource, Runtime};
pub use share::{Share, most, room_for_one};
pub use stats::CallStats;

#[cfg(test)]
mod tests;
