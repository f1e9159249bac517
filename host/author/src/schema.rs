//! `operator-host schema`: prints the JSON Schema of the contract's documents.

use clap::ValueEnum;
use schemars::{Schema, schema_for};

use super::Failure;
use operator_host_contract::{CommandInput, CommandOutput};

/// The options of `schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The document that the plugin reads (request) or writes (response)
    document: Document,
}

/// A document of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// The document that a WASI command reads from standard input
    Request,
    /// The document that a WASI command writes to standard output
    Response,
}

impl Document {
    /// Returns the document's JSON Schema, draft 2020-12.
    #[must_use]
    pub fn schema(self) -> Schema {
        match self {
            Self::Request => schema_for!(CommandInput),
            Self::Response => schema_for!(CommandOutput),
        }
    }
}

/// Prints the schema.
///
/// # Errors
/// Never at present.
pub fn run(args: &Args) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(&args.document.schema())?);
    Ok(())
}
