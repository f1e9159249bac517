//! The `operator-host` program: parses the command line, runs the command and returns its exit code.

use std::process::ExitCode;

use clap::Parser;
use operator_host::cli::{self, Cli, Command};

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // The child lowers its priority, which only threads started afterwards inherit.
    if let Command::CompilePlugin(args) = &command {
        return cli::compile_plugin::run(args);
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
            Command::New(args) => cli::new::run(&args).map(|()| ExitCode::SUCCESS),
            Command::Plugins(args) => cli::plugins::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Crd(args) => cli::crd::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::MigrateStorage(args) => {
                cli::migrate_storage::run(args).await.map(|()| ExitCode::SUCCESS)
            }
            Command::Render(args) => cli::render::run(args).await,
            Command::Check(args) => cli::check::run(args).await,
            Command::WebhookManifests(args) => cli::webhook_manifests::run(args)
                .await
                .map(|()| ExitCode::SUCCESS),
            Command::Diff(args) => cli::diff::run(args).await,
            Command::Explain(args) => cli::explain::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Replay(args) => cli::replay::run(args).await,
            Command::Push(args) => cli::push::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Pack(args) => cli::pack::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Sign(args) => cli::sign::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Verify(args) => cli::verify::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Rbac(args) => cli::rbac::run(args).await.map(|()| ExitCode::SUCCESS),
            Command::Uninstall(args) => cli::uninstall::run(args).await,
            Command::Schema(args) => cli::schema::run(&args).map(|()| ExitCode::SUCCESS),
            Command::Completions(args) => cli::completions::run(&args).map(|()| ExitCode::SUCCESS),
            // Handled above.
            Command::CompilePlugin(args) => Ok(cli::compile_plugin::run(&args)),
        }
    });
    // Do not wait for a plugin that is still being compiled.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(failure) => {
            let (cli::Failure::Usage(error) | cli::Failure::Other(error)) = &failure;
            eprintln!("operator-host: {}", cli::words(error));
            ExitCode::from(failure.exit_code())
        }
    }
}
