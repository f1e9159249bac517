//! `new`: the generated project builds, passes its own tests, and runs.

use crate::support::prelude::*;
use tempfile::TempDir;

use super::{compiled, host};
use crate::support::install;

/// The project of a plugin, as `new` writes it.
pub struct Project {
    desk: TempDir,
    name: String,
}

impl Project {
    /// Generates a plugin within the repository, where the SDK is found as for an author.
    fn new(name: &str, language: &str) -> Self {
        Self::of_kind(name, language, "Greeter", "v1beta1")
    }

    /// Generates a plugin for a kind.
    pub fn of_kind(name: &str, language: &str, kind: &str, version: &str) -> Self {
        let desk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self::within(
            desk,
            name,
            language,
            &format!("--kind {kind} --version {version}"),
        )
    }

    /// Generates a plugin outside of the repository.
    fn outside(name: &str, language: &str) -> Self {
        let desk = tempfile::tempdir().unwrap();
        Self::within(desk, name, language, "--kind Greeter --version v1beta1")
    }

    fn within(desk: TempDir, name: &str, language: &str, kind: &str) -> Self {
        let name = name.to_owned();
        let project = Self { desk, name };
        let sdk = root().join("plugins/sdk").canonicalize().unwrap();
        let mut new = program(&["new", "--lang", language, "--group", "example.org"]);
        new.args(kind.split(' ')).arg("--sdk").arg(sdk);
        assert_contains(&new.arg(project.folder()).prints(), "make render");
        project
    }

    fn folder(&self) -> PathBuf {
        self.desk.path().join(&self.name)
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Returns the path of the plugin that it builds.
    pub fn plugin(&self) -> PathBuf {
        self.file(&format!("build/{}.wasm", self.name))
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.file(file)).unwrap()
    }

    /// Writes a file into a folder that need not exist.
    pub fn put(&self, file: &str, content: impl AsRef<[u8]>) {
        let file = self.file(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }

    /// Replaces a text in a file.
    fn edit(&self, file: &str, from: &str, to: &str) {
        let text = self.read(file);
        assert!(text.contains(from), "{from:?} is not in {file}");
        self.put(file, text.replace(from, to));
    }

    /// Returns `make` of a target, as on an author's machine.
    fn make_command(&self, target: &str) -> Command {
        let mut command = Command::new("make");
        command
            .arg(target)
            .current_dir(self.folder())
            .env("OPERATOR_HOST", env!("CARGO_BIN_EXE_operator-host"))
            .env("CARGO_TARGET_DIR", dependencies())
            .env("OPERATOR_HOST_CACHE_DIR", compiled())
            .env_remove("OPERATOR_HOST_LOG")
            .env_remove("MAKEFLAGS")
            // Where it is set, the tests of a plugin change no file.
            .env_remove("CI");
        command
    }

    /// Makes a target, which succeeds, and returns all that it printed.
    fn make(&self, target: &str) -> String {
        let (is_success, printed) = run(&mut self.make_command(target));
        assert!(is_success, "make {target} in {}:\n{printed}", self.name);
        printed
    }

    /// Builds the plugin, and returns its path.
    pub fn build(&self) -> PathBuf {
        self.make(&format!("build/{}.wasm", self.name));
        self.plugin()
    }

    /// Does not succeed in that, and returns all that is printed.
    fn fails_to_build(&self) -> String {
        fails_to(&mut self.make_command(&format!("build/{}.wasm", self.name)))
    }

    fn passes(&self) {
        let printed = self.make("test");
        assert_contains(&printed, "3 calls replayed: 3 the same, 0 different");
        assert!(!printed.contains("fail  "), "{printed}");
        let rendered = self.make("render");
        assert_contains(&rendered, "kind: Deployment … readyReplicas: 0");
    }
}

/// Returns the folder with the compiled dependencies of the samples, which are used again.
fn dependencies() -> PathBuf {
    root().join("plugins/target").canonicalize().unwrap()
}

/// Runs a command and returns whether it succeeded, with all that it printed.
fn run(command: &mut Command) -> (bool, String) {
    let answer = command.call();
    (answer.code == Some(0), answer.all())
}

/// Runs a command that fails, and returns its output.
fn fails_to(command: &mut Command) -> String {
    let (is_success, printed) = run(command);
    assert!(!is_success, "{printed}");
    printed
}

#[tokio::test]
async fn a_plugin_in_rust_passes_its_tests_and_runs_in_a_cluster() {
    let project = Project::new("greeter-rust", "rust");
    project.passes();
    let scenario = Scenario::new("new-rust").await;
    let definition = project.read("crd.json");
    install(&scenario.client, scenario.folder.path(), &definition).await;
    let _host = scenario.start_with(&project.file("config.yaml"), &[]);
    let resource = "example.org/v1beta1/Greeter";
    let namespace = format!("namespace: {}", scenario.namespace);
    let sample = project.read("sample.yaml");
    scenario
        .apply(&sample.replace("namespace: default", &namespace))
        .await;
    scenario
        .until_condition(resource, "my-greeter", "Ready=True ReplicasReady")
        .await;
}

/// Regression: the lock file was that of the samples, which cargo had to change first.
#[test]
fn a_plugin_in_rust_comes_with_the_lock_file_that_cargo_would_write() {
    let project = Project::new("locked", "rust");
    let mut command = Command::new("cargo");
    command.args(["tree", "--locked", "--target", "wasm32-wasip1"]);
    command.current_dir(project.folder()).prints();
}

/// Regression: a test failed once, to update the definition, and the plugin had to be built once more.
#[test]
fn make_follows_the_types_of_a_plugin_in_rust() {
    let project = Project::new("types", "rust");
    project.edit("src/lib.rs", "range(max = 100)", "range(max = 7)");
    project.make("test");
    let printed = program(&["crd"]).arg(project.plugin()).prints();
    assert_contains(&printed, "maximum: 7");
}

/// Regression: the test before this one passed on a desk only, as continuous integration sets `CI`.
#[test]
fn with_ci_set_make_changes_no_definition_and_names_the_one_that_is_out_of_date() {
    let project = Project::new("stale", "rust");
    project.edit("crd.json", "\"maximum\": 100", "\"maximum\": 101");
    let stale = project.read("crd.json");
    // Make looks at times, and the sources are to be newer.
    Command::new("touch")
        .args(["--date", "1 second"])
        .arg(project.file("src/lib.rs"))
        .prints();
    let printed = fails_to(project.make_command("crd.json").env("CI", "true"));
    assert_contains(&printed, "crd.json does not match the plugin's types");
    assert_eq!(project.read("crd.json"), stale);
}

/// Regression: it replaced a plugin of the same name in the checkout.
#[test]
fn a_plugin_outside_of_the_checkout_is_built_in_its_own_folder() {
    let project = Project::outside("outside", "rust");
    project.build();
    assert!(project.file("target/plugins/outside.wasm").is_file());
    assert!(!root().join("plugins/target/plugins/outside.wasm").exists());
}

#[test]
fn a_plugin_in_go_passes_its_tests() {
    Project::new("greeter-go", "go").passes();
}

/// Regression: Debian's Go said `unsupported GOOS/GOARCH pair wasip1/wasm`.
#[test]
fn an_old_go_is_named_before_anything_is_built() {
    let project = Project::outside("old-go", "go");
    project.put("go", "#!/bin/sh\necho linux/amd64\n");
    let go = project.file("go");
    Command::new("chmod").arg("+x").arg(&go).prints();
    let printed = fails_to(project.make_command("build/old-go.wasm").env("GO", go));
    assert_contains(
        &printed,
        "does not compile to WebAssembly … install Go 1.21 or later",
    );
}

#[test]
fn a_plugin_in_c_passes_its_tests() {
    Project::new("greeter-c", "c").passes();
}

/// Tests a plugin that fails for one image, and returns what `make render` then prints.
fn fails(name: &str, language: &str, file: &str, place: &str, failure: &str) -> String {
    let project = Project::new(name, language);
    assert_eq!(project.read(file).matches(place).count(), 1, "{place:?}");
    project.edit(file, place, &format!("{failure}\n{place}"));
    project.passes();
    project.edit("sample.yaml", "nginx:1.27", "broken");
    fails_to(&mut project.make_command("render"))
}

#[test]
fn a_plugin_in_javascript_passes_its_tests_and_says_where_it_failed() {
    let failure = r#"  if (spec.image === "broken") request.parent.nothing.there;"#;
    let printed = fails("greeter-js", "js", "plugin.js", "  const replicas =", failure);
    let words = "the plugin stopped: TypeError:  … at reconcile (/plugin.js:9:";
    assert_contains(&printed, words);
}

#[test]
fn a_plugin_in_typescript_passes_its_tests_and_says_where_it_failed() {
    let failure = r#"  if (spec.image === "broken") (request as any).nothing.there;"#;
    let printed = fails("greeter-ts", "ts", "plugin.ts", "  const replicas =", failure);
    assert_contains(&printed, "at reconcile (/plugin.ts:14:");
}

#[test]
fn a_plugin_in_typescript_has_modules_in_folders_and_json() {
    let project = Project::new("parts-ts", "ts");
    project.edit("plugin.ts", "\"app.kubernetes.io/name\": name", "[label]: name");
    let import = r#"import { label } from "./parts/deep/label.js";"#;
    let code = project.read("plugin.ts");
    project.put("plugin.ts", format!("{import}\n{code}"));
    let label = r#"import names from "../names.json" with { type: "json" };
        export const label: string = names.label;"#;
    project.put("parts/deep/label.ts", label);
    let text = r#"{ "label": "app.kubernetes.io/name" }"#;
    project.put("parts/names.json", text);
    project.passes();
    // A change of any of them builds it again.
    project.put("parts/names.json", r#"{ "label": "example.org/name" }"#);
    assert_contains(&project.make("render"), "example.org/name: my-greeter");
    // An error names the file and the line.
    let text = "export const label = 1;\nenum Size { Small }\n";
    project.put("parts/deep/label.ts", text);
    let printed = project.fails_to_build();
    assert_contains(&printed, "parts/deep/label.ts:2: TypeScript enum");
}

#[test]
fn make_test_checks_the_types_of_a_plugin_in_typescript_if_it_can_and_runs_its_tests() {
    let project = Project::new("checked-ts", "ts");
    assert_contains(&project.make("test"), "pass 2");
    let text = "console.log('not a string'); process.exit(2);";
    project.put("node_modules/.bin/tsc", text);
    let printed = fails_to(&mut project.make_command("test"));
    assert_contains(&printed, "not a string");
}

/// Regression: the first thing that an old Node.js does not have was named, after the tests had run.
#[test]
fn an_old_node_is_named_before_anything_runs() {
    let project = Project::new("old-js", "js");
    let old = "data:text/javascript,import%20m%20from%20'node:module';m.registerHooks=undefined;m.syncBuiltinESMExports();";
    let options = format!("--import={old}");
    let printed = fails_to(project.make_command("test").env("NODE_OPTIONS", options));
    let words = "build.mjs: needs Node.js 22.15 or later, and ";
    // Within another make, it says which folder it is in.
    let first = printed.lines().find(|line| !line.starts_with("make"));
    assert!(first.is_some_and(|first| first.starts_with(words)), "{printed}");
}

#[test]
fn a_plugin_in_python_passes_its_tests_and_says_where_it_failed() {
    let failure = "    if spec.image == \"broken\":\n        [].pop()";
    let printed = fails("greeter-python", "python", "plugin.py", "    labels =", failure);
    let words = "the plugin stopped: IndexError: pop from empty list … plugin.py\", line 20, in reconcile";
    assert_contains(&printed, words);
}

/// The tools of this machine need not have pytest, so another module takes its place, as far as a project uses it.
#[test]
fn make_test_runs_the_unit_tests_of_a_plugin_in_python_if_there_is_pytest() {
    let project = Project::new("units-python", "python");
    let pytest = r#"import contextlib, importlib.util, sys
def fixture(function): return function
@contextlib.contextmanager
def raises(kind, match):
    try:
        yield
        raise AssertionError("nothing was raised")
    except kind as error:
        assert match in str(error), error
if __name__ == "__main__":
    sys.modules["pytest"] = sys.modules["__main__"]
    import conftest, test_plugin
    tests = [it for name, it in vars(test_plugin).items() if name.startswith("test_")]
    for test in tests: test(conftest.host())
    print(len(tests), "passed")
"#;
    project.put("elsewhere/pytest.py", pytest);
    let elsewhere = project.file("elsewhere");
    let unit = || run(project.make_command("unit").env("PYTHONPATH", &elsewhere));
    let (is_success, printed) = unit();
    assert!(is_success && printed.contains("2 passed"), "{printed}");
    project.edit("plugin.py", "image: str", "image: str = \"busybox\"");
    let (is_success, printed) = unit();
    assert!(!is_success && printed.contains("nothing was raised"), "{printed}");
}

#[test]
fn the_build_of_a_plugin_in_python_names_what_is_missing() {
    let project = Project::new("missing-python", "python");
    let code = project.read("plugin.py");
    let define = "def reconcile(request: Request) -> Response:\n";
    for (code, words) in [
        (
            format!("import nowhere\n{code}"),
            "ModuleNotFoundError: No module named 'nowhere'",
        ),
        (
            code.replace(define, &format!("{define}    import nowhere\n")),
            "plugin.py, line 18: No module named 'nowhere'",
        ),
        (
            code.replace("image: str", "image: set[str]"),
            "spec.image: a field of a spec cannot be of the type set[str]",
        ),
    ] {
        project.put("plugin.py", code);
        assert_contains(&project.fails_to_build(), words);
    }
}

#[test]
fn a_plugin_in_zig_passes_its_tests_and_says_how_it_failed() {
    let failure = "        if (spec.image.len == 6) @panic(\"no pods today\");";
    let place = "        const labels =";
    let printed = fails("greeter-zig", "zig", "plugin.zig", place, failure);
    assert_contains(&printed, "no pods today");
}

#[test]
fn a_plugin_in_assemblyscript_passes_its_tests_and_says_where_it_failed() {
    let failure = r#"  if (image == "broken") throw new Error("no pods today");"#;
    let (place, file) = ("  const deployment = new", "assembly/plugin.ts");
    let printed = fails("greeter-as", "assemblyscript", file, place, failure);
    let words = "the plugin stopped: abort: no pods today in assembly/plugin.ts(61:";
    assert_contains(&printed, words);
}

/// Arguments of `new`.
const GREETER: &str = "--lang go --kind Greeter --group example.com";

#[test]
fn names_that_cannot_be_are_refused_and_nothing_is_overwritten() {
    let desk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = |name: &str| format!("{}/{name}", desk.path().display());
    let new = |name: &str, more: &str| {
        let folder = folder(name);
        let mut arguments = vec!["new", &*folder];
        arguments.extend(GREETER.split(' '));
        let more: Vec<_> = more.split_whitespace().collect();
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
        ("Greeter", "", "a DNS label that begins with a letter"),
        ("3greeter", "", "a DNS label that begins with a letter"),
        ("g", "--kind greeter", "letters and digits in CamelCase"),
        ("g", "--group example", "a domain name"),
        ("g", "--group Example.com", "a domain name"),
        ("g", "--version 1", "a version such as"),
        ("g", "--version v1-x", "a version such as"),
        ("g", "--version v1gamma1", "a version such as"),
        ("g", "--plural greeter", "a DNS label that differs from the kind"),
        ("g", "--lang rust --sdk /nowhere", "is not the Rust SDK"),
    ] {
        let answer = new(name, more).expect(2);
        assert_contains(&answer.err, expected);
        assert!(!Path::new(&folder(name)).exists());
    }
    new("g", "").expect(0);
    let again = new("g", "").expect(2);
    assert_contains(&again.err, "already exists");
}

#[test]
fn a_type_without_a_structural_schema_is_named_by_check() {
    let project = Project::new("broken-c", "c");
    let mut crd: Value = serde_json::from_str(&project.read("crd.json")).unwrap();
    // As the SDK generates it from such types.
    let spec = root().join("plugins/sdk/tests/schemas/unstructural.json");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] =
        serde_json::from_slice(&std::fs::read(spec).unwrap()).unwrap();
    project.put("crd.json", serde_json::to_string_pretty(&crd).unwrap());
    let answer = program(&["check"]).arg(project.build()).call().expect(1);
    let words = "fail  crd … properties.tree.properties.branches.items: `$ref` to \"#/$defs/Tree\"";
    assert_contains(&answer.out, words);
}

#[test]
fn a_plugin_depends_on_the_sdk_in_a_git_repository() {
    let desk = tempfile::tempdir().unwrap();
    let sdk = crate::repository::release::packaged("plugins", &["operator-plugin".to_owned()], desk.path())
        .remove(0);
    let schema = crate::repository::release::unpublished_schema();
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let mut command = Command::new("git");
        command.args(identity).args(arguments).current_dir(&sdk).prints();
    };
    git(&["init", "--quiet"]);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "Release"]);
    git(&["tag", "v0.1.0"]);
    let url = format!("file://{}", sdk.display());
    for (name, tag, source) in [("by-url", "", "#"), ("by-tag", "#v0.1.0", "?tag=v0.1.0#")] {
        let folder = desk.path().join(name);
        let kind = ["--lang", "rust", "--kind", "Greeter", "--group", "example.org"];
        let given = format!("{url}{tag}");
        let arguments = [&["new", folder.to_str().unwrap(), "--sdk", &given], &kind[..]].concat();
        host(&arguments).expect(0);
        // As the first build without --locked does, this completes the lock file.
        let mut command = Command::new("cargo");
        command.args(["tree", "--depth", "1", "--prefix", "none"]);
        let tree = command.arg(&schema).current_dir(&folder).prints();
        assert_contains(&tree, &format!("operator-plugin v0.1.0 ({url}{source}"));
    }
    // The packaged crate has all that a plugin and its tests need.
    Command::new("cargo")
        .args(["test", "--quiet", &schema])
        .current_dir(desk.path().join("by-tag"))
        .env("CARGO_TARGET_DIR", root().join("plugins/target"))
        .env_remove("CI")
        .prints();
}

/// A plugin with types of Kubernetes in two versions of its spec.
const PODS: &str = r#"
use k8s_openapi::api::batch::v1::JobTemplateSpec;
use operator_plugin::PodTemplate;
use operator_plugin::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const PLUGIN: Plugin<Spec, Status> = Plugin::new("example.org/v1beta1", "Greeter", reconcile)
    .makes(&[DEPLOYMENT])
    .without_descriptions()
    .versions(&[Version::new::<Old>("v1alpha1")]);
operator_plugin::register!(PLUGIN);

#[derive(Deserialize, Serialize, JsonSchema)]
struct Spec {
    job: JobTemplateSpec,
    template: PodTemplate,
}

#[derive(Deserialize, Serialize, JsonSchema)]
struct Old {
    jobs: JobTemplateSpec,
    pods: PodTemplate,
}

#[derive(Deserialize, Serialize, JsonSchema)]
struct Status {}

impl From<Spec> for Old {
    fn from(spec: Spec) -> Self {
        Self { jobs: spec.job, pods: spec.template }
    }
}

impl From<Old> for Spec {
    fn from(old: Old) -> Self {
        Self { job: old.jobs, template: old.pods }
    }
}

fn reconcile(request: &Request<Spec, Status>) -> Result<Response<Status>, Failure> {
    let labels = Labels::new("app", "greeter");
    let spec = json!({"selector": {"matchLabels": labels}, "template": request.parent.spec.template.with_labels(&labels)});
    Ok(Response::new(Status {}).child(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pods"}, "spec": spec,
    })))
}
"#;

/// Regression: the compiler refused the definition, "constant evaluation is taking a long time", and `cpu: 1` did not come back
/// from the other version.
#[test]
fn a_spec_with_types_of_kubernetes_builds_is_small_and_comes_back_from_conversion() {
    let project = Project::new("pods", "rust");
    project.put("src/lib.rs", PODS);
    let types =
        "[dependencies]\nk8s-openapi = { version = \"0.29\", features = [\"latest\", \"schemars\"] }\n";
    let manifest = project.read("Cargo.toml");
    project.put("Cargo.toml", manifest.replacen("[dependencies]\n", types, 1));
    let plugin = project.build();
    let definition: Value = serde_json::from_str(&project.read("crd.json")).unwrap();
    let size = definition.to_string().len();
    assert!(size < 150_000, "{size}");
    // With generated resources.
    let mut tests = Command::new("cargo");
    tests
        .args(["test", "every_version_comes_back"])
        .current_dir(project.folder());
    let (is_success, printed) = run(tests.env("CARGO_TARGET_DIR", dependencies()));
    assert!(is_success, "{printed}");
    let resources = "resources: {limits: {cpu: 1, memory: 1Gi}}";
    let template = |name: &str| {
        format!(
            "{{metadata: {{labels: {{a: b}}}}, spec: {{restartPolicy: Never, containers: [{{name: {name}, image: i, {resources}}}]}}}}"
        )
    };
    let (job, pods) = (template("job"), template("web").replace("Never", "Always"));
    let text = format!(
        "apiVersion: example.org/v1beta1\nkind: Greeter\nmetadata: {{name: g}}\nspec: {{job: {{spec: {{template: {job}}}}}, template: {pods}}}\n"
    );
    project.put("sample.yaml", text);
    let mut check = program(&["check"]);
    check.arg(plugin).arg("--sample").arg(project.file("sample.yaml"));
    assert_contains(
        &check.prints(),
        "nothing is lost between … g: 1, all of them allowed",
    );
}
