//! The `operator-host` program.
fn main() {}
