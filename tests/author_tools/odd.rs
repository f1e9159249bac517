//! One list of odd inputs for the SDK of every language, `tests/fixtures/odd/cases.json`: wrong specs, wrong answers,
//! exceptions. What a plugin's author then reads contains the words of the list, among them the line or the argument. C has
//! no SDK: what its plugins write goes to the host as it is, so the words are the host's.

use crate::support::prelude::*;
use std::collections::BTreeMap;

use super::new::Project;
use super::replay::same;
use serde::Deserialize;
use serde_json::Map;

/// An input: the resource, and what the answer in each language contains.
#[derive(Deserialize)]
struct Case {
    /// What the plugin is to do.
    case: Option<String>,
    /// The other fields of the spec.
    #[serde(default)]
    spec: Map<String, Value>,
    /// Whether it is being deleted.
    #[serde(default, rename = "isDeleted")]
    is_deleted: bool,
    /// `LINE` is the line of the plugin that has the name of the case.
    says: BTreeMap<String, Vec<String>>,
    /// Why a language cannot have it.
    #[serde(default)]
    not: BTreeMap<String, String>,
}

fn odd() -> PathBuf {
    root().join("tests/fixtures/odd")
}

/// Builds the plugin of a language, and renders each case. The sources have other names in the folder of the plugin.
fn every_case_says_what_is_wrong(language: &str, sources: &[(&str, &str)]) -> Project {
    let project = Project::of_kind(&format!("odd-{language}"), language, "Odd", "v1");
    // The definition last: where it is made of the sources, it is newer.
    for (source, name) in sources.iter().chain(&[("crd.json", "crd.json")]) {
        project.put(name, std::fs::read(odd().join(source)).unwrap());
    }
    let plugin = project.build();
    let checked = super::host_with_cache(&["check", plugin.to_str().unwrap()]).expect(0);
    // The interpreter takes more.
    let needs_memory = checked.out.contains("the default memory of 512 MiB");
    assert_eq!(needs_memory, language == "python", "{}", checked.out);

    let cases = std::fs::read(odd().join("cases.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&cases).unwrap();
    let source = std::fs::read_to_string(odd().join(sources[0].0)).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let title = format!("{:?} {}", case.case, Value::Object(case.spec.clone()));
        let Some(words) = case.says.get(language) else {
            assert!(
                case.not.contains_key(language),
                "{title}: nothing is said about {language}"
            );
            continue;
        };
        let said = rendered(&project, case);
        let quoted = format!("{:?}", case.case.as_deref().unwrap_or_default());
        let line = source
            .lines()
            .position(|line| line.contains(&quoted))
            .unwrap_or_default()
            + 1;
        let words: Vec<String> = words
            .iter()
            .map(|words| words.replace("LINE", &line.to_string()))
            .collect();
        let missing = words.iter().find(|words| !said.contains(*words));
        // What ends a call is said once.
        let is_repeated = said.contains("the plugin stopped") && said.matches(&words[0]).count() > 1;
        if missing.is_some() || is_repeated {
            wrong.push(format!("{title}: {missing:?} repeated: {is_repeated} in\n{said}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    project
}

/// Replays calls that need the whole contract: several versions, defaults, failures with a status.
fn whole_contract(project: &Project) {
    same(project.plugin().to_str().unwrap(), &odd().join("calls"));
}

/// Returns all that `render` prints.
fn rendered(project: &Project, case: &Case) -> String {
    let mut spec = case.spec.clone();
    if let Some(case) = &case.case {
        spec.insert("case".into(), json!(case));
    }
    let mut resource = json!({
        "apiVersion": "example.org/v1",
        "kind": "Odd",
        "metadata": { "name": "odd", "namespace": "default" },
        "spec": spec,
    });
    if case.is_deleted {
        resource["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        resource["metadata"]["finalizers"] = json!(["operator-host.dev/odd"]);
    }
    project.put("odd.json", resource.to_string());
    let (plugin, file) = (project.plugin(), project.file("odd.json"));
    let (plugin, file) = (plugin.to_str().unwrap(), file.to_str().unwrap());
    super::host_with_cache(&["render", "--plugin", plugin, "-f", file]).all()
}

#[test]
fn in_rust() {
    every_case_says_what_is_wrong("rust", &[("lib.rs", "src/lib.rs")]);
}

#[test]
fn in_go() {
    whole_contract(&every_case_says_what_is_wrong(
        "go",
        &[("main.go.txt", "main.go")],
    ));
}

#[test]
fn in_javascript() {
    let sources = [
        ("plugin.js", "plugin.js"),
        ("lib/dependency.js", "lib/dependency.js"),
    ];
    whole_contract(&every_case_says_what_is_wrong("js", &sources));
}

#[test]
fn in_python() {
    let sources = [
        ("plugin.py", "plugin.py"),
        ("parts/dependency.py", "parts/dependency.py"),
    ];
    whole_contract(&every_case_says_what_is_wrong("python", &sources));
}

#[test]
fn in_zig() {
    every_case_says_what_is_wrong("zig", &[("plugin.zig", "plugin.zig")]);
}

#[test]
fn in_assemblyscript() {
    every_case_says_what_is_wrong("assemblyscript", &[("plugin.as.ts", "assembly/plugin.ts")]);
}

#[test]
fn in_c() {
    every_case_says_what_is_wrong("c", &[("plugin.c", "plugin.c")]);
}
