//! `new`: the generated project builds, passes its own tests, and runs.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{compiled, host};
use crate::support::{Scenario, install, root};

/// Returns a folder within the repository, where the SDK is found as for an author.
pub(super) fn desk() -> TempDir {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tempfile::tempdir_in(target).unwrap()
}

/// Generates a plugin.
fn write(desk: &TempDir, name: &str, language: &str) {
    write_kind(desk, name, language, "Greeter", "v1beta1");
}

/// Generates a plugin for a kind.
pub(super) fn write_kind(desk: &TempDir, name: &str, language: &str, kind: &str, version: &str) {
    let folder = desk.path().join(name);
    let arguments = [
        "--lang",
        language,
        "--kind",
        kind,
        "--group",
        "example.org",
        "--version",
        version,
    ];
    let sdk = root().join("plugins/sdk").canonicalize().unwrap();
    let mut all = vec!["new", folder.to_str().unwrap()];
    all.extend(arguments);
    all.extend(["--sdk", sdk.to_str().unwrap()]);
    let answer = host(&all).expect(0);
    assert!(answer.out.contains("make render"), "{}", answer.out);
}

/// Returns `make` of a target in its folder, as on an author's machine.
pub(super) fn make_command(desk: &TempDir, name: &str, target: &str) -> Command {
    let mut command = Command::new("make");
    command
        .arg(target)
        .current_dir(desk.path().join(name))
        .env("OPERATOR_HOST", env!("CARGO_BIN_EXE_operator-host"))
        // Reuse the compiled dependencies of the samples.
        .env(
            "CARGO_TARGET_DIR",
            root().join("plugins/target").canonicalize().unwrap(),
        )
        .env("OPERATOR_HOST_CACHE_DIR", compiled())
        .env_remove("OPERATOR_HOST_LOG")
        .env_remove("MAKEFLAGS")
        // Where it is set, the tests of a plugin change no file.
        .env_remove("CI");
    command
}

/// Runs it and returns whether it succeeded, with all that it printed.
pub(super) fn run(command: &mut Command) -> (bool, String) {
    let output = command
        .output()
        .expect("make, of Debian's package make: run tests/prerequisites.sh");
    let printed = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&printed).into_owned(),
    )
}

/// Runs a target of its Makefile, which succeeds, and returns its output.
fn make(desk: &TempDir, name: &str, target: &str) -> String {
    let (is_success, printed) = run(&mut make_command(desk, name, target));
    assert!(is_success, "make {target} in {name}:\n{printed}");
    printed
}

/// Copies a file into a folder that need not exist.
pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

fn tested(name: &str, language: &str) -> TempDir {
    let desk = desk();
    write(&desk, name, language);
    passes(&desk, name);
    desk
}

fn passes(desk: &TempDir, name: &str) {
    let printed = make(desk, name, "test");
    assert!(
        printed.contains("3 calls replayed: 3 the same, 0 different"),
        "{printed}"
    );
    assert!(!printed.contains("fail  "), "{printed}");
    let rendered = make(desk, name, "render");
    assert!(
        rendered.contains("kind: Deployment") && rendered.contains("readyReplicas: 0"),
        "{rendered}"
    );
}

#[tokio::test]
async fn a_plugin_in_rust_passes_its_tests_and_runs_in_a_cluster() {
    let desk = tested("greeter-rust", "rust");
    let folder = desk.path().join("greeter-rust");
    let scenario = Scenario::new("new-rust").await;
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    install(&scenario.client, scenario.folder.path(), &read("crd.json")).await;
    let config = folder.join("config.yaml");
    let _host = scenario.start_with(&config, &[]);
    let resource = "example.org/v1beta1/Greeter";
    let sample = read("sample.yaml").replace(
        "namespace: default",
        &format!("namespace: {}", scenario.namespace),
    );
    scenario.apply(&sample).await;
    scenario
        .until_condition(resource, "my-greeter", "Ready", "True", "ReplicasReady")
        .await;
}

/// Regression: the lock file was that of the samples, which cargo had to change first.
#[test]
fn a_plugin_in_rust_comes_with_the_lock_file_that_cargo_would_write() {
    let desk = desk();
    write(&desk, "locked", "rust");
    let output = Command::new("cargo")
        .args(["tree", "--locked", "--target", "wasm32-wasip1"])
        .current_dir(desk.path().join("locked"))
        .output()
        .expect("cargo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

/// Regression: a test failed once, to update the definition, and the plugin had to be built once more.
#[test]
fn make_follows_the_types_of_a_plugin_in_rust() {
    let desk = desk();
    write(&desk, "types", "rust");
    let file = desk.path().join("types/src/lib.rs");
    let code = std::fs::read_to_string(&file).unwrap();
    let changed = code.replace("range(max = 100)", "range(max = 7)");
    assert_ne!(changed, code);
    std::fs::write(&file, changed).unwrap();
    make(&desk, "types", "test");
    let plugin = desk.path().join("types/build/types.wasm");
    let answer = host(&["crd", plugin.to_str().unwrap()]).expect(0);
    assert!(answer.out.contains("maximum: 7"), "{}", answer.out);
}

/// Regression: it replaced a plugin of the same name in the checkout.
#[test]
fn a_plugin_outside_of_the_checkout_is_built_in_its_own_folder() {
    let desk = tempfile::tempdir().unwrap();
    write(&desk, "outside", "rust");
    make(&desk, "outside", "build/outside.wasm");
    assert!(desk.path().join("outside/target/plugins/outside.wasm").is_file());
    assert!(!root().join("plugins/target/plugins/outside.wasm").exists());
}

#[test]
fn a_plugin_in_go_passes_its_tests() {
    tested("greeter-go", "go");
}

#[test]
fn a_plugin_in_c_passes_its_tests() {
    tested("greeter-c", "c");
}

/// Tests a plugin that fails for one image, and returns what `make render` then prints.
fn fails(name: &str, language: &str, file: &str, place: &str, failure: &str) -> String {
    let desk = desk();
    write(&desk, name, language);
    let file = desk.path().join(name).join(file);
    let code = std::fs::read_to_string(&file).unwrap();
    assert_eq!(code.matches(place).count(), 1, "{place:?}");
    std::fs::write(&file, code.replace(place, &format!("{failure}\n{place}"))).unwrap();
    passes(&desk, name);
    let sample = desk.path().join(name).join("sample.yaml");
    let text = std::fs::read_to_string(&sample).unwrap();
    std::fs::write(&sample, text.replace("nginx:1.27", "broken")).unwrap();
    let (is_success, printed) = run(&mut make_command(&desk, name, "render"));
    assert!(!is_success, "{printed}");
    printed
}

#[test]
fn a_plugin_in_javascript_passes_its_tests_and_says_where_it_failed() {
    let failure = r#"  if (spec.image === "broken") request.parent.nothing.there;"#;
    let printed = fails("greeter-js", "js", "plugin.js", "  const replicas =", failure);
    for words in ["the plugin stopped: TypeError: ", "at reconcile (/plugin.js:9:"] {
        assert!(printed.contains(words), "{words:?} is not in {printed}");
    }
}

#[test]
fn a_plugin_in_typescript_passes_its_tests_and_says_where_it_failed() {
    let failure = r#"  if (spec.image === "broken") (request as any).nothing.there;"#;
    let printed = fails("greeter-ts", "ts", "plugin.ts", "  const replicas =", failure);
    assert!(printed.contains("at reconcile (/plugin.ts:14:"), "{printed}");
}

#[test]
fn a_plugin_in_python_passes_its_tests_and_says_where_it_failed() {
    let failure = "    if spec.image == \"broken\":\n        [].pop()";
    let printed = fails("greeter-python", "python", "plugin.py", "    labels =", failure);
    for words in [
        "the plugin stopped: IndexError: pop from empty list",
        "plugin.py\", line 20, in reconcile",
    ] {
        assert!(printed.contains(words), "{words:?} is not in {printed}");
    }
}

#[test]
fn the_build_of_a_plugin_in_python_names_what_is_missing() {
    let desk = desk();
    write(&desk, "missing-python", "python");
    let file = desk.path().join("missing-python/plugin.py");
    let code = std::fs::read_to_string(&file).unwrap();
    let define = "def reconcile(request: Request) -> Response:\n";
    let build = |code: &str| {
        std::fs::write(&file, code).unwrap();
        run(&mut make_command(
            &desk,
            "missing-python",
            "build/missing-python.wasm",
        ))
        .1
    };
    let printed = build(&format!("import nowhere\n{code}"));
    assert!(
        printed.contains("ModuleNotFoundError: No module named 'nowhere'"),
        "{printed}"
    );
    let printed = build(&code.replace(define, &format!("{define}    import nowhere\n")));
    assert!(
        printed.contains("plugin.py, line 18: No module named 'nowhere'"),
        "{printed}"
    );
    let printed = build(&code.replace("image: str", "image: set[str]"));
    assert!(
        printed.contains("spec.image: a field of a spec cannot be of the type set[str]"),
        "{printed}"
    );
}

#[test]
fn a_plugin_in_zig_passes_its_tests_and_says_how_it_failed() {
    let failure = "        if (spec.image.len == 6) @panic(\"no pods today\");";
    let printed = fails(
        "greeter-zig",
        "zig",
        "plugin.zig",
        "        const labels =",
        failure,
    );
    assert!(printed.contains("no pods today"), "{printed}");
}

#[test]
fn a_plugin_in_assemblyscript_passes_its_tests_and_says_where_it_failed() {
    let failure = r#"  if (image == "broken") throw new Error("no pods today");"#;
    let place = "  const deployment = new";
    let printed = fails(
        "greeter-as",
        "assemblyscript",
        "assembly/plugin.ts",
        place,
        failure,
    );
    let words = "the plugin stopped: abort: no pods today in assembly/plugin.ts(61:";
    assert!(printed.contains(words), "{printed}");
}

#[test]
fn names_that_cannot_be_are_refused_and_nothing_is_overwritten() {
    let desk = desk();
    let there = desk.path().to_str().unwrap().to_owned();
    let folder = |name: &str| format!("{there}/{name}");
    let new = |name: &str, more: &[&str]| {
        let folder = folder(name);
        let mut arguments = vec![
            "new",
            &*folder,
            "--lang",
            "go",
            "--kind",
            "Greeter",
            "--group",
            "example.com",
        ];
        for pair in more.chunks(2) {
            let place = arguments.iter().position(|argument| *argument == pair[0]);
            match place {
                Some(place) => arguments[place + 1] = pair[1],
                None => arguments.extend(pair),
            }
        }
        host(&arguments)
    };
    for (name, more, expected) in [
        ("Greeter", &[][..], "a DNS label that begins with a letter"),
        ("3greeter", &[][..], "a DNS label that begins with a letter"),
        ("g", &["--kind", "greeter"][..], "letters and digits in CamelCase"),
        ("g", &["--group", "example"][..], "a domain name"),
        ("g", &["--group", "Example.com"][..], "a domain name"),
        ("g", &["--version", "1"][..], "a version such as"),
        ("g", &["--version", "v1-x"][..], "a version such as"),
        ("g", &["--version", "v1gamma1"][..], "a version such as"),
        (
            "g",
            &["--plural", "greeter"][..],
            "a DNS label that differs from the kind",
        ),
        (
            "g",
            &["--lang", "rust", "--sdk", "/nowhere"][..],
            "is not the Rust SDK",
        ),
    ] {
        let answer = new(name, more).expect(2);
        assert!(answer.err.contains(expected), "{name} {more:?}: {}", answer.err);
        assert!(!Path::new(&folder(name)).exists());
    }
    new("g", &[]).expect(0);
    let again = new("g", &[]).expect(2);
    assert!(again.err.contains("already exists"), "{}", again.err);
}

#[test]
fn a_type_without_a_structural_schema_is_named_by_check() {
    let desk = desk();
    write(&desk, "broken-c", "c");
    let file = desk.path().join("broken-c/crd.json");
    let mut crd: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    // As the SDK generates it from such types.
    let spec = root().join("plugins/sdk/tests/schemas/unstructural.json");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        serde_json::from_slice(&std::fs::read(spec).unwrap()).unwrap();
    std::fs::write(&file, serde_json::to_string_pretty(&crd).unwrap()).unwrap();
    make(&desk, "broken-c", "build/broken-c.wasm");
    let plugin = desk.path().join("broken-c/build/broken-c.wasm");
    let answer = host(&["check", plugin.to_str().unwrap()]).expect(1);
    for words in [
        "fail  crd",
        "properties.tree.properties.branches.items: `$ref` to \"#/$defs/Tree\"",
    ] {
        assert!(answer.out.contains(words), "{words:?} is not in {}", answer.out);
    }
}
