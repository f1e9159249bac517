//! Tests that keep the layers of the source apart; see the map in ARCHITECTURE.md.

use std::fs;
use std::path::{Path, PathBuf};

/// Ways to reach a cluster.
const CLIENTS: [&str; 6] = [
    "kube::Client",
    "kube::api",
    "kube::Api",
    "kube::runtime",
    "tokio::",
    "hyper",
];

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the source files in a folder and in the folders below.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let below = folders.iter().flat_map(|folder| self::files(folder));
    files.into_iter().chain(below).collect()
}

/// Returns the lines of a file, outside of its tests, that name one of these paths.
fn uses(file: &Path, forbidden: &[&str]) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines
        .filter(|line| forbidden.iter().any(|path| line.contains(path)))
        .map(|line| format!("{}: {line}", file.display()))
        .collect()
}

fn assert_free_of(folder: &str, forbidden: &[&str]) {
    let mut files = files(&source(folder));
    files.push(source(&format!("{folder}.rs")));
    assert!(files.len() > 5, "{files:?}");
    let found: Vec<_> = files.iter().flat_map(|file| uses(file, forbidden)).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn the_desired_state_is_computed_without_a_client_and_without_input_or_output() {
    let upwards = [
        "crate::cluster",
        "crate::reconcile",
        "crate::rollout",
        "crate::controller",
        "std::fs",
    ];
    let forbidden: Vec<&str> = CLIENTS.into_iter().chain(upwards).collect();
    assert_free_of("src/desired", &forbidden);
}

#[test]
fn the_access_to_the_cluster_does_not_know_who_uses_it() {
    let upwards = [
        "crate::controller",
        "crate::dry_run",
        "crate::operator",
        "crate::reconcile",
        "crate::rollout",
        "crate::supervisor",
        "crate::webhook",
        "crate::work_queue",
    ];
    assert_free_of("src/cluster", &upwards);
}

#[test]
fn the_configuration_does_not_know_what_runs_by_it() {
    let upwards = [
        "crate::cluster",
        "crate::health",
        "crate::leader",
        "crate::memory_limit",
        "crate::metrics",
        "crate::operator",
        "crate::plugin::reload",
        "tokio::",
    ];
    assert_free_of("src/config", &upwards);
}

#[test]
fn the_client_for_registries_knows_neither_the_cluster_nor_who_uses_it() {
    let upwards = [
        "crate::cluster",
        "crate::controller",
        "crate::operator",
        "crate::plugin::registry",
        "crate::plugin::reload",
        "crate::reconcile",
        "kube::",
    ];
    assert_free_of("src/oci", &upwards);
}

#[test]
fn the_metrics_do_not_know_how_they_are_exported() {
    let upwards = ["crate::telemetry"];
    let files = [source("src/metrics.rs")]
        .into_iter()
        .chain(files(&source("src/metrics")));
    let found: Vec<_> = files.flat_map(|file| uses(&file, &upwards)).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn the_contract_knows_no_client() {
    assert_eq!(
        uses(&source("contract/src/lib.rs"), &CLIENTS),
        Vec::<String>::new()
    );
}
