//! Calls of plugins: what they may ask for, and what a bad plugin cannot do.

pub mod bad_answers;
pub mod bad_files;
pub mod compiling;
pub mod contract;
pub mod convergence;
pub mod evaluate;
pub mod hostile;
pub mod needs;
pub mod neighbours;
