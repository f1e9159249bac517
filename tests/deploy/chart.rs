//! The Helm chart beside what it makes, which `deploy` tests: its README, its schema, and the values.

use crate::support::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Values that are one value of Kubernetes, although they have fields.
const WHOLE: [&str; 5] = [
    "resources",
    "egress.resources",
    "nodeSelector",
    "affinity",
    "egress.affinity",
];

fn chart() -> PathBuf {
    root().join("manifests/helm")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(chart().join(file)).unwrap()
}

/// Returns the values by their paths, with their defaults.
pub(crate) fn values() -> BTreeMap<String, Value> {
    fn walk(prefix: &str, fields: &Value, into: &mut BTreeMap<String, Value>) {
        for (name, value) in fields.as_object().unwrap() {
            let path = format!("{prefix}{name}");
            let has_fields = value.as_object().is_some_and(|fields| !fields.is_empty());
            if has_fields && !WHOLE.contains(&path.as_str()) {
                walk(&format!("{path}."), value, into);
            } else {
                into.insert(path, value.clone());
            }
        }
    }
    let values = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let mut all = BTreeMap::new();
    walk("", &values, &mut all);
    all
}

#[test]
fn the_readme_of_the_chart_has_a_row_for_every_value_with_its_default() {
    let readme = read("README.md");
    let rows = readme.lines().filter(|line| line.starts_with("| `"));
    let mut rows: Vec<_> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            assert!(cells[2].len() > 10, "{row}");
            let name = cells[0].trim_start_matches("| ").trim_matches('`');
            let default = cells[1].trim().trim_matches('`');
            let default = default.replace(": ", ":").replace(", ", ",");
            (name.to_owned(), default)
        })
        .collect();
    rows.sort();
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let expected = values().into_iter().map(|(path, value)| (path, text(value)));
    assert_eq!(rows, expected.collect::<Vec<_>>());
}

#[test]
fn the_schema_describes_every_value_and_no_other() {
    fn walk(path: &str, schema: &Value, into: &mut BTreeSet<String>) {
        let properties = schema["properties"].as_object();
        let Some(properties) = properties.filter(|_| !WHOLE.contains(&path)) else {
            into.insert(path.to_owned());
            return;
        };
        assert_eq!(schema["additionalProperties"], false, "{path}");
        for (name, schema) in properties {
            walk(format!("{path}.{name}").trim_start_matches('.'), schema, into);
        }
    }
    let schema = serde_json::from_str(&read("values.schema.json")).unwrap();
    let mut described = BTreeSet::new();
    walk("", &schema, &mut described);
    // Helm passes it to every chart that is part of another one.
    described.remove("global");
    assert_eq!(described, values().into_keys().collect::<BTreeSet<_>>());
}

/// Returns whether the chart passes `helm lint` with one default changed.
fn passes(pointer: &str, value: Value) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("operator-host");
    let copied = Command::new("cp").args(["-rL"]).arg(chart()).arg(&copy).status();
    assert!(copied.unwrap().success());
    let mut values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    values.pointer_mut(parent).unwrap()[name] = value;
    std::fs::write(copy.join("values.yaml"), values.to_string()).unwrap();
    let mut lint = Command::new(root().join("tests/helm.sh"));
    lint.args([Path::new("lint"), &copy])
        .status()
        .expect("the script runs")
        .success()
}

#[test]
fn helm_refuses_a_value_that_is_misspelled_or_of_the_wrong_type() {
    assert!(passes("/replicas", json!(1)));
    for (pointer, value) in [
        ("/tolerationz", json!([])),
        ("/page/enable", json!(true)),
        ("/replicas", json!("two")),
        ("/cacheSize", json!("1.5G")),
        ("/image/digest", json!("abc")),
    ] {
        assert!(!passes(pointer, value), "{pointer}");
    }
}
