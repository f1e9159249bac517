use super::*;
use crate::prelude::*;

const PLUGIN: Plugin<Value, Value> = Plugin::new("example.com/v1", "Shop", reconcile)
    .cleanup(cleanup)
    .makes(&[DEPLOYMENT])
    .reads(&[CONFIG_MAP, SECRET]);

fn needs() -> [Need; 2] {
    [
        Need::object("settings", CONFIG_MAP, "settings"),
        Need::selected("keys", SECRET, "app=shop,tier=front"),
    ]
}

fn reconcile(request: &Request<Value, Value>) -> Result<Response<Value>, Failure> {
    let [settings, keys] = needs();
    let (Some(found), Some(selected)) = (request.answer(&settings), request.answer(&keys)) else {
        return Ok(Response::needs_first([settings, keys]));
    };
    let names = |objects: &[Object]| {
        objects
            .iter()
            .map(|object| object.name().to_owned())
            .collect::<Vec<_>>()
    };
    Ok(
        Response::new(json!({ "settings": names(found), "keys": names(selected) }))
            .condition(Condition::ready(false, "Waiting", "for the pods"))
            .requeue_after(Duration::from_secs(30))
            .need(settings)
            .need(keys),
    )
}

fn cleanup(_: &Request<Value, Value>) -> Result<Response<Value>, Failure> {
    Ok(Response::not_yet()
        .condition(Condition::new("BackedUp", false, "Running", "the backup runs"))
        .requeue_after(Duration::from_millis(5)))
}

const SAMPLE: &str = "
metadata: {name: shop}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: others}}
---
{apiVersion: v1, kind: Secret, metadata: {name: a, labels: {app: shop, tier: front, more: x}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: b, labels: {app: shop}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: c, namespace: elsewhere, labels: {app: shop, tier: front}}}
";

#[test]
fn the_further_documents_of_a_sample_answer_needs() {
    let outcome = Case::new(SAMPLE).run(&PLUGIN).unwrap();
    assert_eq!(outcome.status, json!({ "settings": ["settings"], "keys": ["a"] }));
    // Without them the test sees the needs, and answers them itself.
    let alone = Case::new("metadata: {name: shop}").run(&PLUGIN).unwrap();
    assert_eq!((alone.needs.len(), alone.status), (2, Value::Null));
}

#[test]
fn an_outcome_shows_its_conditions_and_when_it_wants_the_next_call() {
    let outcome = Case::new(SAMPLE).run(&PLUGIN).unwrap();
    assert_eq!(outcome.condition("Ready").reason, "Waiting");
    assert_eq!(outcome.requeue_after, Some(Duration::from_secs(30)));
    let cleanup = Case::new(SAMPLE).clean_up(&PLUGIN).unwrap();
    assert_eq!(cleanup.condition("BackedUp").message, "the backup runs");
    assert_eq!(cleanup.requeue_after, Some(Duration::from_millis(5)));
}

#[test]
#[should_panic(expected = "there is no condition Synced among")]
fn a_condition_that_a_test_asks_for_and_is_missing_is_named() {
    let _ = Case::new(SAMPLE).run(&PLUGIN).unwrap().condition("Synced");
}

mod versions {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::super::check_versions;
    use crate::plugin::Reconciler as _;
    use crate::prelude::*;

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Spec {
        #[schemars(regex(pattern = r"^[1-9][0-9]?(Ki|Mi)$"))]
        size: String,
        class: Option<String>,
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Old {
        #[schemars(regex(pattern = r"^[1-9][0-9]?(Ki|Mi)$"))]
        size: String,
    }

    impl From<Old> for Spec {
        fn from(old: Old) -> Self {
            Self {
                size: old.size,
                class: None,
            }
        }
    }

    impl From<Spec> for Old {
        fn from(spec: Spec) -> Self {
            Self { size: spec.size }
        }
    }

    impl crate::Defaults for Spec {
        fn set(&mut self) {
            if self.class.as_deref() == Some("none") {
                self.class = None;
                return;
            }
            self.class
                .get_or_insert_with(|| format!("class-of-{}", self.size));
        }
    }

    fn reconcile(_: &Request<Spec, ()>) -> Result<Response<()>, Failure> {
        Ok(Response::empty())
    }

    const LOSSY: Plugin<Spec, ()> =
        Plugin::new("a.dev/v1", "Shop", reconcile).versions(&[Version::new::<Old>("v1beta1")]);
    const LOSSLESS: Plugin<Spec, ()> = Plugin::new("a.dev/v1", "Shop", reconcile).defaults().versions(&[
        Version::new::<Old>("v1beta1")
            .keep_rest()
            .deprecated("use v1")
            .columns(&[Column::string("Size", ".spec.size")])
            .rules(&[Rule::new("self.spec.size != ''", "no size")]),
        Version::new::<Old>("v1alpha1").keep_rest().stored().unserved(),
    ]);

    #[test]
    fn the_definition_has_every_version_with_its_own_schema() {
        let (definition, problems) = LOSSLESS.crd();
        assert_eq!(problems, [""; 0]);
        let versions = definition["spec"]["versions"].as_array().unwrap();
        let flags: Vec<_> = versions
            .iter()
            .map(|version| {
                (
                    version["name"].as_str().unwrap(),
                    version["served"] == true,
                    version["storage"] == true,
                )
            })
            .collect();
        assert_eq!(
            flags,
            [
                ("v1beta1", true, false),
                ("v1alpha1", false, true),
                ("v1", true, false)
            ]
        );
        let spec =
            |index: usize| &versions[index]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        assert!(spec(0).get("class").is_none() && spec(2).get("class").is_some());
        assert_eq!(versions[0]["deprecationWarning"], "use v1");
        assert_eq!(versions[0]["additionalPrinterColumns"][0]["name"], "Size");
        assert_eq!(versions[2]["additionalPrinterColumns"][0]["name"], "Age");
        let described = LOSSLESS.describe("shop", "1.0.0", "{}");
        assert_eq!(described.versions, ["v1beta1", "v1alpha1", "v1"]);
        assert!(described.defaults);
    }

    #[test]
    fn generated_resources_come_back_when_a_version_keeps_the_rest() {
        check_versions(&LOSSLESS);
    }

    #[test]
    #[should_panic(expected = "spec.class does not come back from a.dev/v1beta1")]
    fn a_field_that_a_version_loses_is_named() {
        check_versions(&LOSSY);
    }

    #[test]
    fn defaults_change_only_the_fields_that_they_set() {
        let parent = json!({ "spec": { "size": "1Ki", "unknown": 1, "class": null } }).to_string();
        let spec = LOSSLESS.default(&parent).unwrap();
        let expected = json!({ "size": "1Ki", "unknown": 1, "class": "class-of-1Ki" });
        assert_eq!(serde_json::from_str::<Value>(&spec).unwrap(), expected);
        let again = json!({ "spec": expected }).to_string();
        assert_eq!(LOSSLESS.default(&again).unwrap(), spec);
        // A field that they unset is removed: the schema need not allow null.
        let unset = json!({ "spec": { "size": "1Ki", "class": "none" } }).to_string();
        assert_eq!(LOSSLESS.default(&unset).unwrap(), r#"{"size":"1Ki"}"#);
        // Validation reports it.
        let wrong = LOSSLESS
            .default(&json!({ "spec": { "size": 1 } }).to_string())
            .unwrap();
        assert_eq!(wrong, r#"{"size":1}"#);
    }

    #[test]
    fn a_failure_carries_a_status_and_conditions() {
        let condition = Condition::new("Backed", crate::ConditionStatus::False, "Late", "m");
        let failure = Failure::invalid("no")
            .status(&json!({ "phase": "x" }))
            .condition(condition.clone());
        let Failure::Invalid(invalid) = failure else {
            panic!()
        };
        assert_eq!(invalid.status.as_deref(), Some(r#"{"phase":"x"}"#));
        assert_eq!(invalid.conditions, [condition]);
    }
}
