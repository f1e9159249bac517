use super::*;
use operator_host_core::child_rules::Removal;

const GOOD: &str = "\
controllers:
  - name: echo
    parent: {apiVersion: my-operator.dev/v1, kind: Echo}
    plugin: echo.wasm
    children:
      - {apiVersion: v1, kind: Pod}
      - {apiVersion: v1, kind: PersistentVolumeClaim}
    limits: {memory: 32Mi, deadline: 250ms, compile: 2m}
";

fn parse(text: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("echo.wasm"), b"").unwrap();
    let file = folder.path().join("config.yaml");
    Config::parse(&file, text).map_err(|error| {
        let message = error.to_string();
        message.replace(&format!("{}/", folder.path().display()), "")
    })
}

#[test]
fn fields_that_a_file_leaves_out_get_their_defaults() {
    let config = parse(GOOD).unwrap();
    let echo = &config.controllers[0];
    assert_eq!(echo.parent, Kind::new("my-operator.dev/v1", "Echo"));
    assert_eq!(echo.limits.memory, 32 << 20);
    assert_eq!(echo.limits.deadline, Duration::from_millis(250));
    assert_eq!(echo.limits.response, Limits::DEFAULT.response);
    assert_eq!(echo.limits.compile, Duration::from_secs(120));
    assert_eq!(echo.writes, DEFAULT_WRITES);
    assert_eq!(echo.concurrency, DEFAULT_CONCURRENCY);
    assert_eq!(echo.field_manager(), "operator-host/echo");
}

#[test]
fn the_file_sets_the_memory_of_a_call_and_the_rate_of_writes() {
    let limits = "limits: {request: 4Mi, response: 1Mi, values: 5000, children: 50}";
    let text = GOOD.replace("limits: {memory: 32Mi, deadline: 250ms, compile: 2m}", limits);
    let config = parse(&format!("{text}    writes: {{qps: 5, burst: 10}}\n")).unwrap();
    let echo = &config.controllers[0];
    assert_eq!((echo.limits.request, echo.limits.response), (4 << 20, 1 << 20));
    assert_eq!((echo.limits.values, echo.limits.children), (5000, 50));
    assert_eq!(echo.writes, WritesConfig { qps: 5, burst: 10 });
}

#[test]
fn claims_are_retained_and_other_kinds_deleted_unless_configured_otherwise() {
    let removals = |text: &str| -> Vec<Removal> {
        let config = parse(text).unwrap();
        config.controllers[0].rules.children.values().copied().collect()
    };
    assert_eq!(removals(GOOD), [Removal::Retain, Removal::Delete]);
    let flipped = GOOD
        .replace("kind: Pod}", "kind: Pod, onRemoval: retain}")
        .replace("Claim}", "Claim, onRemoval: delete}");
    assert_eq!(removals(&flipped), [Removal::Delete, Removal::Retain]);
}

#[test]
fn a_controller_may_be_pinned_to_one_version() {
    assert_eq!(parse(GOOD).unwrap().controllers[0].trust.sha256, None);
    let digest = "ab".repeat(32);
    let pinned = parse(&format!("{GOOD}    sha256: {digest}\n")).unwrap();
    assert_eq!(pinned.controllers[0].trust.sha256, digest.parse().ok());
}

#[test]
fn a_controller_may_have_another_mode_of_definitions_than_the_file() {
    let of = |text: &str| parse(text).unwrap().controllers[0].definitions;
    let install = format!("definitions: install\n{GOOD}");
    assert_eq!(of(&install), DefinitionsMode::Install);
    assert_eq!(
        of(&format!("{install}    definitions: check\n")),
        DefinitionsMode::Check
    );
}

/// One file that is missing must not stop the controllers of the others.
#[test]
fn a_plugin_file_may_be_missing() {
    assert!(Config::parse(Path::new("/nowhere/config.yaml"), GOOD).is_ok());
}

#[track_caller]
fn refused(text: &str, place: &str, expected: &str) {
    let message = parse(text).expect_err("the configuration must be refused");
    let place = format!("config.yaml:{place}: ");
    assert!(message.starts_with(&place), "{message}");
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_file_without_controllers_needs_ceilings() {
    let words = "set `ceilings` to run the Controllers of the cluster";
    refused("plugins: .\n", "1:1", words);
    assert!(parse("ceilings: []\n").unwrap().controllers.is_empty());
}

#[test]
fn every_refusal_names_line_and_column_and_what_is_expected() {
    let with =
        |from: &str, to: &str, place: &str, expected: &str| refused(&GOOD.replace(from, to), place, expected);
    let more = |text: &str, place: &str, expected: &str| refused(&format!("{GOOD}{text}"), place, expected);
    with("plugin:", "plugins:", "4:5", "unknown field `plugins`");
    with("32Mi", "32Mb", "8:22", "expected a number of bytes");
    with("250ms", "soon", "8:38", "expected a value such as `500ms`");
    with("250ms", "0s", "8:38", "expected a value such as `500ms`");
    for group in ["v1", "apps/v1", "networking.k8s.io/v1"] {
        let (own, other) = ("apiVersion: my-operator.dev/v1", format!("apiVersion: {group}"));
        with(own, &other, "2:5", "`parent` must be a custom resource");
    }
    with("name: echo", "name: Echo_1", "2:11", "lower-case letters");
    with("my-operator.dev/v1", "my-operator.dev", "3:13", "is not a kind");
    with("kind: Pod}", "kind: pods}", "6:9", "expected CamelCase");
    let odd = "my-operator.dev/\u{31d}v2";
    with("my-operator.dev/v1", odd, "3:13", "is not a kind");
    more("    concurrency: 0\n", "9:18", "from 1 to 1000");
    more("    concurrency: many\n", "9:18", "expected a whole number");
    more("    writes: {qps: 0}\n", "9:19", "must be at least 1");
    more("    writes: {burst: lots}\n", "9:21", "expected a whole number");
    with("memory: 32Mi", "values: 0", "8:22", "must be at least 1");
    more("    sha256: abc\n", "9:13", "64 hexadecimal digits");
    refused(&format!("log: loud=louder\n{GOOD}"), "1:6", "is not a log filter");
}

#[test]
fn two_controllers_for_one_kind_are_refused_whatever_their_version() {
    let same = GOOD.replace("controllers:\n", "");
    let other = same.replace("name: echo", "name: other");
    let v2 = other.replace("dev/v1", "dev/v2");
    for (second, words) in [
        (other, "the controller \"echo\" already reconciles Echo"),
        (v2, "a kind can have one controller only"),
        (same, "there is already a controller named"),
    ] {
        refused(&format!("{GOOD}{second}"), "9:5", words);
    }
}

#[test]
fn a_missing_file_is_named_and_why_it_cannot_be_read_is_said_once() {
    let error = Config::load(Path::new("no/such/file.yaml")).unwrap_err();
    let words = "cannot read the configuration no/such/file.yaml: No such file";
    assert!(error.to_string().starts_with(words), "{error}");
    let text = format!("{:#}", anyhow::Error::from(error));
    assert_eq!(text.matches("No such file").count(), 1, "{text}");
}

#[test]
fn a_kind_is_listed_under_children_once_in_one_version() {
    let with = |second: &str| {
        let both =
            format!("      - {{apiVersion: example.com/v1, kind: Gadget}}\n      - {second}\n    limits:");
        GOOD.replace("    limits:", &both)
    };
    assert!(parse(&with("{apiVersion: example.org/v2, kind: Gadget}")).is_ok());
    let refused = parse(&with("{apiVersion: example.com/v2, kind: Gadget}")).unwrap_err();
    let words = "example.com/v2/Gadget and example.com/v1/Gadget are versions of the same kind";
    assert!(refused.contains(words), "{refused}");
    let twice = parse(&with("{apiVersion: example.com/v1, kind: Gadget}")).unwrap_err();
    assert!(twice.contains("listed twice"), "{twice}");
}

#[test]
fn keys_in_the_folder_that_plugins_come_from_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (plugins, elsewhere) = (folder.path().join("plugins"), folder.path().join("keys"));
    for folder in [&plugins, &elsewhere] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("keys.yaml"), "").unwrap();
    }
    std::fs::write(plugins.join("echo.wasm"), "").unwrap();
    let (file, text) = (
        folder.path().join("config.yaml"),
        format!("plugins: plugins\n{GOOD}"),
    );
    let config = Config::parse(&file, &text).unwrap();
    config.check_place_of_keys(&elsewhere.join("keys.yaml")).unwrap();
    // A link in the plugin folder is refused too, and so is a link to such a key file.
    std::os::unix::fs::symlink(plugins.join("keys.yaml"), elsewhere.join("link")).unwrap();
    for keys in [plugins.join("keys.yaml"), elsewhere.join("link")] {
        let error = config.check_place_of_keys(&keys).unwrap_err().to_string();
        assert!(error.contains("a key of their own"), "{error}");
    }
}

#[test]
fn a_cleanup_is_waited_for_until_it_is_done_unless_the_file_sets_a_limit() {
    assert_eq!(parse(GOOD).unwrap().controllers[0].release_after, None);
    let with =
        |text: &str| parse(&GOOD.replace("    limits:", &format!("    finalizer: {text}\n    limits:")));
    let after = with("{releaseAfter: 2h}").unwrap().controllers[0].release_after;
    assert_eq!(after, Some(Duration::from_secs(7200)));
    for time in ["soon", "0s"] {
        let error = with(&format!("{{releaseAfter: {time}}}")).unwrap_err();
        assert!(error.contains("is not a duration"), "{error}");
    }
}

#[test]
fn what_a_plugin_makes_or_reads_without_permission_is_named() {
    let kind = |kind: &str| Kind::new("v1", kind);
    let echo = &parse(GOOD).unwrap().controllers[0];
    let description = |makes: &[&str], reads: &[&str]| Description {
        contract: operator_host_contract::ContractVersion::V1,
        name: "echo".into(),
        version: "1".into(),
        parent: echo.parent.clone(),
        also: Vec::new(),
        makes: makes.iter().map(|name| kind(name)).collect(),
        reads: reads.iter().map(|name| kind(name)).collect(),
        finalizer: false,
        crd: None,
        versions: Vec::new(),
        defaults: false,
        validates: false,
    };
    assert_eq!(echo.disallows(&description(&["Pod"], &[])), Vec::<String>::new());
    assert_eq!(
        echo.disallows(&description(&["Pod", "Service"], &["Secret"])),
        [
            "the plugin creates v1/Service, which is not in `children`: such a child is refused, and one that exists stays as it is",
            "the plugin reads v1/Secret, which is not in `reads`: such a need is refused",
        ]
    );
}
