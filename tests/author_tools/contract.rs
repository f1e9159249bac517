//! The documentation of the contract.

use crate::support::prelude::*;
use sha2::{Digest, Sha256};

use super::host;

#[test]
fn the_committed_schemas_match_the_types() {
    for document in ["request", "response"] {
        let printed = host(&["schema", document]).expect(0).out;
        let file = root().join(format!("wit/{document}.schema.json"));
        let committed = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            printed,
            committed,
            "{} is out of date: run `make contract`",
            file.display()
        );
    }
}

/// The SDKs for JavaScript and Python pass on every field, and a script writes those of the other languages.
#[test]
fn the_records_of_the_sdks_are_those_of_the_world() {
    Command::new(root().join("plugins/records.py"))
        .arg("--check")
        .prints();
}

#[test]
fn the_page_has_every_field_and_the_sdk_for_rust_a_method_for_each_of_an_answer() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let fields = |document: &str, record: &str| {
        let schema: Value = serde_json::from_str(&read(&format!("wit/{document}.schema.json"))).unwrap();
        let fields = schema["$defs"][record]["properties"].as_object().unwrap();
        fields.keys().cloned().collect::<Vec<_>>()
    };
    let (page, sdk) = (read("host/docs/contract.md"), read("plugins/sdk/src/response.rs"));
    let next = "see \"How to change … the contract\" in CONTRIBUTING.md";
    for field in [fields("request", "Request"), fields("response", "Response")].concat() {
        assert!(
            page.contains(&format!("`{field}`")),
            "the page lacks {field}: {next}"
        );
    }
    // A method that adds one of several is named after one.
    let sdk = sdk.replace('_', "").to_lowercase();
    for field in fields("response", "Response") {
        let name = field.trim_end_matches("Ms").trim_end_matches('s').to_lowercase();
        assert!(
            sdk.contains(&format!("pub fn {name}")),
            "response.rs lacks {field}: {next}"
        );
    }
}

#[test]
fn the_committed_bindings_for_c_are_those_of_the_world() {
    let mut files: Vec<_> = std::fs::read_dir(root().join("wit"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "wit"))
        .collect();
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        hash.update(std::fs::read(file).unwrap());
    }
    let sum: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let made = std::fs::read_to_string(root().join("plugins/echo-c/bindings/wit.sha256")).unwrap();
    assert_eq!(made.trim(), sum, "run `make contract`");
}

/// Returns the scripts in the shell blocks.
fn scripts(page: &str) -> Vec<&str> {
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

/// Runs a script as a reader would, with this host on the path.
fn run(script: &str, folder: &Path, kubeconfig: Option<&Path>) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_operator-host"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(folder)
        .env("PATH", &path)
        .env_remove("MAKEFLAGS");
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    command.prints()
}

#[tokio::test]
async fn every_command_on_the_pages_for_authors_runs() {
    let kubeconfig = cluster().await.kubeconfig();
    for (name, expected) in [("contract", 5), ("authors", 4), ("time", 1)] {
        let page = std::fs::read_to_string(root().join(format!("host/docs/{name}.md"))).unwrap();
        let mut count = 0;
        for script in scripts(&page) {
            if script.contains("wasmtime") {
                // Skip another project's program, which may not be installed.
                continue;
            }
            count += 1;
            run(script, &root(), Some(&kubeconfig));
        }
        assert!(count >= expected, "{count} blocks were found on the page {name}");
    }
}

/// The folder is in the repository, where the SDK is found; the compiled samples are reused.
#[test]
fn the_first_plugin_of_the_readme_is_written_built_rendered_and_tested_as_described() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = readme.split_once("<!-- first-plugin:begin -->").unwrap();
    let (section, _) = section.split_once("<!-- first-plugin:end -->").unwrap();
    let desk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let target = root().join("plugins/target").canonicalize().unwrap();
    let [script] = scripts(section)[..] else {
        panic!("{section}")
    };
    let script = format!("export CARGO_TARGET_DIR={}\n{script}", target.display());
    let printed = run(&script, desk.path(), None);
    let words = "greeter is a plugin for example.com/v1 Greeter … kind: Deployment … 3 the same, 0 different";
    assert_contains(&printed, words);
}

#[test]
fn the_contract_beside_the_sdks_is_that_of_the_host() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let files = ["world", "types", "logging", "reconciler"].map(|name| read(&format!("wit/{name}.wit")));
    let contract = files.concat();
    let next = "run `make contract`";
    assert_eq!(read("plugins/echo-python/plugin.wit"), contract, "{next}");
    let javascript =
        read("plugins/echo-js/plugin.wit").replace("    import wasi:random/insecure@0.2.0;\n", "");
    assert!(javascript.starts_with(&contract), "{next}");
}
