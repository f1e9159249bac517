//! Copies of the Echo plugin that differ in what they are or do.
//!
//! A copy is made by replacing texts of the same length in the file, so that each is a program of its own with its own
//! digest, its own kind and its own definition, as if another team had compiled it.

use anyhow::ensure;

/// The group of the original.
const GROUP: &str = "my-operator.dev";
/// The label of its pods, where it follows the field that contains it.
const LABEL: (&str, &str) = ("labelsapp", "labelsapq");

/// Returns the group of copy `number`, below 1,000.
pub(crate) fn group(number: usize) -> String {
    format!("my-operator.{number:03}")
}

/// Returns the plugin for the kind Echo of [`group`].
pub(crate) fn copy(echo: &[u8], number: usize) -> anyhow::Result<Vec<u8>> {
    replaced(echo, GROUP, &group(number))
}

/// Returns the definition of that kind, from the definition of Echo as YAML.
pub(crate) fn definition(crd: &str, number: usize) -> String {
    crd.replace(GROUP, &group(number))
}

/// Returns a version that answers as before, with another digest: with a custom section that says `number`.
pub(crate) fn version(echo: &[u8], number: u8) -> Vec<u8> {
    let mut version = echo.to_vec();
    version.extend([0, 3, 1, b'v', number]);
    version
}

/// Returns a version that changes every pod: it gives them another label.
pub(crate) fn relabelled(echo: &[u8]) -> anyhow::Result<Vec<u8>> {
    replaced(echo, LABEL.0, LABEL.1)
}

fn replaced(file: &[u8], from: &str, to: &str) -> anyhow::Result<Vec<u8>> {
    ensure!(
        from.len() == to.len(),
        "{from:?} cannot become {to:?}: the texts must have the same length"
    );
    let mut copy = file.to_vec();
    let places: Vec<usize> = file
        .windows(from.len())
        .enumerate()
        .filter_map(|(place, window)| (window == from.as_bytes()).then_some(place))
        .collect();
    ensure!(
        !places.is_empty(),
        "the Echo plugin does not contain {from:?}: adapt tests/scale/src/plugins.rs to how it is compiled now"
    );
    for place in places {
        copy[place..place + to.len()].copy_from_slice(to.as_bytes());
    }
    Ok(copy)
}
