//! What is written down of the contract.

use std::path::Path;
use std::process::Command;

use super::host;
use crate::support::root;

#[test]
fn the_committed_schemas_are_what_the_types_say() {
    for document in ["request", "response"] {
        let printed = host(&["schema", document]).expect(0).out;
        let file = root().join(format!("wit/{document}.schema.json"));
        let committed = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            printed,
            committed,
            "{} is out of date: run `make schemas`",
            file.display()
        );
    }
}

#[test]
fn every_command_on_the_contract_page_runs() {
    let page = std::fs::read_to_string(root().join("host/docs/contract.md")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_operator-host"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let mut count = 0;
    for block in page.split("```sh\n").skip(1) {
        let script = block.split("```").next().unwrap();
        if script.contains("wasmtime") {
            // Another project's program, which need not be on this machine.
            continue;
        }
        count += 1;
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(root())
            .env("PATH", &path)
            .output()
            .expect("bash runs");
        assert!(
            output.status.success(),
            "{script}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert!(count >= 4, "{count} blocks were found");
}
