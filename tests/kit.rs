//! What plugin authors have without a cluster: `render`, `check`, `schema`, and the contract's page.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use operator_host::author::{Problem, definition, schema};
use operator_host::plugin::contract::Kind;
use plugin_fixtures::{Fixture, Form, cases};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{plugin, root};

const ECHO: &str = "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {name: e}\n";

/// A folder for one test's files.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let file = self.0.path().join(name);
        std::fs::write(&file, content).unwrap();
        file
    }

    /// A sample plugin with one resource and further arguments.
    fn render(&self, name: &str, resource: &str, more: &[&str]) -> Answer {
        let file = self.file("resource.yaml", resource);
        let mut arguments = vec!["render", "--plugin", name, "-f", file.to_str().unwrap()];
        arguments.extend(more);
        host(&arguments)
    }

    /// A plugin of the fixtures and its resource.
    fn fixture(&self, case: &str) -> Answer {
        let file = self.file("fixture.wasm", Fixture::new(case).build(Form::Command));
        let resource = "apiVersion: fixtures.dev/v1\nkind: Fixture\nmetadata: {name: f}\n";
        self.render(file.to_str().unwrap(), resource, &[])
    }
}

struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
}

fn host(arguments: &[&str]) -> Answer {
    let program = Path::new(env!("CARGO_BIN_EXE_operator-host"));
    let mut command = Command::new(program);
    command.args(arguments).env_remove("OPERATOR_HOST_LOG");
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it runs");
    Answer {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

impl Answer {
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }
}

fn sample(name: &str) -> String {
    plugin(name).to_str().unwrap().to_owned()
}

#[test]
fn children_are_a_stream_that_kubectl_takes_and_the_status_stands_in_comments() {
    let desk = Desk::new();
    let spec =
        format!("{ECHO}spec: {{replicas: 2, image: 'echo:1'}}\n---\n{ECHO}spec: {{replicas: 0, image: i}}\n");
    for name in ["echo", "echo-command"] {
        let answer = desk.render(&sample(name), &spec, &[]).expect(0);
        let documents: Vec<Value> = serde_saphyr::from_multiple(&answer.out).unwrap();
        let documents: Vec<&Value> = documents.iter().filter(|d| !d.is_null()).collect();
        assert_eq!(documents.len(), 2, "{}", answer.out);
        assert_eq!(
            *documents[1],
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "e-pod-1", "namespace": "default", "labels": {"app": "e"}},
                "spec": {"containers": [{"name": "echo", "image": "echo:1"}]},
            })
        );
        assert!(answer.out.contains("#   currentReplicas: 0"), "{}", answer.out);
    }
    let list = desk.render(&sample("echo"), &spec, &["-o", "json"]).expect(0);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["parents"][1]["status"]["isReady"], true);
    let names = desk.render(&sample("echo"), &spec, &["-o", "name"]).expect(0);
    assert_eq!(names.out, "pod/e-pod-0\npod/e-pod-1\n");
}

#[test]
fn observed_children_and_the_clock_reach_the_plugin() {
    let desk = Desk::new();
    let pods = desk.file(
        "pods.yaml",
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: e-pod-0}, status: {conditions: [{type: Ready, status: 'True'}]}}\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: x, namespace: elsewhere}}\n\
         - {apiVersion: v1, kind: Pod, metadata: {name: other, ownerReferences: [{apiVersion: v1, kind: Other, name: o, uid: u, controller: true}]}}\n\
         - {apiVersion: v1, kind: Service, metadata: {name: z}}\n",
    );
    let more = [
        "--children",
        pods.to_str().unwrap(),
        "--now",
        "2026-01-02T03:04:05Z",
        "-o",
        "json",
    ];
    let answer = desk.render(
        &sample("echo"),
        &format!("{ECHO}spec: {{replicas: 1, image: i}}\n"),
        &more,
    );
    let list: Value = serde_json::from_str(&answer.expect(0).out).unwrap();
    let status = &list["parents"][0]["status"];
    assert_eq!(status["currentReplicas"], 1, "{status}");
    assert_eq!(status["isReady"], true, "{status}");
    assert_eq!(
        status["conditions"][0]["lastTransitionTime"],
        "2026-01-02T03:04:05Z"
    );
}

const MYSQL: &str = "apiVersion: database.example.com/v1\nkind: MySQLCluster\nmetadata: {name: db}\n\
                     spec: {version: '8.4', storageSize: 1Gi, rootPasswordSecret: {name: pw}}\n";

#[test]
fn needs_are_answered_from_the_related_objects_and_defaults_are_filled_in() {
    let desk = Desk::new();
    let missing = desk.render(&sample("mysql"), MYSQL, &[]).expect(1);
    assert!(
        missing.err.contains("MySQLCluster db: to be tried again") && missing.err.contains("pw"),
        "{}",
        missing.err
    );
    let secrets = desk.file(
        "secrets.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: pw}\ndata: {password: cHc=}\n",
    );
    let more = ["--related", secrets.to_str().unwrap(), "-o", "name"];
    let found = desk.render(&sample("mysql"), MYSQL, &more).expect(0);
    assert!(found.out.contains("pod/db-0\n"), "{}", found.out);
    assert!(
        !found.out.contains("pod/db-1\n"),
        "the default is one replica: {}",
        found.out
    );
    assert!(
        !found.out.contains("secret/"),
        "the password is the user's: {}",
        found.out
    );
}

#[test]
fn a_failure_of_the_plugin_is_told_with_exit_code_1() {
    let desk = Desk::new();
    let larger = desk.file(
        "claims.yaml",
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data-db-0}\n\
         spec: {resources: {requests: {storage: 2Gi}}}\n",
    );
    let spec = MYSQL.replace(", rootPasswordSecret: {name: pw}", "");
    let invalid = desk.render(&sample("mysql"), &spec, &["--children", larger.to_str().unwrap()]);
    let invalid = invalid.expect(1);
    assert!(
        invalid.err.contains("InvalidSpec") && invalid.err.contains("storageSize"),
        "{}",
        invalid.err
    );
    assert_eq!(invalid.out, "");

    for (case, expected) in [
        (cases::PANIC, "panicked at src/lib.rs:7:9:\nno image"),
        (cases::TRAP, "divide by zero"),
        (cases::NOT_JSON, "does not follow the contract"),
        (cases::EXIT, "exited with code 3"),
    ] {
        let answer = desk.fixture(case).expect(1);
        assert!(answer.err.contains(expected), "{}", answer.err);
    }
}

#[test]
fn children_that_the_plugin_may_not_make_are_refused() {
    let desk = Desk::new();
    let answer = desk.fixture(cases::ANSWER).expect(0);
    assert!(answer.out.contains("kind: ConfigMap"), "{}", answer.out);
    let other = cases::ANSWER.replace("ConfigMap", "ConfigMop");
    let answer = desk.fixture(&other).expect(1);
    assert!(
        answer.err.contains("ConfigMop") && answer.err.contains("`makes`"),
        "{}",
        answer.err
    );
}

#[test]
fn a_resource_that_does_not_fit_is_refused_with_path_and_rule() {
    let desk = Desk::new();
    let spec = |spec: &str| format!("{ECHO}spec: {spec}\n");
    for (resource, expected) in [
        (
            spec("{replicas: 101, image: i}"),
            "spec.replicas: 101 is greater than 100 (maximum)",
        ),
        (
            spec("{replicas: -1, image: i}"),
            "spec.replicas: -1 is less than 0 (minimum)",
        ),
        (
            spec("{replicas: two, image: i}"),
            "spec.replicas: \"two\" must be of type integer",
        ),
        (spec("{replicas: 1}"), "spec.image: is missing (required)"),
        (
            spec("{replicas: 1, image: ''}"),
            "spec.image: \"\" is shorter than 1 (minLength)",
        ),
        (
            spec("{replicas: 1, image: i, imgae: j}"),
            "spec.imgae: unknown field; the schema has image, replicas",
        ),
        (ECHO.to_owned(), "spec: is missing (required)"),
        (
            spec("{replicas: 1, image: i}").replace("/v1", "/v2"),
            "the kind is my-operator.dev/v2/Echo; the plugin reconciles my-operator.dev/v1/Echo",
        ),
        (
            format!("{}---\nkind: Echo\n", spec("{replicas: 1, image: i}")),
            "document 2: this is no Kubernetes object: `apiVersion` is missing or no text",
        ),
        ("{".to_owned(), "resource.yaml"),
        (String::new(), "no resource"),
    ] {
        let answer = desk.render(&sample("echo"), &resource, &[]).expect(2);
        assert!(
            answer.err.contains(expected),
            "{expected:?} is not in:\n{}",
            answer.err
        );
        assert_eq!(answer.out, "");
    }
    let both = format!(
        "{}---\n{}",
        spec("{replicas: 101, image: i}"),
        spec("{replicas: 1}")
    );
    let answer = desk.render(&sample("echo"), &both, &[]).expect(2);
    assert!(
        answer.err.contains("document 1") && answer.err.contains("document 2"),
        "{}",
        answer.err
    );
}

#[test]
fn a_difference_to_an_earlier_rendering_has_the_exit_codes_of_diff() {
    let desk = Desk::new();
    let spec = |replicas| format!("{ECHO}spec: {{replicas: {replicas}, image: i}}\n");
    let echo = sample("echo");
    let before = desk.render(&echo, &spec(1), &[]).expect(0);
    let file = desk.file("before.yaml", &before.out);
    let diff = ["--diff", file.to_str().unwrap()];
    assert_eq!(desk.render(&echo, &spec(1), &diff).expect(0).out, "");
    let answer = desk.render(&echo, &spec(2), &diff).expect(1);
    assert!(answer.out.contains("\n+  name: e-pod-1\n"), "{}", answer.out);
    assert!(!answer.out.contains('\x1b'), "no colour but on a terminal");
    desk.render(&echo, &spec(200), &diff).expect(2);
    let panics = desk.file("p.wasm", Fixture::new(cases::PANIC).build(Form::Command));
    let resource = "apiVersion: fixtures.dev/v1\nkind: Fixture\nmetadata: {name: f}\n";
    desk.render(panics.to_str().unwrap(), resource, &diff).expect(2);
}

/// A schema with one property `a` and what fits it or does not.
#[test]
fn values_are_validated_as_the_api_server_does() {
    for (rule, value, expected) in [
        (
            json!({"type": "string", "enum": ["x", "y"]}),
            json!("z"),
            Some("a: \"z\" is not one of \"x\", \"y\" (enum)"),
        ),
        (
            json!({"type": "string", "pattern": "^b"}),
            json!("ab"),
            Some("a: \"ab\" does not match ^b (pattern)"),
        ),
        (json!({"type": "string", "maxLength": 2}), json!("äö"), None),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("today"),
            Some("a: \"today\" is no date-time (format)"),
        ),
        (
            json!({"type": "number", "maximum": 1, "exclusiveMaximum": true}),
            json!(1),
            Some("a: 1 must be less than 1 (exclusiveMaximum)"),
        ),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), None),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            Some("a: 7 is not a multiple of 5 (multipleOf)"),
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_i64),
            Some("a: 3000000000 does not fit 32 bits (format int32)"),
        ),
        (
            json!({"type": "string"}),
            json!(null),
            Some("a: must not be null"),
        ),
        (json!({"type": "string", "nullable": true}), json!(null), None),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%"), None),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!([]),
            Some("a: [] must be an integer or a string"),
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"b": 1}),
            None,
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"b/c": 1}),
            Some("a[b/c]: 1 must be of type string"),
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "string"}}),
            json!([]),
            Some("a: 0 items are fewer than 1 (minItems)"),
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
            json!(["b", "b"]),
            Some("a[1]: \"b\" is there twice (x-kubernetes-list-type)"),
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            json!([{"k": "1"}, {"k": "1"}]),
            Some("a[1]: [\"1\"] is there twice (x-kubernetes-list-type)"),
        ),
        (
            json!({"type": "object", "properties": {"b": {"type": "string"}, "c": {"type": "string"}}, "oneOf": [{"required": ["b"]}, {"required": ["c"]}]}),
            json!({"b": "", "c": ""}),
            Some("a: fits 2 of the alternatives, not exactly one (oneOf)"),
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}}),
            json!({"b": 1, "c": 2}),
            Some("a: 2 fields are more than 1 (maxProperties)"),
        ),
    ] {
        let schema = json!({"type": "object", "properties": {"a": rule}});
        let found: Vec<String> = schema::validate(&json!({"a": value}), &schema)
            .iter()
            .map(Problem::to_string)
            .collect();
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{schema}");
    }
}

#[test]
fn defaults_are_filled_in_from_the_outside_in() {
    let inner =
        json!({"type": "object", "default": {}, "properties": {"port": {"type": "integer", "default": 80}}});
    let schema = json!({"type": "object", "properties": {
        "one": inner, "many": {"type": "array", "items": inner}, "none": {"type": "object", "properties": {"x": {"default": 1}}},
    }});
    let mut value = json!({"many": [{}, {"port": 1}, {"port": null}]});
    schema::fill_defaults(&mut value, &schema);
    assert_eq!(
        value,
        json!({"one": {"port": 80}, "many": [{"port": 80}, {"port": 1}, {"port": 80}]})
    );
}

/// The Echo definition with one change each.
#[test]
fn a_definition_that_the_api_server_would_refuse_is_named_with_its_path() {
    let text = std::fs::read_to_string(root().join("manifests/crds/echoes.my-operator.dev.yaml")).unwrap();
    let crd: Value = serde_saphyr::from_str(&text).unwrap();
    let parent = Kind {
        api_version: "my-operator.dev/v1".into(),
        kind: "Echo".into(),
    };
    assert_eq!(definition::problems(&crd, &parent), []);
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let image = &format!("{spec}/image");
    for (at, value, path, message) in [
        (
            image,
            json!({"description": "no type"}),
            "properties.image",
            "`type` is missing",
        ),
        (
            image,
            json!({"$ref": "#/definitions/Image"}),
            "properties.image",
            "`$ref` is not allowed",
        ),
        (
            image,
            json!({"type": ["string", "null"]}),
            "properties.image",
            "nullable",
        ),
        (
            image,
            json!({"type": "text"}),
            "properties.image",
            "must be one of object",
        ),
        (
            image,
            json!({"const": "x", "type": "string"}),
            "properties.image",
            "`const` is no keyword",
        ),
        (image, json!(true), "properties.image", "not structural"),
        (
            image,
            json!({"type": "string", "pattern": "("}),
            "properties.image",
            "no regular expression",
        ),
        (
            image,
            json!({"type": "string", "default": 1}),
            "properties.image",
            "default does not fit",
        ),
        (
            image,
            json!({"type": "array"}),
            "properties.image",
            "`items` is missing",
        ),
        (
            image,
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            "properties.image",
            "x-kubernetes-list-type: set",
        ),
        (
            image,
            json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}),
            "properties.image",
            "exclude each other",
        ),
        (
            image,
            json!({"type": "object", "oneOf": [{"properties": {"b": {}}}]}),
            "properties.image.oneOf[0].properties.b",
            "outside of the junctor",
        ),
        (
            image,
            json!({"type": "string", "anyOf": [{"type": "string"}]}),
            "properties.image.anyOf[0]",
            "`type` is not allowed within",
        ),
        (
            image,
            json!({"type": "integer", "x-kubernetes-int-or-string": true}),
            "properties.image",
            "must be absent",
        ),
        (
            image,
            json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
            "properties.image",
            "required or have a default",
        ),
        (
            &"/spec/names/plural".into(),
            json!("echos"),
            "metadata.name",
            "must be \"echos.my-operator.dev\"",
        ),
        (
            &"/spec/names/kind".into(),
            json!("Ekko"),
            "spec.names.kind",
            "must be \"Echo\"",
        ),
        (
            &"/spec/group".into(),
            json!("other.dev"),
            "spec.group",
            "must be \"my-operator.dev\"",
        ),
        (
            &"/spec/scope".into(),
            json!("Galaxy"),
            "spec.scope",
            "Namespaced or Cluster",
        ),
        (
            &"/spec/versions/0/name".into(),
            json!("v2"),
            "spec.versions",
            "my-operator.dev/v1 is not there",
        ),
        (
            &"/spec/versions/0/storage".into(),
            json!(false),
            "spec.versions",
            "exactly one must",
        ),
        (
            &"/spec/versions/0/subresources".into(),
            json!({}),
            "subresources.status",
            "add `status: {}`",
        ),
        (
            &"/spec/versions/0/additionalPrinterColumns/0/jsonPath".into(),
            json!(".status.replicas"),
            "additionalPrinterColumns[0].jsonPath",
            "no \"replicas\"",
        ),
        (
            &"/spec/versions/0/additionalPrinterColumns/0/type".into(),
            json!("int"),
            "additionalPrinterColumns[0].type",
            "one of integer",
        ),
        (
            &"/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions".into(),
            json!({"type": "string"}),
            "status.conditions",
            "drops what it does not know",
        ),
    ] {
        let mut crd = crd.clone();
        *crd.pointer_mut(at).unwrap() = value.clone();
        let problems = definition::problems(&crd, &parent);
        assert!(
            problems
                .iter()
                .any(|p| p.path.ends_with(path) && p.message.contains(message)),
            "{at} = {value}: {problems:#?}"
        );
    }
}

#[test]
fn check_lists_what_is_right_and_what_is_wrong_and_its_exit_code_says_which() {
    for (name, resource) in [
        ("echo", "echo"),
        ("echo-command", "echo"),
        ("mysql", "mysqlcluster"),
        ("myapp", "myapp"),
    ] {
        let resource = root().join(format!("manifests/samples/{resource}.yaml"));
        let answer = host(&["check", &sample(name), "--sample", resource.to_str().unwrap()]).expect(0);
        for part in [
            "form",
            "imports",
            "size",
            "describe",
            "crd",
            "cost",
            "determinism",
        ] {
            assert!(
                answer.out.contains(&format!("  {part:12}  ")),
                "{part}: {}",
                answer.out
            );
        }
        assert!(!answer.out.contains("fail"), "{}", answer.out);
    }
    let desk = Desk::new();
    let case = |name: &str, content: Vec<u8>| desk.file(name, content).to_str().unwrap().to_owned();
    let answered = Fixture::new(cases::ANSWER);
    let socket = r#"(import "wasi_snapshot_preview1" "sock_accept" (func (param i32 i32 i32) (result i32)))"#;
    for (file, expected) in [
        (case("text.wasm", b"hello".to_vec()), "fail  form"),
        (
            case("library.wasm", plugin_fixtures::library("run")),
            "fail  form",
        ),
        (
            case(
                "socket.wasm",
                answered.clone().import(socket).build(Form::Command),
            ),
            "fail  imports",
        ),
        (
            case(
                "newer.wasm",
                answered.clone().version("0.9.0").build(Form::Component),
            ),
            "fail  contract",
        ),
        (
            case("panic.wasm", Fixture::new(cases::PANIC).build(Form::Command)),
            "fail  samples",
        ),
    ] {
        let resource = desk.file(
            "f.yaml",
            "apiVersion: fixtures.dev/v1\nkind: Fixture\nmetadata: {name: f}\n",
        );
        let answer = host(&["check", &file, "--sample", resource.to_str().unwrap()]).expect(1);
        assert!(answer.out.contains(expected), "{file}: {}", answer.out);
    }
    let plain = host(&["check", &case("plain.wasm", answered.build(Form::Command))]).expect(0);
    assert!(
        plain.out.contains("warn  crd") && plain.out.contains("warn  samples"),
        "{}",
        plain.out
    );
    host(&["check", "/nowhere.wasm"]).expect(2);
}

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
            // Another project's program; tried by hand.
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
