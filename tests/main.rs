//! The scenarios: tests of the real program.
//!
//! A folder for each subject, and `support` for what they share. Most start the real host and share a control plane;
//! they run in parallel, each with its own namespace and host. Those that break the control plane start their own. A
//! few need no cluster.

// A test binary exports nothing, and the names of its items describe them.
#![allow(missing_docs, unreachable_pub)]
// A helper that fails is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod author_tools;
mod children;
mod controllers;
mod decorators;
mod definitions;
mod delivery;
mod deploy;
mod external;
mod faults;
mod leadership;
mod page;
mod parents;
mod plugins;
mod repository;
mod samples;
mod support;
mod telemetry;
mod webhook;
