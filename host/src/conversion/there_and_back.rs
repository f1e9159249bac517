//! Converts objects to every other version and back, to find the fields that a conversion loses.

use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use super::{ConversionError, try_convert};
use crate::json_difference::difference;
use crate::plugin::Plugin;
use crate::plugin::contract::Kind;

/// A field that does not come back, or an object that cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lost {
    /// The place of the object in the list.
    pub index: usize,
    /// The path and the versions, or why the object cannot be converted.
    pub message: String,
}

/// Converts objects, which are in the version of `base`, to each other version and back. Returns the first
/// field of each object that does not come back, for each version. Objects that are not reached within the budget are
/// skipped.
///
/// # Errors
/// When the host cannot call the plugin, so that nothing is known about it.
pub async fn there_and_back(
    plugin: &Plugin,
    base: &Kind,
    objects: &[Value],
    budget: Duration,
) -> Result<Vec<Lost>, ConversionError> {
    let start = Instant::now();
    let versions = plugin.description().versions.iter();
    let mut lost = Vec::new();
    for version in versions.filter(|version| *version != base.version()) {
        let other = format!("{}/{version}", base.group());
        let rest = || budget.saturating_sub(start.elapsed());
        lost.extend(through(plugin, base, &other, objects, rest).await?);
    }
    Ok(lost)
}

/// `rest` returns the time that is left.
async fn through(
    plugin: &Plugin,
    parent: &Kind,
    other: &str,
    objects: &[Value],
    rest: impl Fn() -> Duration,
) -> Result<Vec<Lost>, ConversionError> {
    let mut lost = Vec::new();
    let differs = |before: &Value, after: &Value| {
        let message = difference(before, after, "")?;
        Some(format!("{message} when it is converted to {other} and back"))
    };
    match timeout(rest(), both_ways(plugin, parent, other, objects)).await {
        Ok(Ok(back)) => {
            let pairs = objects.iter().zip(&back).enumerate();
            lost.extend(pairs.filter_map(|(index, (before, after))| {
                let message = differs(before, after)?;
                Some(Lost { index, message })
            }));
            return Ok(lost);
        }
        Ok(Err(error)) if error.is_of_host() => return Err(error),
        Ok(Err(_)) => {}
        Err(_late) => return Ok(lost),
    }
    // One object fails all of them: find out which.
    for (index, object) in objects.iter().enumerate() {
        let one = both_ways(plugin, parent, other, std::slice::from_ref(object));
        let Ok(back) = timeout(rest(), one).await else {
            break;
        };
        let message = match back {
            Ok(back) => back.first().and_then(|back| differs(object, back)),
            Err(error) if error.is_of_host() => return Err(error),
            Err(error) => Some(error.to_string()),
        };
        lost.extend(message.map(|message| Lost { index, message }));
    }
    Ok(lost)
}

async fn both_ways(
    plugin: &Plugin,
    parent: &Kind,
    other: &str,
    objects: &[Value],
) -> Result<Vec<Value>, ConversionError> {
    let texts: Vec<Box<RawValue>> = objects
        .iter()
        .filter_map(|object| serde_json::value::to_raw_value(object).ok())
        .collect();
    let there = try_convert(plugin, other, &borrowed(&texts)).await?;
    let texts: Vec<Box<RawValue>> = there
        .into_iter()
        .filter_map(|text| RawValue::from_string(text).ok())
        .collect();
    let back = try_convert(plugin, &parent.api_version, &borrowed(&texts)).await?;
    // Checked by `try_convert`.
    Ok(back
        .iter()
        .map(|text| serde_json::from_str(text).unwrap_or_default())
        .collect())
}

fn borrowed(texts: &[Box<RawValue>]) -> Vec<&RawValue> {
    texts.iter().map(AsRef::as_ref).collect()
}
