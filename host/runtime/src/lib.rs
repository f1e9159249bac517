//! The plugin runtime of operator-host: loads a WebAssembly file and calls it in a fresh sandbox. It contains
//! no Kubernetes client.
//!
//! The [`Runtime`] (engine, linkers) is created once per process, and the [`Plugin`] (machine code, linked)
//! once per file. Memory, clocks and log are created for one call and dropped when it ends.
//!
//! It is a separate crate because it is compiled for speed, and the rest of the program for size.
//!
//! ```no_run
//! use operator_host_runtime::contract::Request;
//! use operator_host_runtime::{EngineOptions, Limits, Runtime};
//!
//! # async fn example(request: Request) -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::new(EngineOptions::default())?;
//! let plugin = runtime.load(std::fs::read("echo.wasm")?, Limits::default()).await?;
//! println!("{} {}", plugin.description().name, plugin.description().version);
//! let response = plugin.reconcile(&request).await.outcome?;
//! println!("{} children", response.children.len());
//! # Ok(())
//! # }
//! ```

// What callers set and create.
pub mod limits;
mod runtime;

// The WebAssembly engine, and how calls share threads and memory.
mod engine;
pub mod fair;
mod lane;
mod memory_budget;
mod ticker;

// From a file to machine code, and its cache.
mod code;
mod code_cache;
mod error;
mod form;
mod loader;
mod resident;

// The compiler, in this process or in a separate one.
mod child;
mod compile;
mod inspect;
mod subprocess;

// The limits of the container that this process runs in.
pub mod container;

// One call, in either form of a plugin, and its answer.
mod call;
mod command;
mod component;
mod convert;
pub mod estimate;
mod linker;
mod refusals;

// What a plugin sees during a call, and what is measured.
mod deterministic;
mod log;
mod sandbox;
mod stats;

mod bindings;

#[doc(hidden)]
pub mod fuzzing;

pub use call::Call;
pub use child::{Limited, compile_plugin};
pub use code_cache::{Cache, CacheError};

pub use contract::ContractVersion;
pub use engine::EngineError;
pub use error::{CallError, Class, LoadError, Part};
pub use form::Form;
pub use inspect::interfaces;
pub use limits::{EngineOptions, Limits};
pub use loader::CodeOrigin;
pub use log::TARGET as LOG_TARGET;
pub use memory_budget::{Share, max_memory_of_call, max_memory_of_one_call};
pub use operator_host_contract as contract;
pub use runtime::{Plugin, RandomSource, Runtime};
pub use stats::CallStats;
pub use subprocess::{Compiler, Subprocess, compile_memory};

#[cfg(test)]
mod tests;
