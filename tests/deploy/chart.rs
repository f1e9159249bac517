//! The Helm chart beside what it makes, which `deploy` tests: its README, its schema, and the values.

use crate::support::prelude::*;

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
pub(crate) fn values() -> Vec<(String, Value)> {
    fn walk(prefix: &str, fields: &Value, into: &mut Vec<(String, Value)>) {
        for (name, value) in fields.as_object().unwrap() {
            let path = format!("{prefix}{name}");
            match value.as_object().is_some_and(|fields| !fields.is_empty()) {
                true if !WHOLE.contains(&path.as_str()) => walk(&format!("{path}."), value, into),
                _ => into.push((path, value.clone())),
            }
        }
    }
    let mut all = Vec::new();
    walk(
        "",
        &serde_saphyr::from_str(&read("values.yaml")).unwrap(),
        &mut all,
    );
    all
}

#[test]
fn the_readme_of_the_chart_has_a_row_for_every_value_with_its_default() {
    let readme = read("README.md");
    let rows = readme.lines().filter(|line| line.starts_with("| `"));
    let mut rows: Vec<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            assert!(cells[2].len() > 10, "{row}");
            let name = cells[0].trim_start_matches("| ").trim_matches('`');
            (
                name.to_owned(),
                cells[1]
                    .trim()
                    .trim_matches('`')
                    .replace(": ", ":")
                    .replace(", ", ","),
            )
        })
        .collect();
    let mut expected: Vec<(String, String)> = values()
        .into_iter()
        .map(|(path, value)| {
            (
                path,
                value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            )
        })
        .collect();
    rows.sort();
    expected.sort();
    assert_eq!(rows, expected);
}

#[test]
fn the_schema_describes_every_value_and_no_other() {
    fn walk(prefix: &str, schema: &Value, into: &mut Vec<String>) {
        let Some(properties) = schema["properties"].as_object() else {
            return into.push(prefix.trim_end_matches('.').to_owned());
        };
        if WHOLE.contains(&prefix.trim_end_matches('.')) {
            return into.push(prefix.trim_end_matches('.').to_owned());
        }
        assert_eq!(schema["additionalProperties"], false, "{prefix}");
        for (name, schema) in properties {
            walk(&format!("{prefix}{name}."), schema, into);
        }
    }
    let mut described = Vec::new();
    walk(
        "",
        &serde_json::from_str(&read("values.schema.json")).unwrap(),
        &mut described,
    );
    // Helm passes it to every chart that is part of another one.
    described.retain(|path| path != "global");
    described.sort();
    let mut paths: Vec<String> = values().into_iter().map(|(path, _)| path).collect();
    paths.sort();
    assert_eq!(described, paths);
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
