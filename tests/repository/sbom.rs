//! Checks the list of the image's components against the lock file.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::support::root;

fn list(packages: &[&str]) -> (String, Value) {
    let output = Command::new(root().join("host/sbom.sh"))
        .args(packages)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let document = serde_json::from_str(&text).unwrap();
    (text, document)
}

/// Returns the checksum of each crate by `name version`; our own crates have none.
fn locked() -> BTreeMap<String, Option<String>> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let field = |package: &str, name: &str| {
        let line = package
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} = \"")))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    packages
        .map(|package| {
            let name = field(package, "name").unwrap();
            (
                format!("{name} {}", field(package, "version").unwrap()),
                field(package, "checksum"),
            )
        })
        .collect()
}

#[test]
fn the_list_names_the_crates_of_the_program_as_they_are_locked() {
    let (text, document) = list(&[]);
    assert_eq!(document["bomFormat"], "CycloneDX");
    assert_eq!(document["specVersion"], "1.5");
    assert_eq!(document["metadata"]["component"]["name"], "operator-host");
    assert_eq!(
        document["metadata"]["component"]["version"],
        env!("CARGO_PKG_VERSION")
    );

    let locked = locked();
    let components = document["components"].as_array().unwrap();
    let mut names = BTreeSet::new();
    for component in components {
        let name = component["name"].as_str().unwrap();
        let id = format!("{name} {}", component["version"].as_str().unwrap());
        let checksum = locked
            .get(&id)
            .unwrap_or_else(|| panic!("{id} is not in the lock file"));
        assert_eq!(
            component["hashes"][0]["content"].as_str(),
            checksum.as_deref(),
            "{id}"
        );
        let licence = component["licenses"][0]["expression"].as_str().unwrap();
        assert!(!licence.is_empty() && !licence.contains('/'), "{id}: {licence:?}");
        assert!(
            component["purl"]
                .as_str()
                .unwrap()
                .starts_with(&format!("pkg:cargo/{name}@"))
        );
        names.insert(name);
    }
    for name in [
        "operator-host-runtime",
        "wasmtime",
        "kube-client",
        "aws-lc-sys",
        "zstd-sys",
        "tokio",
    ] {
        assert!(names.contains(name), "{name} is in the program");
    }
    // A macro, a dependency of the tests, and one of the plugins.
    for name in [
        "serde_derive",
        "wat",
        "control-plane",
        "libfuzzer-sys",
        "operator-plugin",
    ] {
        assert!(!names.contains(name), "{name} is not in the program");
    }

    // Every reference refers to an existing component.
    let mut references: BTreeSet<&str> = components
        .iter()
        .map(|it| it["bom-ref"].as_str().unwrap())
        .collect();
    assert_eq!(references.len(), components.len(), "each is there once");
    references.insert(document["metadata"]["component"]["bom-ref"].as_str().unwrap());
    let dependencies = document["dependencies"].as_array().unwrap();
    let mut reached = BTreeSet::new();
    for dependency in dependencies {
        assert!(
            references.contains(dependency["ref"].as_str().unwrap()),
            "{dependency}"
        );
        reached.extend(
            dependency["dependsOn"]
                .as_array()
                .unwrap()
                .iter()
                .map(|on| on.as_str().unwrap()),
        );
    }
    assert!(reached.is_subset(&references));
    assert_eq!(reached.len(), components.len(), "something needs each of them");
    assert_eq!(list(&[]).0, text, "twice the same");
}

#[test]
fn the_list_names_the_packages_of_the_system() {
    if !std::path::Path::new("/var/lib/dpkg/status").is_file() {
        return eprintln!("not on Debian: there are no packages to name");
    }
    let (_, document) = list(&["libc6"]);
    let components = document["components"].as_array().unwrap();
    let libc = components
        .iter()
        .find(|component| component["name"] == "libc6")
        .unwrap();
    let purl = libc["purl"].as_str().unwrap();
    assert!(
        purl.starts_with("pkg:deb/debian/libc6@") && purl.contains("?arch="),
        "{purl}"
    );
    let of_program = document["dependencies"][0]["dependsOn"].as_array().unwrap();
    assert!(of_program.iter().any(|on| on == purl));
    let unknown = Command::new(root().join("host/sbom.sh"))
        .arg("no-such-package")
        .output()
        .unwrap();
    assert!(
        !unknown.status.success(),
        "a package that is not there is an error"
    );
}
