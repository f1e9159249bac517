//! The host installs the definitions that its plugins contain, when nothing is lost by it.

use crate::support::prelude::*;
use k8s_openapi::ByteString;
use plugin_fixtures::{Fixture, Form, cases};

use super::DEFINITION;
use crate::access::rights::roles;
use crate::telemetry::{get, until_ready_is_without, until_ready_says};
use crate::webhook::{Authority, certified};

const FILE: &str = "shop.wasm";

/// A kind of its own, with a plugin that can be swapped.
struct Shops<'a> {
    scenario: &'a Scenario,
    mount: Mount,
}

impl<'a> Shops<'a> {
    /// Begins with version 1.0.0, whose objects have the field `spec.a`.
    fn new(scenario: &'a Scenario) -> Self {
        let path = scenario.folder.path().join("mount");
        let first = plugin(scenario, "1.0.0", &["a"]);
        Self {
            scenario,
            mount: Mount::new(&path, FILE, &first),
        }
    }

    fn put(&mut self, version: &str, fields: &[&str]) {
        self.mount.put(FILE, &plugin(self.scenario, version, fields));
    }

    fn controller(&self, definitions: &str) -> String {
        format!(
            "- name: shop\n  parent: {{apiVersion: {}/v1, kind: Shop}}\n  plugin: {}\n  children: [{{apiVersion: v1, kind: \
             ConfigMap}}]\n  definitions: {definitions}\n",
            group(self.scenario),
            self.mount.path.join(FILE).display()
        )
    }

    fn config(&self, definitions: &str) -> PathBuf {
        self.scenario.config(&self.controller(definitions))
    }

    async fn start(&self) -> Host {
        let host = self.scenario.start_with(&self.config("install"), &[]);
        host.until_log("controller started").await;
        host
    }

    async fn definition(&self) -> Option<DynamicObject> {
        self.scenario.get(DEFINITION, &name(self.scenario)).await
    }

    /// Waits until the definition satisfies `condition`.
    async fn until(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let value = |definition: &DynamicObject| serde_json::to_value(definition).unwrap();
        let holds = |definition: &DynamicObject| condition(&value(definition));
        let name = name(self.scenario);
        value(&self.scenario.until(DEFINITION, &name, what, holds).await)
    }

    async fn until_fields(&self, fields: &[&str]) -> Value {
        self.until("fields", |definition| fields_of(definition) == fields)
            .await
    }

    /// Changes the definition as a user does.
    async fn edit(&self, manager: &str, patch: Value) {
        let params = PatchParams::apply(manager);
        let name = name(self.scenario);
        let edited = definitions(self.scenario)
            .patch(&name, &params, &Patch::Merge(patch))
            .await;
        edited.expect("edited");
    }

    /// Creates a shop, or replaces its spec.
    async fn shop(&self, name: &str, spec: Value) -> DynamicObject {
        let shop = json!({
            "apiVersion": format!("{}/v1", group(self.scenario)), "kind": "Shop",
            "metadata": { "name": name, "namespace": self.scenario.namespace }, "spec": spec,
        });
        self.scenario.apply(&shop.to_string()).await
    }

    fn kind(&self) -> String {
        format!("{}/v1/Shop", group(self.scenario))
    }

    async fn until_ready(&self, name: &str) {
        let is_ready = |shop: &DynamicObject| is_true(shop, "Ready");
        self.scenario.until(&self.kind(), name, "Ready", is_ready).await;
    }

    async fn spec(&self, name: &str) -> Value {
        self.scenario.get(&self.kind(), name).await.unwrap().data["spec"].clone()
    }
}

fn group(scenario: &Scenario) -> String {
    format!("{}.test.dev", scenario.namespace)
}

fn name(scenario: &Scenario) -> String {
    format!("shops.{}", group(scenario))
}

fn definitions(scenario: &Scenario) -> Api<DynamicObject> {
    scenario.api(DEFINITION)
}

fn version(version: &str, fields: &[&str], stored: bool) -> Value {
    let fields: serde_json::Map<_, _> = fields
        .iter()
        .map(|field| ((*field).to_owned(), json!({ "type": "string" })))
        .collect();
    json!({
        "name": version, "served": true, "storage": stored, "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": { "type": "object", "properties": {
            "spec": { "type": "object", "properties": fields },
            "status": { "type": "object", "properties": {
                "observedGeneration": { "type": "integer" },
                "conditions": { "type": "array", "items": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } },
            } },
        } } },
    })
}

fn definition(scenario: &Scenario, versions: &[Value]) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": name(scenario) },
        "spec": {
            "group": group(scenario), "scope": "Namespaced", "versions": versions,
            "names": { "plural": "shops", "singular": "shop", "kind": "Shop" },
        },
    })
}

fn fixture(scenario: &Scenario, version: &str) -> Fixture {
    let parent = format!("{}/v1", group(scenario));
    Fixture::new(cases::ANSWER)
        .parent(&parent, "Shop")
        .plugin_version(version)
}

/// Returns a version of the plugin for objects with these fields.
fn plugin(scenario: &Scenario, number: &str, fields: &[&str]) -> Vec<u8> {
    with_versions(scenario, number, &[version("v1", fields, true)])
}

fn with_versions(scenario: &Scenario, number: &str, versions: &[Value]) -> Vec<u8> {
    let definition = definition(scenario, versions).to_string();
    fixture(scenario, number)
        .definition(&definition)
        .build(Form::Command)
}

fn fields_of(definition: &Value) -> Vec<&str> {
    let fields =
        &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    fields
        .as_object()
        .into_iter()
        .flat_map(|fields| fields.keys().map(String::as_str))
        .collect()
}

/// Returns the number of the first line of the log that contains all words.
fn line(host: &Host, words: &str) -> usize {
    let log = host.log();
    let mut lines = log.lines();
    let found = lines.position(|line| contains(line, words));
    found.unwrap_or_else(|| panic!("no line has {words:?}: {log}"))
}

fn installs(log: &str) -> usize {
    log.lines()
        .filter(|line| line.contains("\"definition installed\""))
        .count()
}

async fn until_live(host: &Host, version: &str) {
    host.until_log(&format!("\"plugin loaded\" … \"version\":\"{version}\""))
        .await;
}

#[tokio::test]
async fn a_definition_is_created_and_widened_before_the_version_that_needs_it_is_live() {
    let scenario = Scenario::new("install-fresh").await;
    let mut shops = Shops::new(&scenario);
    let host = shops.start().await;
    let definition = shops.definition().await.unwrap();
    let managers = serde_json::to_string(&definition.metadata.managed_fields).unwrap();
    assert_contains(&managers, "operator-host/shop/definition/");
    shops.shop("one", json!({ "a": "x" })).await;
    shops.until_ready("one").await;

    shops.put("1.1.0", &["a", "b"]);
    until_live(&host, "1.1.0").await;
    let installed = line(&host, "\"definition installed\" … 1.1.0");
    assert!(
        installed < line(&host, "\"plugin loaded\" … 1.1.0"),
        "{}",
        host.log()
    );
    shops.shop("one", json!({ "a": "x", "b": "y" })).await;
    assert_eq!(shops.spec("one").await, json!({ "a": "x", "b": "y" }));

    // Another version with the same definition changes nothing but the record of the live version.
    let before = shops.definition().await.unwrap().metadata.generation;
    shops.put("1.2.0", &["a", "b"]);
    until_live(&host, "1.2.0").await;
    shops.until_ready("one").await;
    assert_eq!(shops.definition().await.unwrap().metadata.generation, before);
    assert_eq!(installs(&host.log()), 2);

    // It is created again when somebody deletes it.
    let uid = shops.definition().await.unwrap().metadata.uid;
    scenario.delete(DEFINITION, &name(&scenario)).await;
    shops
        .until("another one", |crd| {
            crd["metadata"]["uid"].as_str() != uid.as_deref()
        })
        .await;
    until_ready_is_without(&host, "is not installed").await;
    shops.shop("one", json!({ "a": "x" })).await;
    shops.until_ready("one").await;
}

#[tokio::test]
async fn a_narrower_definition_waits_for_the_object_that_has_the_field() {
    let scenario = Scenario::new("install-narrower").await;
    let mut shops = Shops::new(&scenario);
    shops.put("1.0.0", &["a", "b"]);
    let host = shops.start().await;
    shops.shop("user", json!({ "a": "x", "b": "y" })).await;
    let kind = shops.kind();
    shops.until_ready("user").await;
    shops.shop("other", json!({ "a": "x" })).await;

    shops.put("1.1.0", &["a"]);
    let says = "PluginHeldBack=True LossyDefinition: the API server would drop its field spec.b … \
         is held back";
    scenario.until_condition(&kind, "user", says).await;
    scenario
        .until_event("user", "Warning PluginHeldBack: spec.b")
        .await;
    let (_, plugins) = get(&host, "/plugins").await;
    assert_contains(&plugins, "LossyDefinition … heldBack");
    let other = scenario.get(&kind, "other").await.unwrap();
    assert!(condition(&other, "PluginHeldBack").is_none());
    assert_eq!(shops.spec("user").await["b"], "y");

    shops.shop("user", json!({ "a": "x" })).await;
    until_live(&host, "1.1.0").await;
    shops.until_fields(&["a"]).await;
    host.until_log("\"definition installed\" … 1.1.0").await;
    // The live version needed the field until then.
    assert!(line(&host, "\"plugin loaded\" … 1.1.0") < line(&host, "\"definition installed\" … 1.1.0"));
}

#[tokio::test]
async fn a_version_in_which_objects_are_stored_stays() {
    let scenario = Scenario::new("install-stored").await;
    let mut shops = Shops::new(&scenario);
    let both = [version("v1", &["a"], false), version("v0", &["a"], true)];
    shops.mount.put(FILE, &with_versions(&scenario, "1.0.0", &both));
    let host = shops.start().await;
    shops.put("1.1.0", &["a"]);
    let words = "plugin held back … LossyDefinition … it lacks the version v0, in which objects are stored … \
         migrate them first";
    host.until_log(words).await;
    let stays = shops
        .until("both versions", |crd| crd["spec"]["versions"][1]["name"] == "v0")
        .await;
    assert_eq!(stays["status"]["storedVersions"], json!(["v0"]));
    // After a migration it may go.
    let unstored = [version("v1", &["a"], true), version("v0", &["a"], false)];
    shops
        .mount
        .put(FILE, &with_versions(&scenario, "1.0.1", &unstored));
    shops
        .until("v1 stored", |crd| crd["spec"]["versions"][0]["storage"] == true)
        .await;
    let status = json!({ "status": { "storedVersions": ["v1"] } });
    let patched = definitions(&scenario)
        .patch_status(&name(&scenario), &PatchParams::default(), &Patch::Merge(status))
        .await;
    patched.expect("migrated");
    shops.put("1.1.0", &["a"]);
    shops
        .until("one version", |crd| {
            crd["spec"]["versions"].as_array().unwrap().len() == 1
        })
        .await;
}

#[tokio::test]
async fn an_edited_definition_is_left_alone_and_reported_with_its_editor() {
    let scenario = Scenario::new("install-edited").await;
    let mut shops = Shops::new(&scenario);
    let host = shops.start().await;
    let annotation = json!({ "metadata": { "annotations": { "example.com/team": "shop" } } });
    shops.edit("team", annotation).await;
    shops
        .edit(
            "vim",
            json!({ "spec": { "versions": [version("v1", &["a", "c"], true)] } }),
        )
        .await;
    let words = "the cluster's was changed by others … \"vim\" … .spec.versions";
    until_ready_says(&host, words).await;
    host.until_log("\"WARN\" … the cluster's was changed by others")
        .await;
    // A version that needs more waits.
    shops.put("1.1.0", &["a", "b"]);
    host.until_log("plugin held back … DefinitionNotInstalled … vim")
        .await;
    let edited = shops.until_fields(&["a", "c"]).await;
    assert_eq!(
        edited["metadata"]["generation"], 2,
        "the host has written nothing"
    );

    // As the advice says.
    let own = edited["metadata"]["managedFields"].as_array().unwrap().iter();
    let mut own = own.filter_map(|entry| entry["manager"].as_str());
    let own = own.find(|manager| manager.starts_with("operator-host/")).unwrap();
    let given = definition(&scenario, &[version("v1", &["a"], true)]);
    let given: DynamicObject = serde_json::from_value(given).unwrap();
    let params = PatchParams::apply(own).force();
    let applied = definitions(&scenario)
        .patch(&name(&scenario), &params, &Patch::Apply(&given))
        .await;
    applied.expect("handed over");
    until_live(&host, "1.1.0").await;
    let installed = shops.until_fields(&["a", "b"]).await;
    assert_eq!(installed["metadata"]["annotations"]["example.com/team"], "shop");
    until_ready_is_without(&host, "vim").await;
}

#[tokio::test]
async fn a_definition_of_kubectl_is_taken_over_while_nobody_has_edited_it() {
    let scenario = Scenario::new("install-kubectl").await;
    let mut shops = Shops::new(&scenario);
    let definition = definition(&scenario, &[version("v1", &["a"], true)]);
    crate::support::install(&scenario.client, scenario.folder.path(), &definition.to_string()).await;
    let host = shops.start().await;
    assert_eq!(installs(&host.log()), 0, "it is as it should be");
    shops.put("1.1.0", &["a", "b"]);
    until_live(&host, "1.1.0").await;
    shops.until_fields(&["a", "b"]).await;
}

#[tokio::test]
async fn a_rollback_is_live_before_its_definition_which_waits_for_what_objects_have() {
    let scenario = Scenario::new("install-rollback").await;
    let mut shops = Shops::new(&scenario);
    let state = scenario.folder.path().join("state").display().to_string();
    let host = scenario.start_with(&shops.config("install"), &["--state-dir", &state]);
    host.until_log("controller started").await;
    let first = operator_host_core::digest::Digest::of(&plugin(&scenario, "1.0.0", &["a"]));
    shops.put("1.1.0", &["a", "b"]);
    until_live(&host, "1.1.0").await;
    shops.shop("user", json!({ "a": "x", "b": "y" })).await;
    let pin = json!({ "metadata": { "annotations": { "operator-host.dev/pin": first.to_string() } } });
    shops.edit("user", pin).await;
    host.until_log("plugin loaded … rolled back").await;
    let words = "of version 1.0.0 is not installed … user: the API server would drop its field spec.b";
    until_ready_says(&host, words).await;
    assert_eq!(shops.spec("user").await["b"], "y");
    shops.until_fields(&["a", "b"]).await;
    shops.shop("user", json!({ "a": "x" })).await;
    shops.until_fields(&["a"]).await;
    until_ready_is_without(&host, "is not installed").await;
}

#[tokio::test]
async fn of_two_hosts_the_one_with_the_newer_version_defines_the_kind() {
    let scenario = Scenario::new("install-two-hosts").await;
    let mut shops = Shops::new(&scenario);
    shops.put("1.1.0", &["a", "b"]);
    let config = |name: &str, controller: &str| {
        let text = std::fs::read_to_string(scenario.config(controller)).unwrap();
        scenario.file(&format!("{name}.yaml"), format!("hostNamespace: {name}\n{text}"))
    };
    let newer = config("newer", &shops.controller("install"));
    let newer = scenario.start_named("newer", &newer);
    newer.until_log("controller started").await;
    let other = scenario.folder.path().join("other.wasm");
    std::fs::write(&other, plugin(&scenario, "1.0.0", &["a"])).unwrap();
    let mount = shops.mount.path.join(FILE).display().to_string();
    let controller = shops
        .controller("install")
        .replace(&mount, &other.display().to_string());
    let older = config("older", &controller);
    let older = scenario.start_named("older", &older);
    let words = "the cluster's is of the version 1.1.0 of the plugin, applied by \"operator-host/shop/definition/newer\"";
    until_ready_says(&older, words).await;
    // It does without the host that lost, too.
    std::fs::write(&other, plugin(&scenario, "1.2.0", &["a", "b", "c"])).unwrap();
    until_live(&older, "1.2.0").await;
    shops.until_fields(&["a", "b", "c"]).await;
    until_ready_says(&newer, "applied by \"operator-host/shop/definition/older\"").await;
    let generation = shops.definition().await.unwrap().metadata.generation;
    assert_eq!(generation, Some(2), "each applied once");
}

#[tokio::test]
async fn without_the_permission_the_missing_rule_is_named() {
    let scenario = Scenario::new("install-rights").await;
    let shops = Shops::new(&scenario);
    let user = scenario.beside(&scenario.namespace);
    let printed = roles(&scenario, &shops.config("check"));
    let user = user.with_account(cluster().await, &printed).await;
    let host = user.start_with(&shops.config("install"), &[]);
    let words = "is not installed … cannot create resource … give the host's role that permission";
    host.until_log(&format!("\"WARN\" … customresourcedefinitions … {words}"))
        .await;
    until_ready_says(&host, words).await;
    for role in roles(&scenario, &shops.config("install")) {
        scenario.apply(&role.to_string()).await;
    }
    host.until_log("controller started").await;
    until_ready_is_without(&host, "is not installed").await;
}

#[tokio::test]
async fn definitions_are_only_compared_or_not_even_that() {
    for (mode, is_reported) in [("check", true), ("ignore", false)] {
        let scenario = Scenario::new(&format!("definitions-{mode}")).await;
        let mut shops = Shops::new(&scenario);
        let definition = definition(&scenario, &[version("v1", &["a"], true)]);
        crate::support::install(&scenario.client, scenario.folder.path(), &definition.to_string()).await;
        let host = scenario.start_with(&shops.config(mode), &[]);
        host.until_log("controller started").await;
        let two = [
            version("v1", &["a", "b"], true),
            version("v2", &["a", "b"], false),
        ];
        shops.mount.put(FILE, &with_versions(&scenario, "1.1.0", &two));
        until_live(&host, "1.1.0").await;
        if is_reported {
            let lacks = "lacks spec.b … does not have the version v2";
            until_ready_says(&host, lacks).await;
        } else {
            shops.shop("one", json!({ "a": "x" })).await;
            shops.until_ready("one").await;
            let (_, ready) = get(&host, "/readyz?verbose").await;
            assert!(!ready.contains("definition"), "{ready}");
        }
        assert_eq!(installs(&host.log()), 0);
    }
}

#[tokio::test]
async fn a_definition_with_several_versions_names_the_webhook_and_its_authority() {
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "install-converting").await;
    let mut shops = Shops::new(&scenario);
    let both = [version("v1", &["a"], true), version("v2", &["a"], false)];
    let both = definition(&scenario, &both).to_string();
    let converting = |number: &str| {
        let fixture = fixture(&scenario, number).definition(&both);
        fixture.versions(&["v1", "v2"]).build(Form::Command)
    };
    let host = shops.start().await;
    shops.mount.put(FILE, &converting("1.1.0"));
    host.until_log("plugin held back … DefinitionNotInstalled … set `webhook.service` or `webhook.url`")
        .await;
    host.stop().await;

    let authority = certified(&scenario);
    let pem = || std::fs::read(authority.0.join("ca.crt")).unwrap();
    scenario.file("ca.crt", pem());
    let top = "webhook: {address: '127.0.0.1:0', certificate: tls.crt, key: tls.key, url: 'https://127.0.0.1:1', \
               certificateAuthority: ca.crt}";
    let config = scenario.config_with(top, &shops.controller("install"));
    let _host = scenario.start_with(&config, &[]);
    let client_config = |crd: &Value| crd["spec"]["conversion"]["webhook"]["clientConfig"].clone();
    let expected = || json!({ "url": "https://127.0.0.1:1/convert", "caBundle": ByteString(pem()) });
    shops
        .until("the webhook", |crd| client_config(crd) == expected())
        .await;
    // Its rotation reaches the definition.
    Authority::new(&scenario, "ca");
    scenario.file("ca.crt", pem());
    shops
        .until("the new authority", |crd| client_config(crd) == expected())
        .await;
    // What somebody else writes stays.
    let other = json!({ "url": "https://127.0.0.1:2/convert" });
    let patch = json!({ "spec": { "conversion": { "webhook": { "clientConfig": other } } } });
    shops.edit("vim", patch).await;
    shops.mount.put(FILE, &converting("1.2.0"));
    until_live(&_host, "1.2.0").await;
    shops
        .until("their webhook", |crd| client_config(crd)["url"] == other["url"])
        .await;
}
