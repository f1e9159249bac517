//! `operator-host schema`.

use clap::ValueEnum;
use schemars::{Schema, schema_for};

use super::Failure;
use crate::plugin::contract::{CommandInput, CommandOutput};

/// The options of `schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the plugin reads (request) or writes (response)
    document: Document,
}

/// A document of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// What a WASI command reads from standard input
    Request,
    /// What it writes to standard output
    Response,
}

impl Document {
    /// Its JSON Schema, of draft 2020-12.
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
/// None that is known.
pub fn run(args: &Args) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(&args.document.schema())?);
    Ok(())
}
