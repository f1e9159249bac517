//! `operator-host schema`: prints the JSON Schema of the contract's documents, and the definitions of Controller and External.

mod controller;
mod external;

use clap::ValueEnum;
use schemars::schema_for;

use super::Failure;
use operator_host_contract::{CommandInput, CommandOutput};

/// The options of `schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The document that the plugin reads (request) or writes (response), or the CustomResourceDefinition of Controller or
    /// External
    document: Document,
}

/// A document of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// The document that a WASI command reads from standard input
    Request,
    /// The document that a WASI command writes to standard output
    Response,
    /// The CustomResourceDefinition of Controller, as YAML
    Controller,
    /// The CustomResourceDefinition of External, as YAML
    External,
}

/// Prints the schema.
///
/// # Errors
/// Never at present.
pub fn run(args: &Args) -> Result<(), Failure> {
    let schema = match args.document {
        Document::Request => schema_for!(CommandInput),
        Document::Response => schema_for!(CommandOutput),
        Document::Controller => return definition(&controller::definition()),
        Document::External => return definition(&external::definition()),
    };
    println!("{}", serde_json::to_string_pretty(&schema)?);
    Ok(())
}

fn definition(definition: &serde_json::Value) -> Result<(), Failure> {
    print!("{}", serde_saphyr::to_string(definition)?);
    Ok(())
}
