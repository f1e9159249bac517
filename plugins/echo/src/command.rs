//! Echo as a plain WASI command: JSON on standard input and output.

#[path = "lib.rs"]
mod plugin;

fn main() -> std::process::ExitCode {
    plugin::main()
}
