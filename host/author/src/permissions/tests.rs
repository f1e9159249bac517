use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::*;
use operator_host_delivery::testing::describing;

const KINDS: [(&str, &str, &str); 2] = [("Thing", "things", "Namespaced"), ("Realm", "realms", "Cluster")];

fn resources() -> Resources {
    let mut resources = Resources::default();
    for (kind, plural, scope) in KINDS {
        resources.define(&json!({ "spec": {
            "group": "test.dev", "scope": scope, "names": { "kind": kind, "plural": plural },
            "versions": [{ "name": "v1", "subresources": { "status": {} } }],
        }}));
    }
    resources
}

fn kind(text: &str) -> Kind {
    let (api_version, kind) = text.rsplit_once('/').unwrap();
    Kind::new(api_version, kind)
}

fn host() -> ServiceAccount {
    ServiceAccount {
        namespace: "system".into(),
        name: "host".into(),
    }
}

/// `more` contains further lines of the controller; `makes` lists the kinds in the plugin's description.
fn rights_of(parent: &str, namespaces: &str, more: &str, makes: &[&str], finalizer: bool) -> Rights {
    let parent = kind(parent);
    let text = format!(
        "plugins: /\nnamespaces: {namespaces}\ncontrollers:\n- name: c\n  plugin: {}\n  \
         parent: {{apiVersion: {}, kind: {}}}\n{more}",
        // Any existing file: nothing is loaded.
        Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").display(),
        parent.api_version,
        parent.kind,
    );
    let config = Config::parse(Path::new("/config.yaml"), &text).unwrap();
    let description = Description {
        makes: makes.iter().map(|text| kind(text)).collect(),
        finalizer,
        ..describing("c", "1", parent)
    };
    rights(&config, &host(), &[description], &resources()).unwrap()
}

/// Formats permissions as `scope resource: verbs`, with `*` for the cluster scope.
fn texts(rights: &Rights) -> Vec<String> {
    let mut lines: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for permission in rights.iter() {
        let scope = match &permission.scope {
            Scope::Cluster => "*",
            Scope::Namespace(name) => name,
        };
        let mut line = format!("{scope} {}.{}", permission.resource, permission.group);
        if let Some(name) = &permission.name {
            line = format!("{line} {name}");
        }
        if let Some(who) = &permission.who {
            line = format!("{who}: {line}");
        }
        lines.entry(line).or_default().push(permission.verb);
    }
    lines
        .into_iter()
        .map(|(line, verbs)| format!("{line}: {}", verbs.join(" ")))
        .collect()
}

#[track_caller]
fn assert_has(lines: &[String], line: &str) {
    assert!(lines.iter().any(|it| it == line), "{line} is not in {lines:#?}");
}

#[test]
fn without_namespaces_everything_is_granted_in_the_cluster() {
    let children = "  children:\n  - {apiVersion: v1, kind: Pod}\n  - {apiVersion: v1, kind: PersistentVolumeClaim}\n  \
                    reads: [{apiVersion: v1, kind: Secret}]\n";
    let makes = ["v1/Pod", "v1/PersistentVolumeClaim"];
    let rights = rights_of("test.dev/v1/Thing", "[]", children, &makes, false);
    assert_eq!(
        texts(&rights),
        [
            "* customresourcedefinitions.apiextensions.k8s.io: list watch",
            "* customresourcedefinitions.apiextensions.k8s.io things.test.dev: patch",
            "* events.events.k8s.io: create patch",
            "* namespaces.: list watch",
            "* persistentvolumeclaims.: create list patch watch",
            "* pods.: create delete list patch watch",
            "* secrets.: list watch",
            "* things.test.dev: list watch",
            "* things/finalizers.test.dev: update",
            "* things/status.test.dev: patch",
        ]
    );
    assert!(rights.remarks.is_empty(), "{:?}", rights.remarks);
}

#[test]
fn with_namespaces_only_definitions_and_their_names_are_granted_in_the_cluster_and_others_are_only_read() {
    let children = "  otherNamespaces: [b]\n  children: [{apiVersion: v1, kind: Pod}]\n";
    let lines = |finalizer| {
        texts(&rights_of(
            "test.dev/v1/Thing",
            "[a]",
            children,
            &["v1/Pod"],
            finalizer,
        ))
    };
    assert_eq!(
        lines(false),
        [
            "* customresourcedefinitions.apiextensions.k8s.io: list watch",
            "* customresourcedefinitions.apiextensions.k8s.io things.test.dev: patch",
            "* namespaces. a: get",
            "* namespaces. b: get",
            "a events.events.k8s.io: create patch",
            "a pods.: create delete list patch watch",
            "a things.test.dev: list watch",
            "a things/finalizers.test.dev: update",
            "a things/status.test.dev: patch",
            "b pods.: list watch",
        ]
    );
    // What removes a finalizer must outlive the RoleBinding in a namespace that is deleted. It is for the parents alone.
    assert_eq!(
        lines(true),
        [
            "* customresourcedefinitions.apiextensions.k8s.io: list watch",
            "* customresourcedefinitions.apiextensions.k8s.io things.test.dev: patch",
            "* namespaces. a: get",
            "* namespaces. b: get",
            "* things.test.dev: list patch watch",
            "* things/status.test.dev: patch",
            "a events.events.k8s.io: create patch",
            "a pods.: create delete list patch watch",
            "a things/finalizers.test.dev: update",
            "b pods.: list watch",
        ]
    );
}

#[test]
fn a_host_that_installs_a_definition_may_write_that_one_and_read_all_objects_of_its_kind() {
    let text = format!(
        "plugins: /\nnamespaces: [a]\ndefinitions: install\ncontrollers:\n- name: c\n  plugin: {}\n  parent: {{apiVersion: \
         test.dev/v1, kind: Thing}}\n",
        Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").display(),
    );
    let granted = |text: &str| {
        let config = Config::parse(Path::new("/config.yaml"), text).unwrap();
        let description = Description {
            crd: Some(json!({ "metadata": { "name": "things.test.dev" } }).into()),
            ..describing("c", "1", kind("test.dev/v1/Thing"))
        };
        rights(&config, &host(), &[description], &resources()).unwrap()
    };
    let installs = granted(&text);
    let expected = [
        "* customresourcedefinitions.apiextensions.k8s.io: create list watch",
        "* customresourcedefinitions.apiextensions.k8s.io things.test.dev: patch",
        "* things.test.dev: list",
    ];
    let texts = texts(&installs);
    for line in expected {
        assert_has(&texts, line);
    }
    assert!(
        installs.warnings[0].contains("cannot limit `create` to a name"),
        "{:?}",
        installs.warnings
    );
    for checks in [
        text.replace("install", "check"),
        format!("{text}  definitions: check\n"),
    ] {
        assert!(
            !granted(&checks)
                .iter()
                .any(|permission| permission.verb == "create"
                    && permission.resource == "customresourcedefinitions")
        );
    }
}

#[test]
fn a_cluster_scoped_parent_writes_children_in_other_namespaces_only_and_has_its_events_in_default() {
    let children = "  otherNamespaces: [b]\n  children: [{apiVersion: v1, kind: Pod}]\n";
    let rights = rights_of("test.dev/v1/Realm", "[]", children, &["v1/Pod"], false);
    assert_eq!(
        texts(&rights),
        [
            "* customresourcedefinitions.apiextensions.k8s.io: list watch",
            "* customresourcedefinitions.apiextensions.k8s.io realms.test.dev: patch",
            "* namespaces.: list watch",
            "* pods.: list watch",
            "* realms.test.dev: list watch",
            "* realms/finalizers.test.dev: update",
            "* realms/status.test.dev: patch",
            "b pods.: create delete patch",
            "default events.events.k8s.io: create patch",
        ]
    );
}

#[test]
fn namespaces_that_nobody_knows_in_advance_are_written_by_a_cluster_role_with_a_warning() {
    let pod = "{apiVersion: v1, kind: Pod}";
    for (children, makes, warning) in [
        (
            format!("  otherNamespaces: [b, shop-*]\n  children: [{pod}]\n"),
            &["v1/Pod"][..],
            "has a pattern",
        ),
        (
            format!("  otherNamespaces: [b]\n  children: [{pod}, {{apiVersion: v1, kind: Namespace}}]\n"),
            &["v1/Pod", "v1/Namespace"],
            "makes namespaces",
        ),
    ] {
        let rights = rights_of("test.dev/v1/Realm", "[a]", &children, makes, false);
        let texts = texts(&rights);
        let pods = "* pods.: create delete list patch watch";
        assert_has(&texts, pods);
        assert!(!texts.iter().any(|line| line.starts_with("b ")), "{texts:#?}");
        let is_told =
            |text: &String| text.contains("may write v1/Pod in every namespace") && text.contains(warning);
        assert!(rights.warnings.iter().any(is_told), "{:#?}", rights.warnings);
        // A parent in a namespace has no children elsewhere.
        let rights = rights_of("test.dev/v1/Thing", "[a]", &children, makes, false);
        assert_has(&self::texts(&rights), "a pods.: create delete list patch watch");
    }
    let more = "  otherNamespaces: ['*']\n";
    let every = rights_of("test.dev/v1/Thing", "[a]", more, &[], false);
    assert!(
        every.warnings[0].contains("includes kube-system"),
        "{:#?}",
        every.warnings
    );
}

#[test]
fn who_makes_roles_and_bindings_is_told_which_verb_or_permissions_the_writer_lacks() {
    let warnings = |kind: &str, more: &str| {
        let children =
            format!("  children: [{{apiVersion: rbac.authorization.k8s.io/v1, kind: {kind}}}]\n{more}");
        let makes = format!("rbac.authorization.k8s.io/v1/{kind}");
        rights_of("test.dev/v1/Realm", "[]", &children, &[&makes], false)
            .warnings
            .join("\n")
    };
    for (kind, resources, verb) in [
        ("Role", "roles", "escalate"),
        ("ClusterRole", "clusterroles", "escalate"),
        ("RoleBinding", "roles, clusterroles", "bind"),
        ("ClusterRoleBinding", "clusterroles", "bind"),
    ] {
        let rule = format!("resources: [{resources}], verbs: [{verb}]");
        let told = warnings(kind, "");
        assert!(
            told.contains(&rule) && told.contains("that the host does not have"),
            "{told}"
        );
        let told = warnings(kind, "  serviceAccount: a/b\n");
        assert!(told.contains("that the account a/b does not have"), "{told}");
    }
}

#[test]
fn secrets_need_delete_when_either_the_plain_or_the_generated_ones_are_deleted() {
    let delete = |removal: &str| {
        let children = format!("  children: [{{apiVersion: v1, kind: Secret{removal}}}]\n");
        let rights = rights_of("test.dev/v1/Thing", "[]", &children, &["v1/Secret"], false);
        rights
            .iter()
            .any(|permission| permission.resource == "secrets" && permission.verb == "delete")
    };
    assert!(delete(""));
    assert!(delete(", onRemoval: delete"));
    assert!(!delete(", onRemoval: retain"));
}

#[test]
fn what_the_plugin_does_not_make_is_watched_and_never_written_and_a_remark_reports_it() {
    let children = "  children: [{apiVersion: v1, kind: Pod}, {apiVersion: v1, kind: Node}]\n";
    let makes = ["v1/Node", "v1/Service"];
    let rights = rights_of("test.dev/v1/Thing", "[]", children, &makes, false);
    let texts = texts(&rights);
    assert_has(&texts, "* pods.: list watch");
    assert_has(&texts, "* nodes.: list watch");
    let remarks = rights.remarks.join("\n");
    for words in ["does not create", "cluster-scoped", "v1/Service"] {
        assert!(remarks.contains(words), "{words:?} is not in: {remarks}");
    }
}

#[test]
fn a_kind_that_nobody_knows_is_named() {
    let mut config = Config::parse(Path::new("/c"), "controllers: []").unwrap();
    assert_eq!(
        texts(&rights(&config, &host(), &[], &resources()).unwrap()),
        [
            "* customresourcedefinitions.apiextensions.k8s.io: list watch",
            "* namespaces.: list watch"
        ]
    );
    let other = format!(
        "controllers: [{{name: c, plugin: {}/Cargo.toml, parent: {{apiVersion: other.dev/v1, kind: Other}}}}]",
        env!("CARGO_MANIFEST_DIR")
    );
    config = Config::parse(Path::new("/c"), &other).unwrap();
    let description = describing("c", "1", kind("other.dev/v1/Other"));
    let error = rights(&config, &host(), &[description], &resources()).unwrap_err();
    assert_eq!(error.0, kind("other.dev/v1/Other"));
}

#[test]
fn a_controller_with_a_service_account_needs_only_impersonate() {
    let children = "  serviceAccount: shop/writer\n  children: [{apiVersion: v1, kind: Pod}]\n";
    let rights = rights_of("test.dev/v1/Thing", "[a]", children, &["v1/Pod"], false);
    let texts = texts(&rights);
    for expected in [
        "a pods.: list watch",
        "shop serviceaccounts. writer: impersonate",
        "shop/writer: a pods.: create delete patch",
    ] {
        assert_has(&texts, expected);
    }
    let grants = manifests::grants(&rights, &host());
    let roles: Vec<_> = grants.iter().map(|grant| grant.manifests()[0].clone()).collect();
    let roles = roles.iter().filter(|role| role["kind"] == "Role");
    let names: Vec<_> = roles.map(|role| &role["metadata"]["name"]).collect();
    assert_eq!(names, ["host", "host", "host:shop:writer"]);
}

#[test]
fn the_lease_is_in_the_hosts_namespace_and_only_its_creation_is_not_by_name() {
    let with = |mode: &str| {
        let text = format!("leadership: {mode}\ncontrollers: []");
        let config = Config::parse(Path::new("/c"), &text).unwrap();
        texts(&rights(&config, &host(), &[], &resources()).unwrap())
    };
    let definitions = "* customresourcedefinitions.apiextensions.k8s.io: list watch";
    let namespaces = "* namespaces.: list watch";
    assert_eq!(with("none"), [definitions, namespaces]);
    assert_eq!(
        with("single"),
        [
            definitions,
            namespaces,
            "system events.events.k8s.io: create patch",
            "system leases.coordination.k8s.io: create",
            "system leases.coordination.k8s.io operator-host: get update",
        ]
    );
}

#[test]
fn what_gives_power_over_others_is_warned_of_with_what_it_amounts_to() {
    let children = "  children:\n  - {apiVersion: v1, kind: Pod}\n  - {apiVersion: v1, kind: ConfigMap}\n  \
                    - {apiVersion: rbac.authorization.k8s.io/v1, kind: Role}\n  - {apiVersion: v1, kind: Secret}\n";
    let makes = [
        "v1/Pod",
        "v1/ConfigMap",
        "rbac.authorization.k8s.io/v1/Role",
        "v1/Secret",
    ];
    let warnings = rights_of("test.dev/v1/Thing", "[]", children, &makes, false).warnings;
    let assert_warning = |kind: &str, words: &str| {
        let found = warnings
            .iter()
            .any(|warning| warning.contains(kind) && warning.contains(words));
        assert!(found, "no warning about {kind} contains {words:?}: {warnings:#?}");
    };
    assert_warning(
        "c: the plugin creates v1/Pod",
        "with any ServiceAccount and any Secret of their namespace",
    );
    assert_warning("v1/Secret", "`serviceAccountTokens`");
    assert_warning("v1/Role", "grants permissions to others");
    assert_warning("refuses a Role", "resources: [roles], verbs: [escalate]");
    assert_eq!(warnings.len(), 4, "{warnings:#?}");
}

#[test]
fn ceilings_need_what_they_allow_a_controller_of_the_cluster() {
    let text = "controllers: []\nnamespaces: [a]\nceilings:\n- parents: [{apiGroups: [test.dev], kinds: [Thing]}]\n  \
                children: [{apiGroups: [''], kinds: [ConfigMap]}, {apiGroups: ['*.dev'], kinds: ['*']}]\n  \
                otherNamespaces: [b]\n- configMaps: [plugins]\n";
    let config = Config::parse(Path::new("/config.yaml"), text).unwrap();
    let rights = rights(&config, &host(), &[], &resources()).unwrap();
    let lines = texts(&rights);
    for expected in [
        "* controllers.operator-host.dev: list patch watch",
        "* controllers/status.operator-host.dev: patch",
        "system configmaps.: list watch",
        "plugins configmaps.: list watch",
        "* things.test.dev: list patch watch",
        "* things/status.test.dev: patch",
        "b configmaps.: create delete list patch watch",
        "b *.*: create delete list patch watch",
        "a things/finalizers.test.dev: update",
    ] {
        assert_has(&lines, expected);
    }
    assert_eq!(rights.warnings.len(), 2, "{:?}", rights.warnings);
    // A wildcard of verbs for resources has no other verb for their finalizers.
    let all = text.replace("kinds: [Thing]", "kinds: ['*']");
    let config = Config::parse(Path::new("/config.yaml"), &all).unwrap();
    let lines = texts(&super::rights(&config, &host(), &[], &resources()).unwrap());
    assert_has(&lines, "a */finalizers.test.dev: update");
    let unknown = text.replace("kinds: [Thing]", "kinds: [Other]");
    let config = Config::parse(Path::new("/config.yaml"), &unknown).unwrap();
    let error = super::rights(&config, &host(), &[], &resources()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the plural of test.dev/Other is not known: give "),
        "{error}"
    );
}

/// Regression: the host could write the children of all, and act as every account.
#[test]
fn where_accounts_write_the_children_the_host_may_only_act_as_them() {
    let text = "controllers: []\nceilings:\n- parents: [{apiGroups: [test.dev], kinds: [Thing]}]\n  \
                children: [{apiGroups: [''], kinds: [ConfigMap]}]\n  serviceAccounts: [a/writer, 'team-c/*']\n";
    let config = Config::parse(Path::new("/config.yaml"), text).unwrap();
    let rights = rights(&config, &host(), &[], &resources()).unwrap();
    let lines = texts(&rights);
    for expected in [
        "* configmaps.: list watch",
        "* things.test.dev: list patch watch",
        "a serviceaccounts. writer: impersonate",
        "team-c serviceaccounts.: impersonate",
    ] {
        assert_has(&lines, expected);
    }
    assert!(
        !lines.iter().any(|line| line.contains("things/finalizers")),
        "{lines:#?}"
    );
    assert_eq!(rights.warnings.len(), 1, "{:#?}", rights.warnings);
    assert!(
        rights.warnings[0].ends_with("every ServiceAccount of team-c"),
        "{:#?}",
        rights.warnings
    );
    let every = text.replace("team-c/*", "team-*/op");
    let config = Config::parse(Path::new("/config.yaml"), &every).unwrap();
    let rights = super::rights(&config, &host(), &[], &resources()).unwrap();
    assert_has(&texts(&rights), "* serviceaccounts.: impersonate");
    let every = "`ceilings[0].serviceAccounts` has the pattern \"team-*/op\"";
    assert!(rights.warnings[0].starts_with(every), "{:#?}", rights.warnings);
}

#[test]
fn ceilings_are_warned_of_as_the_entries_of_the_file_are() {
    let of = |more: &str| {
        let text = format!("controllers: []\nceilings:\n- {more}\n");
        let config = Config::parse(Path::new("/config.yaml"), &text).unwrap();
        rights(&config, &host(), &[], &resources()).unwrap()
    };
    for (more, expected) in [
        (
            "children: [{apiGroups: ['*'], kinds: ['*']}]",
            "RoleBindings, which grant permissions",
        ),
        (
            "children: [{apiGroups: [apps], kinds: ['*']}]",
            "has all kinds of \"apps\"",
        ),
        (
            "children: [{apiGroups: [''], kinds: [Pod]}]",
            "`ceilings[0]`: a plugin may create v1/Pod: its pods run any image",
        ),
        (
            "children: [{apiGroups: [''], kinds: [Secret]}]",
            "`serviceAccountTokens`",
        ),
        (
            "children: [{apiGroups: [rbac.authorization.k8s.io], kinds: [RoleBinding]}]",
            "with permissions that the host does not have",
        ),
        ("otherNamespaces: ['*']", "includes kube-system"),
        (
            "otherNamespaces: ['sys*']",
            "includes the host's own namespace, system",
        ),
        (
            "allow: [hostNamespace]",
            "children in system can use the host's ServiceAccount",
        ),
        (
            "definitions: [install]",
            "may create any CustomResourceDefinition",
        ),
        ("configMaps: ['*']", "may read ConfigMaps in every namespace"),
    ] {
        let warnings = of(more).warnings;
        assert!(
            warnings.iter().any(|it| it.contains(expected)),
            "{more}: {warnings:#?}"
        );
    }
    let harmless = "children: [{apiGroups: [''], kinds: [ConfigMap]}, {apiGroups: [test.dev], kinds: ['*']}]";
    assert!(of(harmless).warnings.is_empty(), "{:#?}", of(harmless).warnings);
    // A plugin that makes Secrets may have the host generate them.
    let secrets = of("children: [{apiGroups: [''], kinds: [Secret]}]");
    assert_has(&texts(&secrets), &format!("system secrets. {KEY_SECRET}: get"));
}
