//! `operator-host migrate-storage`: rewrites the stored resources of a kind in its storage version.

use std::sync::Arc;

use super::Failure;
use crate::cluster::client::{self, Pace};
use crate::metrics::Metrics;
use crate::migrate_storage::{Migrated, migrate};

/// The options of `migrate-storage`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requires the permissions to get the definition and to patch its status, and to list and patch the resources. An \
interrupted migration can be started again: resources that are already migrated are not written. Exit codes: 0 migrated, \
1 not finished, 2 wrong usage.")]
pub struct Args {
    /// The name of the CustomResourceDefinition, such as `shops.example.com`
    #[arg(value_name = "DEFINITION")]
    definition: String,
    /// The number of resources to write per second
    #[arg(long, default_value_t = 20, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    qps: u32,
}

/// Migrates, and reports the progress on standard error.
///
/// # Errors
/// When a resource cannot be written, or the definition changes meanwhile.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = client::connect(Arc::new(Metrics::unread())).await?;
    let pace = Pace::new(args.qps, 1);
    let progress = |done, all| eprintln!("{done} of {all} resources are written");
    let Migrated {
        version,
        resources,
        dropped,
    } = migrate(&client, &args.definition, &pace, progress).await?;
    if dropped.is_empty() {
        println!("{}: all resources are stored in {version}", args.definition);
    } else {
        println!(
            "{}: {resources} resources are stored in {version}; {} is no longer stored and may be removed",
            args.definition,
            dropped.join(", ")
        );
    }
    Ok(())
}
