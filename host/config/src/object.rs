//! Controllers as objects of the cluster (`kind: Controller`): their `spec` is an entry of `controllers`, with the orders about
//! versions and what happens when the object is deleted.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ceilings;
use super::raw::RawController;
use super::values::{Text, in_plain_words};
use super::{Config, ControllerConfig};
use operator_host_contract::Kind;
use operator_host_core::digest::Prefix;
use operator_host_core::object::is_namespace;

/// The group of the definition.
pub const GROUP: &str = "operator-host.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// Its kind.
pub const KIND: &str = "Controller";
/// The finalizer of a Controller that runs.
pub const FINALIZER: &str = "operator-host.dev/controller";
/// Its plural.
pub const PLURAL: &str = "controllers";

/// The most entries of a list of a Controller, and bytes of a text.
const MAX_ITEMS: usize = 100;
pub(super) const MAX_LENGTH: usize = 1024;

/// Returns the kind.
pub fn kind() -> Kind {
    Kind::new(format!("{GROUP}/{VERSION}"), KIND)
}

/// What a Controller says besides the entry of `controllers`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawObject {
    /// Orders about versions of the plugin.
    version: RawVersion,
    /// What happens when this object is deleted. Default: resources and their children stay as they are.
    on_removal: Option<OnRemoval>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawVersion {
    /// The beginning of the digest of the only version that may be live.
    #[schemars(regex(pattern = "^(sha256:)?[0-9A-Fa-f]{8,64}$"))]
    pin: Option<Text<Prefix>>,
    /// The beginning of the digest of a version that becomes live whatever its proof shows.
    #[schemars(regex(pattern = "^(sha256:)?[0-9A-Fa-f]{8,64}$"))]
    promote: Option<Text<Prefix>>,
}

/// What happens when a Controller is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnRemoval {
    /// The controller's finalizers are removed from its resources, so that they can be deleted without it.
    ReleaseFinalizers,
}

/// The fields that are not an entry of `controllers`.
const OWN_FIELDS: [&str; 2] = ["version", "onRemoval"];

/// A Controller of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerObject {
    /// The controller; of what decorates, one for each kind.
    pub configs: Vec<ControllerConfig>,
    /// What happens when the object is deleted; `None`: nothing.
    pub on_removal: Option<OnRemoval>,
}

impl Config {
    /// Checks a Controller of the cluster against the ceilings.
    ///
    /// # Errors
    /// Which ceiling does not allow it, for its author.
    pub fn allows(&self, object: &ControllerObject) -> Result<(), String> {
        let Some(ceilings) = &self.ceilings else {
            return Err("the host's configuration has no section `ceilings`".to_owned());
        };
        let (folder, is_signed) = (&self.places.folder, self.keys.is_some());
        let mut configs = object.configs.iter();
        configs.try_for_each(|config| match ceilings::entry_for(ceilings, config) {
            Some((index, entry)) => entry.check(&format!("ceilings[{index}]"), config, folder, is_signed),
            None => Err(format!(
                "no entry of `ceilings` in the host's configuration is for a Controller named {:?} with {}",
                config.name,
                ceilings::source(&config.plugin)
            )),
        })
    }

    /// Completes the ceilings with the host's own namespace. An empty name stands for it, too: a Controller need not name it.
    pub fn is_at(&mut self, home: &str) {
        for entry in self.ceilings.iter_mut().flatten() {
            entry.config_maps = entry.config_maps(home);
            if entry.config_maps.contains(home) {
                entry.config_maps.extend([String::new()]);
            }
        }
    }

    /// Reads a Controller of the cluster. Whether it may run is up to [`Config::allows`].
    ///
    /// # Errors
    /// What is wrong with it, for its author.
    pub fn object(
        &self,
        name: &str,
        uid: &str,
        spec: &Map<String, Value>,
    ) -> Result<ControllerObject, String> {
        let fields_of_spec = spec.clone().into_iter();
        let (own, mut entry): (Map<_, _>, Map<_, _>) =
            fields_of_spec.partition(|(field, _)| OWN_FIELDS.contains(&field.as_str()));
        let named = entry.insert("name".to_owned(), name.into());
        if named.is_some_and(|named| named != name) {
            return Err(format!(
                "`spec.name` must be that of the object, {name:?}: leave it out"
            ));
        }
        let own: RawObject = fields(own)?;
        let raw: RawController = fields(entry)?;
        let configs = raw.validate(&self.places, self.definitions);
        let mut configs = configs.map_err(|(field, message)| format!("`spec.{field}`: {message}"))?;
        for (index, config) in configs.iter_mut().enumerate() {
            if is_namespace(&config.parent) && !self.namespaces.is_empty() {
                return Err(format!(
                    "`spec.decorates[{index}]`: the host watches some namespaces only (`namespaces` in its configuration), so it cannot \
                     decorate Namespaces"
                ));
            }
            config.uid = Some(uid.to_owned());
            config.trust.keys = self.keys.as_ref().map(|keys| keys.of(name));
            config.proving.pin = own.version.pin.as_ref().map(|it| it.0.clone());
            if let Some(promote) = &own.version.promote {
                config.proving.promote = Some(promote.0.clone());
            }
        }
        Ok(ControllerObject {
            configs,
            on_removal: own.on_removal,
        })
    }
}

/// Reads a part of the `spec`. The error names the field.
fn fields<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, String> {
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let message = in_plain_words(&error.inner().to_string());
        match error.path().to_string().as_str() {
            "name" => format!("`metadata.name`: {message}"),
            "." => format!("`spec`: {message}"),
            path => format!("`spec.{path}`: {message}"),
        }
    })
}

/// Returns the JSON Schema of a Controller's `spec`, made of the types that read it.
pub fn spec_schema() -> Schema {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let mut schema = SchemaGenerator::new(settings.clone()).into_root_schema_for::<RawController>();
    let own = SchemaGenerator::new(settings).into_root_schema_for::<RawObject>();
    let own = own.get("properties").and_then(Value::as_object);
    if let (Some(Value::Object(properties)), Some(own)) = (schema.get_mut("properties"), own) {
        properties.extend(own.clone());
    }
    // The object's own name stands for it.
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|field| field != "name");
    }
    let mut schema = schema.to_value();
    bound(&mut schema);
    schema.try_into().unwrap_or_default()
}

/// Bounds every list and text of a schema, so that the API server refuses what nobody writes and each host would have to keep.
fn bound(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let most = match fields.get("type").and_then(Value::as_str) {
                Some("array") => Some(("maxItems", MAX_ITEMS)),
                Some("string") if !fields.contains_key("enum") => Some(("maxLength", MAX_LENGTH)),
                _ => None,
            };
            // The host has them, and an object must not keep those of an earlier host.
            fields.remove("default");
            if let Some((bound, most)) = most {
                fields.entry(bound).or_insert_with(|| most.into());
            }
            fields.values_mut().for_each(self::bound);
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(bound),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::decorates;
    use crate::location::{ConfigMapKey, Location};

    fn host(ceilings: &str) -> Config {
        let text = format!("plugins: /plugins\nceilings: [{ceilings}]\n");
        let mut config = Config::parse(Path::new("/etc/config.yaml"), &text).unwrap();
        config.is_at("home");
        config
    }

    fn read(host: &Config, spec: &Map<String, Value>) -> Result<ControllerObject, String> {
        let object = host.object("echo", "uid", spec)?;
        host.allows(&object)?;
        Ok(object)
    }

    const CEILINGS: &str = "{parents: [{apiGroups: ['*.dev'], kinds: ['*']}], children: [{apiGroups: [''], kinds: [Pod]}], \
                            otherNamespaces: ['team-*'], configMaps: [home, plugins], registries: ['r/team/*'], files: true}";

    /// An Echo, with other fields.
    fn spec(other: &Value) -> Map<String, Value> {
        let mut spec = json!({
            "parent": {"apiVersion": "my.dev/v1", "kind": "Echo"},
            "plugin": {"configMap": {"name": "echo-plugin"}},
            "children": [{"apiVersion": "v1", "kind": "Pod"}],
        });
        let fields = spec.as_object_mut().unwrap();
        fields.extend(other.as_object().unwrap().clone());
        fields.clone()
    }

    /// Returns the lines of a table: fields in YAML, and what is said about them.
    fn cases(table: &str) -> Vec<(Value, &str)> {
        let case = |line| {
            let (fields, says) = str::split_once(line, " -> ").unwrap();
            (serde_saphyr::from_str(fields).unwrap(), says)
        };
        table.trim().lines().map(case).collect()
    }

    #[test]
    fn an_object_is_an_entry_with_orders() {
        let other = json!({
            "version": {"pin": "0123456789", "promote": "sha256:9876543210"},
            "onRemoval": "releaseFinalizers",
            "concurrency": 3,
            "otherNamespaces": ["team-a-*"],
        });
        let object = read(&host(CEILINGS), &spec(&other)).unwrap();
        assert_eq!(object.on_removal, Some(OnRemoval::ReleaseFinalizers));
        let config = object.configs[0].clone();
        assert_eq!(config.uid.as_deref(), Some("uid"));
        assert_eq!((config.name.as_str(), config.concurrency), ("echo", 3));
        let key = ConfigMapKey {
            namespace: None,
            name: "echo-plugin".into(),
            key: "echo.wasm".into(),
        };
        assert_eq!(config.plugin, Location::ConfigMap(key));
        assert_eq!(config.proving.pin, Prefix::parse("0123456789").ok());
        assert_eq!(config.proving.promote, Prefix::parse("9876543210").ok());
    }

    #[test]
    fn what_the_ceilings_do_not_allow_is_refused_with_the_ceiling() {
        let cases = cases(
            r#"
            {parent: {apiVersion: a.com/v1, kind: A}} -> ceilings[0].parents
            {children: [{apiVersion: v1, kind: Secret}]} -> the child kind v1/Secret is not allowed by `ceilings[0].children`
            {reads: [{apiVersion: v1, kind: Secret}]} -> ceilings[0].reads
            {otherNamespaces: ['*']} -> ceilings[0].otherNamespaces
            {otherNamespaces: [kube-system]} -> ceilings[0].otherNamespaces
            {plugin: {configMap: {name: a, namespace: default}}} -> named "echo" with a plugin in a ConfigMap of the namespace "default" (`configMaps`)
            {plugin: 'oci://r/other/echo:1'} -> the plugin's repository r/other/echo (`registries`)
            {plugin: ../etc/echo.wasm} -> must be in the folder of plugins
            {plugin: /etc/echo.wasm} -> must be in the folder of plugins
            {serviceAccount: a/b} -> ceilings[0].serviceAccounts
            {adopt: true} -> ceilings[0].adopt
            {allow: [hostNamespace]} -> ceilings[0].allow
            {definitions: install} -> ceilings[0].definitions
            {limits: {memory: 65Mi}} -> `limits.memory` is 65Mi; `ceilings[0].limits.memory` of the host's configuration allows at most 64Mi
            {limits: {deadline: 6s}} -> at most 5s
            {concurrency: 9} -> ceilings[0].concurrency
            {writes: {qps: 501}} -> ceilings[0].writes.qps
            {resync: 1s} -> at least 10s
            {name: other} -> must be that of the object
            {version: {pin: latest}} -> spec.version.pin
            {colour: red} -> unknown field
            {plugin: {configmap: {name: a}}} -> unknown field `configmap`
            {plugin: {configMap: {name: a, key: ../b}}} -> cannot be a key
            {parent: {apiVersion: apps/v1, kind: Deployment}} -> must be a custom resource
            "#,
        );
        let host = host(CEILINGS);
        for (other, expected) in cases {
            let error = read(&host, &spec(&other)).unwrap_err();
            assert!(error.contains(expected), "{other}: {error}");
        }
        for allowed in ["echo.wasm", "oci://r/team/echo:1"] {
            read(&host, &spec(&json!({ "plugin": allowed }))).unwrap();
        }
    }

    /// A Controller that decorates Deployments, with other fields.
    fn decorating(other: &Value) -> Map<String, Value> {
        let decorates = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "selector": "a=b"}]);
        let mut spec = spec(&json!({ "decorates": decorates }));
        spec.remove("parent");
        spec.extend(other.as_object().unwrap().clone());
        spec
    }

    #[test]
    fn a_controller_decorates_only_with_a_selector_and_what_the_ceilings_name() {
        let ceilings =
            "{parents: [{apiGroups: ['*'], kinds: ['*']}], children: [{apiGroups: [''], kinds: [Pod]}]";
        let all = "decorates: [{apiGroups: ['*'], kinds: ['*']}]";
        let allowed = host(&format!("{ceilings}, {all}}}"));
        let config = read(&allowed, &decorating(&json!({}))).unwrap().configs.remove(0);
        let labels = |text: &str| match text.split_once('=') {
            Some((key, value)) => std::collections::BTreeMap::from([(key.to_owned(), value.to_owned())]),
            None => Default::default(),
        };
        assert!(config.selects(&labels("a=b")));
        assert!(!config.selects(&labels("a=c")) && !config.selects(&labels("")));
        let mut made = labels("a=b");
        made.extend(labels("operator-host.dev/controller=echo"));
        assert!(!config.selects(&made), "a controller's child is decorated");
        assert_eq!(config.definitions, crate::DefinitionsMode::Ignore);
        let error = read(&host(&format!("{ceilings}}}")), &decorating(&json!({}))).unwrap_err();
        assert!(error.contains("`ceilings[0].decorates`"), "{error}");

        let of = |api_version: &str, kind: &str, selector: &str| json!({"apiVersion": api_version, "kind": kind, "selector": selector});
        // Three parts: the API version, the kind and the selector.
        let table = "
            apps/v1 Deployment  -> `spec.decorates[0].selector`: an empty selector
            apps/v1 Deployment   -> an empty selector
            apps/v1 Deployment a in b -> is not a label selector
            v1 Secret a -> v1/Secret cannot be decorated
            v1 Event a -> v1/Event cannot be decorated
            events.k8s.io/v1 Event a -> cannot be decorated
            coordination.k8s.io/v1 Lease a -> cannot be decorated
            authentication.k8s.io/v1 TokenReview a -> are not stored
            operator-host.dev/v1alpha1 Controller a -> a kind of the host itself
            v1 PodList a -> is a list and no object
            apps Deployment a -> is not a kind
            v1 Pod a -> v1/Pod is the kind that it decorates";
        let one = table.trim().lines().map(|line| {
            let (what, says) = line.trim_start().split_once(" -> ").unwrap();
            let parts: Vec<_> = what.splitn(3, ' ').collect();
            (json!({"decorates": [of(parts[0], parts[1], parts[2])]}), says)
        });
        let several = |kinds: &[&str]| {
            let each = kinds.iter().map(|kind| of("v1", kind, "a"));
            json!({"decorates": each.collect::<Vec<_>>()})
        };
        let long = "K".repeat(59);
        let at_most_8 = "`spec.decorates`: a Controller decorates at most 8 kinds";
        let parent = json!({"parent": {"apiVersion": "a.dev/v1", "kind": "A"}});
        for (other, expected) in one.chain([
            (several(&["Node", "Pod"]), "v1/Pod is the kind that it decorates"),
            (
                several(&["Node", "Secret"]),
                "`spec.decorates[1].kind`: v1/Secret cannot",
            ),
            (
                several(&["Node", "Node"]),
                "`spec.decorates[1]`: v1/Node is listed twice",
            ),
            (several(&["A"; 9]), at_most_8),
            (several(&["Node", &long]), "`spec.decorates[1].kind`: \"echo.kkkk"),
            (json!({"decorates": []}), "`spec.parent`: name the kind"),
            (parent, "leave one out"),
            (json!({"definitions": "check"}), "`spec.definitions`"),
        ]) {
            let error = read(&allowed, &decorating(&other)).unwrap_err();
            assert!(error.contains(expected), "{other}: {error}");
        }
        let own = spec(&json!({"watchStatus": true}));
        let error = read(&allowed, &own).unwrap_err();
        assert!(error.contains("`spec.watchStatus`"), "{error}");
    }

    #[test]
    fn a_controller_that_decorates_several_kinds_is_one_for_each() {
        let ceilings = "{decorates: [{apiGroups: ['*'], kinds: ['*']}]}";
        let of = |api_version: &str, kind: &str, selector: &str| json!({"apiVersion": api_version, "kind": kind, "selector": selector});
        let kinds = json!([of("apps/v1", "Deployment", "a"), of("v1", "Service", "b")]);
        let spec = decorating(&json!({"decorates": kinds, "children": []}));
        let configs = read(&host(ceilings), &spec).unwrap().configs;
        let mut expected = [("echo", "Deployment.apps"), ("echo.service", "Service")].into_iter();
        for config in &configs {
            let kind = decorates::named(&config.parent);
            assert_eq!(Some((&*config.id, &*kind)), expected.next());
            assert_eq!(config.name, "echo");
            assert_eq!(config.field_manager(), "operator-host/echo");
        }
        assert_eq!(expected.next(), None);
    }

    #[test]
    fn namespaces_are_decorated_only_by_a_host_that_watches_all() {
        let of = |namespaces: &str| {
            let text = format!(
                "namespaces: {namespaces}\nceilings: [{{decorates: [{{apiGroups: [''], kinds: [Namespace]}}], children: [{{apiGroups: [''], kinds: [Pod]}}]}}]\n"
            );
            let mut config = Config::parse(Path::new("/etc/config.yaml"), &text).unwrap();
            config.is_at("home");
            let namespaces =
                json!({"decorates": [{"apiVersion": "v1", "kind": "Namespace", "selector": "a"}]});
            read(&config, &decorating(&namespaces))
        };
        let config = of("[]").unwrap().configs.remove(0);
        assert_eq!(config.scope().home("team", None), Some("team"));
        assert!(of("[team]").unwrap_err().contains("some namespaces only"));
    }

    /// Returns the lists and texts of a schema without a bound.
    fn unbounded(schema: &Value) -> Vec<&Value> {
        let bound = match schema["type"].as_str() {
            Some("array") => "maxItems",
            Some("string") if schema["enum"].is_null() => "maxLength",
            _ => "type",
        };
        let own = (schema.is_object() && schema[bound].is_null() && bound != "type").then_some(schema);
        let parts: Vec<&Value> = match schema {
            Value::Object(fields) => fields.values().collect(),
            Value::Array(schemas) => schemas.iter().collect(),
            _ => Vec::new(),
        };
        let within = parts.into_iter().flat_map(unbounded);
        own.into_iter().chain(within).collect()
    }

    #[test]
    fn every_list_and_text_of_the_schema_has_a_bound() {
        let schema = spec_schema().to_value();
        assert_eq!(schema["properties"]["children"]["maxItems"], 100);
        assert_eq!(unbounded(&schema), Vec::<&Value>::new());
        // The schema has no type for this one.
        let error = read(&host(CEILINGS), &spec(&json!({"plugin": "a".repeat(1025)}))).unwrap_err();
        assert_eq!(error, "`spec.plugin`: it has more than 1024 bytes");
    }

    /// Regression: 20,000 kinds were compared with each other.
    #[test]
    fn ten_times_the_children_take_about_ten_times_the_time() {
        let time = |count: usize| {
            let children = (0..count).map(|number| json!({"apiVersion": "v1", "kind": format!("K{number}")}));
            let spec = spec(&json!({"children": children.collect::<Vec<_>>()}));
            let start = std::time::Instant::now();
            host(CEILINGS).object("echo", "u", &spec).unwrap();
            start.elapsed()
        };
        let (few, many) = (time(2_000), time(20_000));
        assert!(many < 40 * few, "{few:?}, {many:?}");
    }

    #[test]
    fn the_name_and_the_place_of_the_plugin_decide_which_entry_a_controller_has() {
        let host = host(
            "{names: ['a-*'], configMaps: [team-a], parents: [{apiGroups: [a.dev], kinds: ['*']}], adopt: true}, \
             {configMaps: [team-b], parents: [{apiGroups: [b.dev], kinds: ['*']}], serviceAccounts: [team-b/op]}, \
             {parents: [{apiGroups: [own.dev], kinds: ['*']}]}",
        );
        let check = |name: &str, namespace: Value, group: &str, more: Value| {
            let mut spec = json!({
                "parent": {"apiVersion": format!("{group}/v1"), "kind": "Thing"},
                "plugin": {"configMap": {"name": "p", "namespace": namespace}},
            });
            let fields = spec.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            host.allows(&host.object(name, "uid", spec.as_object().unwrap())?)
        };
        let (none, account) = (json!({}), json!({"serviceAccount": "team-b/op"}));
        check("a-1", json!("team-a"), "a.dev", json!({"adopt": true})).unwrap();
        check("b-1", json!("team-b"), "b.dev", account.clone()).unwrap();
        check("own", json!(null), "own.dev", none.clone()).unwrap();
        check("own", json!("home"), "own.dev", none.clone()).unwrap();
        for (name, namespace, group, more, expected) in [
            ("a-1", "team-a", "b.dev", &none, "ceilings[0].parents"),
            ("a-1", "team-b", "a.dev", &account, "ceilings[1].parents"),
            ("a-1", "team-a", "a.dev", &account, "ceilings[0].serviceAccounts"),
            ("b-1", "team-b", "b.dev", &none, "`ceilings[1].serviceAccounts`"),
            ("b-1", "team-a", "a.dev", &none, "no entry of `ceilings`"),
            ("own", "elsewhere", "own.dev", &none, "namespace \"elsewhere\""),
            ("own", "home", "a.dev", &none, "ceilings[2].parents"),
        ] {
            let error = check(name, json!(namespace), group, more.clone()).unwrap_err();
            assert!(error.contains(expected), "{name} {group}: {error}");
        }
    }

    #[test]
    fn the_hosts_own_kinds_and_what_is_no_object_are_neither_parents_nor_children() {
        let all =
            "{parents: [{apiGroups: ['*'], kinds: ['*']}], children: [{apiGroups: ['*'], kinds: ['*']}]}";
        let host = host(all);
        for (kind, expected) in cases(
            "
            {apiVersion: operator-host.dev/v1alpha1, kind: Controller} -> a kind of the host itself
            {apiVersion: operator-host.dev/v2, kind: External} -> a kind of the host itself
            {apiVersion: autoscaling/v1, kind: Scale} -> a part of other objects
            {apiVersion: v1, kind: List} -> a list and no object
            {apiVersion: v1, kind: ConfigMapList} -> a list and no object
            {apiVersion: apps/v1, kind: DeploymentList} -> a list and no object",
        ) {
            for (field, spec) in [
                ("children[0]", spec(&json!({"children": [kind]}))),
                ("parent", spec(&json!({"parent": kind}))),
            ] {
                let error = read(&host, &spec).unwrap_err();
                assert!(error.starts_with(&format!("`spec.{field}`: ")), "{error}");
                assert!(error.contains(expected), "{error}");
            }
        }
        let kind = json!({"apiVersion": "operator-host.dev/v1alpha1", "kind": "External"});
        read(&host, &spec(&json!({"children": [kind]}))).unwrap();
        let error = read(&host, &spec(&json!({"parent": kind}))).unwrap_err();
        assert!(error.contains("a kind of the host itself"), "{error}");
        // Such names are free in the groups of others.
        for kind in ["AllowList", "Scale", "ConfigMapList"] {
            let kind = json!({"apiVersion": "test.operator-host.dev/v1", "kind": kind});
            read(&host, &spec(&json!({"parent": kind, "children": [kind]}))).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field() {
        let cases = cases(
            r#"
            {resync: soon} -> `spec.resync`: "soon" is not a duration
            {children: [{apiVersion: v1, kind: Pod, onRemoval: retain}, {apiVersion: v1, kind: pod}]} -> `spec.children[1]`: "pod" of "v1" is not a kind
            {proving: {stages: [{objects: 1}, {percent: 900}]}} -> `spec.proving.stages[1]`: the `percent` of a stage must be from 1 to 100, not 900
            {proving: {stages: [{wait: 1m}]}} -> `spec.proving.stages[0]`: a stage has one of
            {otherNamespaces: [], limits: {memory: 1 GB}} -> `spec.limits.memory`: "1 GB" is not a size
            {limits: {children: -1}} -> `spec.limits.children`: invalid value: integer `-1`, expected a whole number
            {backoff: {initial: 5}} -> `spec.backoff.initial`:
            {backoff: {initial: 2s, max: 1s}} -> `spec.backoff.initial`:
            {children: [{apiVersion: v1, kind: Pod}, {apiVersion: v1, kind: Pod}]} -> `spec.children[1]`: v1/Pod is listed twice
            {children: [{apiVersion: apps, kind: Deployment}]} -> `spec.children[0]`: "Deployment" of "apps" is not a kind
            {version: {pinn: a}} -> `spec.version.pinn`: unknown field
            {onRemoval: leave} -> `spec.onRemoval`: unknown variant `leave`
            {plugin: {configMap: {name: a, kye: b}}} -> `spec.plugin.configMap.kye`: unknown field `kye`
            {plugin: {configMap: {}}} -> `spec.plugin.configMap`: missing field `name`
            {plugin: 5} -> `spec.plugin`: invalid type: integer `5`, expected the path of a file
            "#,
        );
        for (other, expected) in cases {
            let error = host(CEILINGS).object("echo", "uid", &spec(&other)).unwrap_err();
            assert!(error.starts_with(expected), "{other}: {error}");
        }
        let named = host(CEILINGS).object("a.b", "uid", &spec(&json!({})));
        let error = named.unwrap_err();
        assert!(error.starts_with("`metadata.name`: "), "{error}");
    }

    #[test]
    fn without_an_entry_nothing_is_allowed() {
        let error = read(&host("{}"), &spec(&json!({}))).unwrap_err();
        assert!(error.contains("ceilings[0].parents"), "{error}");
        let signed = CEILINGS.replace("files: true", "signed: true, serviceAccounts: ['a/*']");
        let error = read(&host(&signed), &spec(&json!({}))).unwrap_err();
        assert!(error.contains("--signature-keys"), "{error}");
        let accounts = CEILINGS.replace("files: true", "serviceAccounts: ['a/*']");
        let error = read(&host(&accounts), &spec(&json!({}))).unwrap_err();
        assert!(error.contains("demands a `serviceAccount`"), "{error}");
        read(&host(&accounts), &spec(&json!({"serviceAccount": "a/b"}))).unwrap();
    }
}
