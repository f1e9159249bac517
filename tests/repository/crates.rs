//! What the crates depend on.

use std::process::Command;

/// Returns the names of all crates that are compiled for a crate.
fn compiled_for(name: &str) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}",
        ])
        .args(["--package", name])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let names = String::from_utf8(tree.stdout).unwrap();
    let names = names.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn values_compile_neither_servers_nor_the_engine_of_plugins() {
    let heavy = ["hyper", "rustls", "wasmtime", "sigstore-verify", "tokio"];
    for (name, without) in [
        ("operator-host-desired", &heavy[..]),
        ("operator-host-core", &heavy),
        ("operator-host-config", &["hyper"]),
    ] {
        let compiled = compiled_for(name);
        assert!(
            compiled.iter().any(|it| it == "serde_json"),
            "{name}: {compiled:?}"
        );
        let found: Vec<_> = compiled
            .iter()
            .filter(|it| without.iter().any(|heavy| it.starts_with(heavy)))
            .collect();
        assert!(found.is_empty(), "{name} compiles {found:?}");
    }
}
