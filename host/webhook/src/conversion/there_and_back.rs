//! Converts objects to every other version and back, to find the fields that a conversion loses.

use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use super::{ConversionError, Purpose, convert};
use operator_host_contract::Kind;
use operator_host_core::crd::definition;
use operator_host_runtime::Plugin;
use operator_host_schema::difference::difference;
use operator_host_schema::quantity;

/// A field that does not come back, or an object that cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lost {
    /// The place of the object in the list.
    pub index: usize,
    /// The path and the versions, or why the object cannot be converted.
    pub message: String,
}

/// Converts objects, which are in the version of the plugin's parent, to each other version and back. Returns the first
/// field of each object that does not come back, for each version. Objects that are not reached within the budget are
/// skipped.
///
/// # Errors
/// When the host cannot call the plugin, so that nothing is known about it.
pub async fn there_and_back(
    plugin: &Plugin,
    objects: &[Value],
    budget: Duration,
) -> Result<Vec<Lost>, ConversionError> {
    let start = Instant::now();
    let base = &plugin.description().parent;
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
    let definition = plugin.description().definition();
    let schema = definition
        .as_ref()
        .and_then(|crd| definition::schema(crd, parent));
    let differs = |before: &Value, after: &Value| {
        let message = changed(schema, before, after)?;
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

/// Returns the first field that differs. Where the schema has quantities, such as the `cpu` of a container, their values are
/// compared: a plugin may write `1` as `"1"`.
fn changed(schema: Option<&Value>, before: &Value, after: &Value) -> Option<String> {
    let unified = |value: &Value| {
        let mut value = value.clone();
        if let Some(schema) = schema {
            quantity::unify_quantities(&mut value, schema);
        }
        value
    };
    difference(&unified(before), &unified(after), "")
}

async fn both_ways(
    plugin: &Plugin,
    parent: &Kind,
    other: &str,
    objects: &[Value],
) -> Result<Vec<Value>, ConversionError> {
    let there = one_way(plugin, other, objects.iter().map(Value::to_string).collect()).await?;
    let back = one_way(plugin, &parent.api_version, there).await?;
    let back = back
        .iter()
        .map(|text| serde_json::from_str(text).unwrap_or_default());
    Ok(back.collect())
}

/// Converts objects, whose texts are JSON: `convert` has checked those that it returned.
async fn one_way(plugin: &Plugin, to: &str, texts: Vec<String>) -> Result<Vec<String>, ConversionError> {
    let texts = texts
        .into_iter()
        .filter_map(|text| RawValue::from_string(text).ok());
    let texts: Vec<_> = texts.collect();
    let texts: Vec<&RawValue> = texts.iter().map(AsRef::as_ref).collect();
    convert(Purpose::Proof, plugin, to, &texts, usize::MAX).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quantity_may_come_back_in_another_form_and_another_value_is_named_by_its_path() {
        let quantity = json!({ "x-kubernetes-int-or-string": true });
        let schema = json!({ "properties": { "spec": { "properties": {
            "containers": { "items": { "properties": { "limits": { "additionalProperties": quantity } } } },
            "version": { "type": "string" },
        } } } });
        let object = |cpu: Value, version: &str| json!({ "spec": { "containers": [{}, { "limits": { "cpu": cpu } }], "version": version } });
        let changed = |before: &Value, after: &Value| changed(Some(&schema), before, after);
        let before = object(1.into(), "1.0");
        assert_eq!(changed(&before, &object("1".into(), "1.0")), None);
        assert_eq!(changed(&before, &object("1000m".into(), "1.0")), None);
        let path = changed(&before, &object("2".into(), "1.0"));
        assert_eq!(path.as_deref(), Some("spec.containers[1].limits.cpu changes"));
        let expected = Some("spec.version changes");
        assert_eq!(changed(&before, &object(1.into(), "1")).as_deref(), expected);
    }
}
