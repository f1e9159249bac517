//! The committed definitions match the samples.

use crate::support::prelude::*;

#[test]
fn the_committed_definitions_are_what_the_plugins_print() {
    for (name, file) in [
        ("dns", "dnsrecords.dns.example.com"),
        ("echo", "echoes.my-operator.dev"),
        ("echo-command", "echoes.my-operator.dev"),
        ("hello", "helloes.fraim.co.jp"),
        ("mysql", "mysqlclusters.database.example.com"),
        ("myapp", "myapps.example.com"),
        ("rabbitmq", "rabbitusers.messaging.example.com"),
        ("webapp", "webapps.apps.example.com"),
    ] {
        let printed = program(&["crd"]).arg(plugin(name)).prints();
        let file = root().join(format!("manifests/crds/{file}.yaml"));
        let committed = std::fs::read_to_string(&file).unwrap();
        assert_eq!(
            printed,
            committed,
            "{} differs from what {name} says: run `make crds`",
            file.display()
        );
    }
}

#[test]
fn the_committed_definitions_of_the_host_are_what_the_program_prints() {
    for (kind, plural) in [("controller", "controllers"), ("external", "externals")] {
        let printed = program(&["schema", kind]).prints();
        for folder in ["manifests/crds", "manifests/helm/crds"] {
            let file = root()
                .join(folder)
                .join(format!("{plural}.operator-host.dev.yaml"));
            let committed = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(
                printed,
                committed,
                "{} is outdated: run `make crds`",
                file.display()
            );
        }
    }
}

#[test]
fn the_readme_shows_the_echo_plugin_as_it_is() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let source = std::fs::read_to_string(root().join("plugins/echo/src/lib.rs")).unwrap();
    let shown = readme
        .split("<!-- echo:begin -->")
        .nth(1)
        .and_then(|rest| rest.split("<!-- echo:end -->").next());
    let shown = shown
        .expect("the markers")
        .trim()
        .trim_start_matches("```rust")
        .trim_end_matches("```")
        .trim();
    let body = source.split_once("\n\n").expect("a head").1.trim();
    assert_eq!(
        shown, body,
        "copy plugins/echo/src/lib.rs, without its first line, into README.md"
    );
}

#[test]
fn a_file_that_is_no_plugin_is_refused_with_its_name_and_exit_code_1() {
    let printed = program(&["crd"]).arg(root().join("README.md")).ends(1);
    assert_contains(&printed, "README.md … not");
}
