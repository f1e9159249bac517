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

/// Returns what a configuration without controllers needs.
fn of(text: &str) -> Result<Rights, UnknownKind> {
    let config = Config::parse(Path::new("/config.yaml"), text).unwrap();
    rights(&config, &host(), &[], &resources())
}

/// Returns what a controller needs for a plugin; `more` contains further lines of the controller.
fn of_plugin(namespaces: &str, more: &str, description: Description) -> Result<Rights, UnknownKind> {
    let parent = &description.parent;
    let text = format!(
        "plugins: /\nnamespaces: {namespaces}\ncontrollers:\n- name: c\n  plugin: {}/Cargo.toml\n  \
         parent: {{apiVersion: {}, kind: {}}}\n{more}",
        // Any existing file: nothing is loaded.
        env!("CARGO_MANIFEST_DIR"),
        parent.api_version,
        parent.kind,
    );
    let config = Config::parse(Path::new("/config.yaml"), &text).unwrap();
    rights(&config, &host(), &[description], &resources())
}

/// `makes` lists the kinds in the plugin's description.
fn rights_of(parent: &str, namespaces: &str, more: &str, makes: &[&str], finalizer: bool) -> Rights {
    let description = Description {
        makes: makes.iter().map(|text| kind(text)).collect(),
        finalizer,
        ..describing("c", "1", kind(parent))
    };
    of_plugin(namespaces, more, description).unwrap()
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
fn assert_has(rights: &Rights, lines: &[&str]) {
    let all = texts(rights);
    for line in lines {
        assert!(all.iter().any(|it| it == line), "{line} is not in {all:#?}");
    }
}

/// Fails unless one warning has all these words.
#[track_caller]
fn assert_warns(rights: &Rights, words: &[&str]) {
    let warnings = &rights.warnings;
    let has = |warning: &String| words.iter().all(|it| warning.contains(it));
    assert!(warnings.iter().any(has), "{words:?} in none of {warnings:#?}");
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
    let granted = |definitions: &str| {
        let description = Description {
            crd: Some(json!({ "metadata": { "name": "things.test.dev" } }).into()),
            ..describing("c", "1", kind("test.dev/v1/Thing"))
        };
        of_plugin("[a]", &format!("  definitions: {definitions}\n"), description).unwrap()
    };
    let installs = granted("install");
    let expected = [
        "* customresourcedefinitions.apiextensions.k8s.io: create list watch",
        "* customresourcedefinitions.apiextensions.k8s.io things.test.dev: patch",
        "* things.test.dev: list",
    ];
    assert_has(&installs, &expected);
    assert_warns(&installs, &["cannot limit `create` to a name"]);
    let creates = |it: &Permission| it.verb == "create" && it.resource == "customresourcedefinitions";
    assert!(!granted("check").iter().any(creates));
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
        let pods = "* pods.: create delete list patch watch";
        assert_has(&rights, &[pods]);
        let texts = texts(&rights);
        assert!(!texts.iter().any(|line| line.starts_with("b ")), "{texts:#?}");
        assert_warns(&rights, &["may write v1/Pod in every namespace", warning]);
        // A parent in a namespace has no children elsewhere.
        let rights = rights_of("test.dev/v1/Thing", "[a]", &children, makes, false);
        assert_has(&rights, &["a pods.: create delete list patch watch"]);
    }
    let more = "  otherNamespaces: ['*']\n";
    let every = rights_of("test.dev/v1/Thing", "[a]", more, &[], false);
    assert_warns(&every, &["includes kube-system"]);
}

#[test]
fn who_makes_roles_and_bindings_is_told_which_verb_or_permissions_the_writer_lacks() {
    let of = |kind: &str, more: &str| {
        let children =
            format!("  children: [{{apiVersion: rbac.authorization.k8s.io/v1, kind: {kind}}}]\n{more}");
        let makes = format!("rbac.authorization.k8s.io/v1/{kind}");
        rights_of("test.dev/v1/Realm", "[]", &children, &[&makes], false)
    };
    for (kind, resources, verb) in [
        ("Role", "roles", "escalate"),
        ("ClusterRole", "clusterroles", "escalate"),
        ("RoleBinding", "roles, clusterroles", "bind"),
        ("ClusterRoleBinding", "clusterroles", "bind"),
    ] {
        let rule = format!("resources: [{resources}], verbs: [{verb}]");
        assert_warns(&of(kind, ""), &[&rule, "that the host does not have"]);
        let account = of(kind, "  serviceAccount: a/b\n");
        assert_warns(&account, &["that the account a/b does not have"]);
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
    assert_has(&rights, &["* pods.: list watch", "* nodes.: list watch"]);
    let remarks = rights.remarks.join("\n");
    for words in ["does not create", "cluster-scoped", "v1/Service"] {
        assert!(remarks.contains(words), "{words:?} is not in: {remarks}");
    }
}

#[test]
fn a_kind_that_nobody_knows_is_named() {
    let description = describing("c", "1", kind("other.dev/v1/Other"));
    let error = of_plugin("[]", "", description).unwrap_err();
    assert_eq!(error.0, kind("other.dev/v1/Other"));
}

#[test]
fn a_controller_with_a_service_account_needs_only_impersonate() {
    let children = "  serviceAccount: shop/writer\n  children: [{apiVersion: v1, kind: Pod}]\n";
    let rights = rights_of("test.dev/v1/Thing", "[a]", children, &["v1/Pod"], false);
    let expected = [
        "a pods.: list watch",
        "shop serviceaccounts. writer: impersonate",
        "shop/writer: a pods.: create delete patch",
    ];
    assert_has(&rights, &expected);
    let grants = manifests::grants(&rights, &host());
    let roles: Vec<_> = grants.iter().map(|grant| grant.manifests()[0].clone()).collect();
    let roles = roles.iter().filter(|role| role["kind"] == "Role");
    let names: Vec<_> = roles.map(|role| &role["metadata"]["name"]).collect();
    assert_eq!(names, ["host", "host", "host:shop:writer"]);
}

#[test]
fn the_lease_is_in_the_hosts_namespace_and_only_its_creation_is_not_by_name() {
    let with = |mode: &str| texts(&of(&format!("leadership: {mode}\ncontrollers: []")).unwrap());
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
    let rights = rights_of("test.dev/v1/Thing", "[]", children, &makes, false);
    for words in [
        [
            "c: the plugin creates v1/Pod",
            "with any ServiceAccount and any Secret of their namespace",
        ],
        ["v1/Secret", "`serviceAccountTokens`"],
        ["v1/Role", "grants permissions to others"],
        ["refuses a Role", "resources: [roles], verbs: [escalate]"],
    ] {
        assert_warns(&rights, &words);
    }
    assert_eq!(rights.warnings.len(), 4, "{:#?}", rights.warnings);
}

#[test]
fn ceilings_need_what_they_allow_a_controller_of_the_cluster() {
    let text = "controllers: []\nnamespaces: [a]\nceilings:\n- parents: [{apiGroups: [test.dev], kinds: [Thing]}]\n  \
                children: [{apiGroups: [''], kinds: [ConfigMap]}, {apiGroups: ['*.dev'], kinds: ['*']}]\n  \
                otherNamespaces: [b]\n- configMaps: [plugins]\n";
    let rights = of(text).unwrap();
    let expected = [
        "* controllers.operator-host.dev: list patch watch",
        "* controllers/status.operator-host.dev: patch",
        "system configmaps.: list watch",
        "plugins configmaps.: list watch",
        "* things.test.dev: list patch watch",
        "* things/status.test.dev: patch",
        "b configmaps.: create delete list patch watch",
        "b *.*: create delete list patch watch",
        "a things/finalizers.test.dev: update",
    ];
    assert_has(&rights, &expected);
    assert_eq!(rights.warnings.len(), 2, "{:?}", rights.warnings);
    // A wildcard of verbs for resources has no other verb for their finalizers.
    let all = of(&text.replace("kinds: [Thing]", "kinds: ['*']")).unwrap();
    assert_has(&all, &["a */finalizers.test.dev: update"]);
    let error = of(&text.replace("kinds: [Thing]", "kinds: [Other]")).unwrap_err();
    let expected = "the plural of test.dev/Other is not known: give ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

/// Regression: the host could write the children of all, and act as every account.
#[test]
fn where_accounts_write_the_children_the_host_may_only_act_as_them() {
    let text = "controllers: []\nceilings:\n- parents: [{apiGroups: [test.dev], kinds: [Thing]}]\n  \
                children: [{apiGroups: [''], kinds: [ConfigMap]}]\n  serviceAccounts: [a/writer, 'team-c/*']\n";
    let rights = of(text).unwrap();
    let expected = [
        "* configmaps.: list watch",
        "* things.test.dev: list patch watch",
        "a serviceaccounts. writer: impersonate",
        "team-c serviceaccounts.: impersonate",
    ];
    assert_has(&rights, &expected);
    let lines = texts(&rights);
    assert!(
        !lines.iter().any(|line| line.contains("things/finalizers")),
        "{lines:#?}"
    );
    assert_eq!(rights.warnings.len(), 1, "{:#?}", rights.warnings);
    assert_warns(&rights, &["every ServiceAccount of team-c"]);
    let every = of(&text.replace("team-c/*", "team-*/op")).unwrap();
    assert_has(&every, &["* serviceaccounts.: impersonate"]);
    let pattern = "`ceilings[0].serviceAccounts` has the pattern \"team-*/op\"";
    assert_warns(&every, &[pattern]);
}

#[test]
fn ceilings_are_warned_of_as_the_entries_of_the_file_are() {
    let of = |more: &str| of(&format!("controllers: []\nceilings:\n- {more}\n")).unwrap();
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
        assert_warns(&of(more), &[expected]);
    }
    let harmless = "children: [{apiGroups: [''], kinds: [ConfigMap]}, {apiGroups: [test.dev], kinds: ['*']}]";
    assert!(of(harmless).warnings.is_empty(), "{:#?}", of(harmless).warnings);
    // A plugin that makes Secrets may have the host generate them.
    let secrets = of("children: [{apiGroups: [''], kinds: [Secret]}]");
    assert_has(&secrets, &[&format!("system secrets. {KEY_SECRET}: get")]);
}
