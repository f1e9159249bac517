//! The `operator-host` program: parses the command line, runs the command and returns its exit code.

use std::process::ExitCode;

use clap::Parser;
use operator_host::cli::{self, Cli, Command};
use operator_host_author::{
    check, crd, diff, new, pack, push, rbac, render, replay, schema, sign, verify, webhook_manifests,
};
use operator_host_runtime::{Limited, compile_plugin};

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if !matches!(command, Command::Run(_) | Command::Egress(_)) {
        end_with_the_reader();
    }
    // The child lowers its priority, which only threads started afterwards inherit.
    if let Command::CompilePlugin {
        memory,
        seconds,
        parent,
    } = command
    {
        return compile_plugin(&Limited {
            memory,
            seconds,
            parent,
        });
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("operator-host: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match command {
            Command::Run(args) => cli::run::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Egress(args) => cli::egress::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::New(args) => new::run(&args).map(|()| ExitCode::SUCCESS),
            Command::Plugins(args) => cli::plugins::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Crd(args) => crd::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Render(args) => render::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Check(args) => check::run(args).await,
            Command::WebhookManifests(args) => webhook_manifests::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Diff(args) => diff::run(args).await,
            Command::Explain(args) => cli::explain::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Replay(args) => replay::run(args).await,
            Command::Push(args) => push::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Pack(args) => pack::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Sign(args) => sign::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Verify(args) => verify::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Rbac(args) => rbac::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Uninstall(args) => cli::uninstall::run(args).await,
            Command::Schema(args) => schema::run(&args).map(|()| ExitCode::SUCCESS),
            Command::Completions(args) => cli::completions::run(&args).map(|()| ExitCode::SUCCESS),
            // Handled above.
            Command::CompilePlugin { .. } => Ok(ExitCode::FAILURE),
        }
    });
    // Do not wait for a plugin that is still being compiled.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(failure) => {
            let (cli::Failure::Usage(error) | cli::Failure::Other(error)) = &failure;
            let is_unread = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
            let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
            if causes.any(is_unread) {
                return ExitCode::SUCCESS;
            }
            eprintln!("operator-host: {}", cli::words(error));
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Ends the process in silence when it prints and nobody reads its output any more, as in `operator-host schema request |
/// head -1`. Then `print!` panics, and so do libraries that print. A default action for SIGPIPE would end the process at a closed connection,
/// too.
fn end_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // With the text of the operating system.
        let text = panic.payload_as_str().unwrap_or_default();
        if text.contains("Broken pipe") {
            std::process::exit(0);
        }
        usual(panic);
    }));
}
