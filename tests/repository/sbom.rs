//! Checks the list of the image's components against the lock file.

use crate::support::prelude::*;
use std::collections::BTreeSet;

fn list(packages: &[&str]) -> Value {
    let printed = Command::new(root().join("host/sbom.sh")).args(packages).prints();
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn the_list_names_the_crates_of_the_program_as_they_are_locked() {
    let document = list(&[]);
    assert_eq!(document["bomFormat"], "CycloneDX");
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut names = BTreeSet::new();
    for component in document["components"].as_array().unwrap() {
        let text = |field: &str| component[field].as_str().unwrap();
        let (name, version) = (text("name"), text("version"));
        let id = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        let (_, locked) = lock
            .split_once(&id)
            .unwrap_or_else(|| panic!("{name} {version} is not locked"));
        // Our own crates have no checksum.
        if let Some(checksum) = component["hashes"][0]["content"].as_str() {
            assert!(locked.split("\n\n").next().unwrap().contains(checksum), "{name}");
        }
        assert!(text("purl").starts_with(&format!("pkg:cargo/{name}@")));
        assert!(component["licenses"][0]["expression"].is_string(), "{name}");
        names.insert(name);
    }
    for needed in ["operator-host-runtime", "wasmtime", "kube-client", "tokio"] {
        assert!(names.contains(needed), "{needed} is in the program");
    }
    // A macro, a dependency of the tests, and one of the plugins.
    for name in ["serde_derive", "wat", "operator-plugin"] {
        assert!(!names.contains(name), "{name} is not in the program");
    }
}

#[test]
fn the_list_names_the_packages_of_the_system() {
    if !Path::new("/var/lib/dpkg/status").is_file() {
        return eprintln!("not on Debian: there are no packages to name");
    }
    let document = list(&["libc6"]);
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
