//! The sample operators, from a resource to its children and its status.

pub mod echo;
pub mod hello;
pub mod many_echoes;
pub mod myapp;
pub mod mysql;
pub mod webapp;
