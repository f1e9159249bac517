//! The `operator-host` program: parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use operator_host::cli::{self, Cli, Command};

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => cli::run::run(args).await,
        Command::Crd(args) => cli::crd::run(args).await,
        Command::Render(args) => return exit(cli::render::run(args).await),
        Command::Check(args) => return exit(cli::check::run(args).await),
        Command::Schema(args) => cli::schema::run(&args),
    };
    exit(result.map(|()| ExitCode::SUCCESS))
}

fn exit(result: Result<ExitCode, cli::Failure>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(failure) => {
            let (cli::Failure::Usage(error) | cli::Failure::Other(error)) = &failure;
            eprintln!("operator-host: {error:#}");
            ExitCode::from(failure.exit_code())
        }
    }
}
