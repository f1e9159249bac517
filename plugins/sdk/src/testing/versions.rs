//! A property test: resources that the schema allows are converted to every version and back.

use serde_json::{Value, json};

use super::generate::Generator;
use crate::plugin::Reconciler;
use operator_host_schema::{difference, quantity};

/// How many resources are generated for each version.
const RESOURCES: u64 = 200;

/// Converts generated resources of every version to every other version and back, and checks that nothing is lost. Does
/// nothing for a plugin with one version. [`register!`](crate::register) adds a test that calls it.
///
/// Resources that a conversion refuses are skipped: a version may allow what another does not. But at least one of each
/// version must be converted.
///
/// # Panics
///
/// With the path of the first field that does not come back, and the resource.
pub fn check_versions(plugin: &impl Reconciler) {
    let (definition, _) = plugin.crd();
    let spec = &definition["spec"];
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    let named = |version: &Value| {
        let [group, name] = [&spec["group"], &version["name"]].map(|it| it.as_str().unwrap_or_default());
        format!("{group}/{name}")
    };
    for from in &versions {
        for to in versions.iter().filter(|to| to["name"] != from["name"]) {
            let (from_name, to_name) = (named(from), named(to));
            let schema = &from["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let mut converted = 0;
            let mut refusal = String::new();
            for seed in 0..RESOURCES {
                let resource = json!({
                    "apiVersion": from_name, "kind": spec["names"]["kind"], "metadata": { "name": "generated" },
                    "spec": Generator::new(seed).value(schema),
                });
                match there_and_back(plugin, &resource, &from_name, &to_name) {
                    Ok(back) => {
                        converted += 1;
                        let schema = &from["schema"]["openAPIV3Schema"];
                        assert_same(schema, &resource, &back, &to_name);
                    }
                    Err(message) => refusal = message,
                }
            }
            assert!(
                converted > 0,
                "none of {RESOURCES} resources in {from_name} can be converted to {to_name} and back; the last one: {refusal}"
            );
        }
    }
}

fn there_and_back(plugin: &impl Reconciler, resource: &Value, from: &str, to: &str) -> Result<Value, String> {
    let convert = |resource: String, to: &str| {
        let converted = plugin.convert(to, &[resource]).pop();
        converted.unwrap_or_else(|| Err("`convert` answered nothing".to_owned()))
    };
    let there = convert(resource.to_string(), to)?;
    let back = convert(there, from)?;
    Ok(crate::object::parse(&back))
}

/// Compares the values of quantities, and not their texts.
fn assert_same(schema: &Value, before: &Value, after: &Value, through: &str) {
    let unified = |value: &Value| {
        let mut value = value.clone();
        quantity::unify_quantities(&mut value, schema);
        value
    };
    if let Some((path, was, is)) = difference::first(&unified(before), &unified(after), "") {
        panic!(
            "{path} does not come back from {through}: {was} becomes {is}; use `Version::keep_rest`, or change the conversion\n\
             the resource: {before:#}"
        );
    }
}
