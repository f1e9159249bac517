//! The plugin runtime of operator-host: from a file of WebAssembly to a call in a fresh sandbox. Knows no Kubernetes
//! client.
//!
//! What is made once for a process is the [`Runtime`] (engine, linkers); what is made once for a file is the
//! [`Plugin`] (machine code, linked); everything else, memory and clocks and log, is made for one call and
//! gone after it.
//!
//! A crate of its own because it is compiled for speed, and all the rest of the program for size.

pub mod contract;
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
pub use maker::Made;
pub use outside::{Compiler, Outside, compile_memory};
pub use runtime::{Draw, Form, Plugin, Runtime};
pub use share::{Share, most, room_for_one};
pub use stats::CallStats;

#[cfg(test)]
mod tests;
