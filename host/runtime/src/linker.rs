//! What a component may import.

use wasmtime::{Engine, StoreContextMut};
use wasmtime_wasi::p2;

use crate::bindings::operator_host::plugin::logging::Level;
use crate::contract::ContractVersion;
use crate::sandbox::{Preview2, Sandbox};

pub(crate) type State = Sandbox<Preview2>;
pub(crate) type Linker = wasmtime::component::Linker<State>;

/// The interfaces that a component may import, without versions: those of the contract, and those that the
/// preview-1 adapter and the standard libraries for preview 2 import whether they use them or not. There is
/// no preopened directory, so the two `wasi:filesystem` interfaces give no access to files.
const IMPORTS: [&str; 22] = [
    "operator-host:plugin/logging",
    "operator-host:plugin/types",
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// Defines the interfaces in [`IMPORTS`] only.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker> {
    use p2::bindings::{cli, filesystem, random};
    use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
    use wasmtime_wasi::filesystem::{WasiFilesystem, WasiFilesystemView as _};
    use wasmtime_wasi::random::{WasiRandom, WasiRandomView as _};

    let mut linker = Linker::new(engine);
    let l = &mut linker;
    // Clocks, streams, standard input and output, and `wasi:random/random`.
    p2::add_to_linker_proxy_interfaces_async(l)?;
    cli::environment::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::exit::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_input::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_output::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdin::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stdout::add_to_linker::<State, WasiCli>(l, State::cli)?;
    cli::terminal_stderr::add_to_linker::<State, WasiCli>(l, State::cli)?;
    filesystem::preopens::add_to_linker::<State, WasiFilesystem>(l, State::filesystem)?;
    filesystem::types::add_to_linker::<State, WasiFilesystem>(l, State::filesystem)?;
    random::insecure::add_to_linker::<State, WasiRandom>(l, State::random)?;
    random::insecure_seed::add_to_linker::<State, WasiRandom>(l, State::random)?;
    add_logging(l)?;
    Ok(linker)
}

/// Whether this host provides an interface, such as `wasi:io/poll@0.2.6`, to plugins.
pub(crate) fn gives(import: &str) -> bool {
    let interface = import.split_once('@').map_or(import, |(interface, _)| interface);
    IMPORTS.contains(&interface) && !is_of_other_wasi(import)
}

/// Whether an interface is of another version of WASI than 0.2, such as `wasi:cli/stdout@0.3.0`.
fn is_of_other_wasi(interface: &str) -> bool {
    let version = interface.split_once('@').map(|(_, version)| version);
    interface.starts_with("wasi:") && version.is_some_and(|version| !version.starts_with("0.2."))
}

fn add_logging(linker: &mut Linker) -> wasmtime::Result<()> {
    let name = format!("operator-host:plugin/logging@{}", ContractVersion::V1);
    let mut instance = linker.instance(&name)?;
    instance.func_wrap(
        "log",
        |store: StoreContextMut<'_, State>, (level, message): (Level, String)| {
            store.data().log.line(level, &message);
            Ok(())
        },
    )
}
