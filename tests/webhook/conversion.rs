//! Objects of a kind with two versions, which a plugin converts for the API server.

mod outages;

use crate::support::prelude::*;
use k8s_openapi::ByteString;
use operator_host_core::digest::Digest;

use crate::telemetry::get;
use crate::webhook::callers::call_at;
use crate::webhook::{Authority, TOP, certified, port};

/// The variant of the puppet that converts: v2 calls the field `text` of v1 `note`.
pub(crate) const CONVERTS: u8 = 9;
const DEFINITION: &str = "puppets.test.operator-host.dev";
pub(crate) const V2: &str = "test.operator-host.dev/v2/Puppet";

pub(crate) fn configuration(scenario: &Scenario, plugin: &str) -> PathBuf {
    scenario.config_with(TOP, &controller(plugin, "limits: {deadline: 2s}"))
}

/// Adds v2 to the definition of puppets, with a conversion by this host, and waits until it is served.
pub(crate) async fn serve_v2(scenario: &Scenario, host: &Host, authority: &Authority, stored: &str) {
    let url = format!("https://127.0.0.1:{}/convert", port(host).await);
    let ca = ByteString(std::fs::read(authority.0.join("ca.crt")).unwrap());
    let version = |name: &str| {
        json!({
            "name": name, "served": true, "storage": name == stored, "subresources": { "status": {} },
            "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
        })
    };
    let patch = json!({ "spec": {
        "versions": [version("v1"), version("v2")],
        "conversion": { "strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"], "clientConfig": { "url": url, "caBundle": ca },
        } },
    } });
    scenario
        .patch(
            "apiextensions.k8s.io/v1/CustomResourceDefinition",
            DEFINITION,
            patch,
        )
        .await;
    // A changed definition takes effect after a moment. Until then nothing is found; then an object is not, by its name.
    eventually("v2 is served", async || {
        let none = scenario.api(V2).get("none").await;
        let is_by_name = matches!(&none, Err(kube::Error::Api(status))
            if status.details.as_ref().is_some_and(|of| of.name == "none"));
        is_by_name.then_some(()).ok_or_else(|| format!("{none:?}"))
    })
    .await;
}

/// Waits until an object is read in v2.
async fn until_v2(scenario: &Scenario, name: &str) -> DynamicObject {
    eventually("read in v2", async || {
        let read = scenario.api(V2).get(name).await;
        read.map_err(|error| error.to_string())
    })
    .await
}

/// Creates an object in v1 that is wrong in v2, returns why, and deletes it.
async fn refusal(scenario: &Scenario, how: &str) -> String {
    scenario.puppet(how, json!({ "convert": how, "text": "x" })).await;
    let error = scenario
        .api(V2)
        .get(how)
        .await
        .expect_err("it cannot be read")
        .to_string();
    // Of many objects, the wrong one is named, whatever it does.
    let all = scenario.api(V2).list(&ListParams::default()).await;
    let all = all.expect_err("they cannot be read").to_string();
    let words = format!("cannot convert Puppet  … /{how} to test.operator-host.dev/v2");
    assert_contains(&all, &words);
    scenario.remove(PUPPET, how).await;
    error
}

#[tokio::test]
async fn objects_are_read_and_written_in_every_version_and_wrong_conversions_are_named() {
    for (form, file) in FORMS {
        let cluster = own_cluster(Options::default()).await;
        let scenario = Scenario::within(&cluster, &format!("conversion-{form}")).await;
        let plugin = scenario.file("plugin.wasm", variant_of(file, CONVERTS));
        let config = configuration(&scenario, &plugin.display().to_string());
        let authority = certified(&scenario);
        let host = scenario.start_with(&config, &[]);
        host.until_log("controller started").await;
        scenario
            .puppet("first", json!({ "text": "a", "response": {} }))
            .await;
        serve_v2(&scenario, &host, &authority, "v1").await;

        let first = until_v2(&scenario, "first").await;
        assert_eq!(first.data["spec"], json!({ "note": "a", "response": {} }));
        scenario
            .apply(
                &json!({
                    "apiVersion": "test.operator-host.dev/v2", "kind": "Puppet",
                    "metadata": { "name": "second" }, "spec": { "note": "b", "response": {} },
                })
                .to_string(),
            )
            .await;
        let second = scenario.until_ready("second").await;
        assert_eq!(second.data["spec"]["text"], "b");

        let message = refusal(&scenario, "rename").await;
        let object = format!("Puppet conversion-{form}/rename");
        let words = format!("{object} … `metadata.name` is \"another\", expected \"rename\"");
        assert_contains(&message, &words);
        for (how, words) in [
            ("error", "spec.convert: this one cannot be converted"),
            ("few", "`convert` of the plugin puppet"),
            ("trap", "`convert` of the plugin puppet"),
            ("loop", "`convert` of the plugin puppet"),
        ] {
            let message = refusal(&scenario, how).await;
            assert_contains(&message, &format!("conversion webhook … {words}"));
        }
        host.until_log("objects are not converted … asked to convert 1 objects and converted 0")
            .await;
        host.until_log("objects are not converted … did not answer within 2s")
            .await;

        scenario
            .puppet("label", json!({ "convert": "label", "response": {} }))
            .await;
        let labelled = scenario.api(V2).get("label").await.expect("it is converted");
        assert_eq!(labelled.metadata.labels.unwrap()["converted"], "v2");
        assert!(labelled.metadata.managed_fields.is_some());
        scenario
            .puppet("finalizer", json!({ "convert": "finalizer", "response": {} }))
            .await;
        let forged = scenario.api(V2).get("finalizer").await.expect("it is converted");
        assert!(
            !forged
                .metadata
                .finalizers
                .unwrap_or_default()
                .contains(&"a.dev/forged".to_owned())
        );

        assert_eq!(scenario.names(V2).await.len(), 4);
        let metrics = get(&host, "/metrics").await.1;
        for result in ["converted", "failed"] {
            let is_it = |line: &str| {
                line.starts_with("operator_host_webhook_conversions_total{")
                    && line.contains(&format!("\"{result}\""))
            };
            assert!(metrics.lines().any(is_it), "{result} is not in {metrics}");
        }
        assert_eq!(host.stop().await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_review_may_have_ten_thousand_objects_and_one_that_is_too_large_is_refused() {
    let scenario = Scenario::new("conversion-many").await;
    let plugin = scenario.file("plugin.wasm", variant_of("puppet.wasm", CONVERTS));
    let config = configuration(&scenario, &plugin.display().to_string());
    let authority = certified(&scenario);
    let host = scenario.start_with(&config, &[]);
    host.until_log("the certificate is in use").await;
    let review = |count: usize, to: &str, kind: &str| {
        // Only what is to be refused needs to be large.
        let length = if count > 10_000 { 1000 } else { 100 };
        let object = |index: usize| {
            json!({
                "apiVersion": "test.operator-host.dev/v1", "kind": kind, "metadata": { "name": format!("p-{index}"), "uid": "u" },
                "spec": { "text": "x".repeat(length) },
            })
        };
        let objects: Vec<_> = (0..count).map(object).collect();
        let request = json!({ "uid": "1", "desiredAPIVersion": to, "objects": objects });
        let review = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request });
        review.to_string().into_bytes()
    };
    let v2 = "test.operator-host.dev/v2";
    let ask = async |body: Vec<u8>| {
        call_at("/convert", &host, &authority, &body)
            .await
            .expect("an answer")
    };
    // Waits while the plugin is being loaded.
    let many = ask(review(10_000, v2, "Puppet")).await;
    assert_eq!(
        (many.status, many.text.matches("\"note\"").count()),
        (200, 10_000)
    );
    assert_contains(&many.text, "\"status\":\"Success\" … \"p-9999\"");
    assert_eq!(ask(review(30_000, v2, "Puppet")).await.status, 413);
    for (to, kind, words) in [
        (
            "test.operator-host.dev/v3",
            "Puppet",
            "converts v1, v2 of Puppet, not test.operator-host.dev/v3/Puppet",
        ),
        (v2, "Nobody", "no controller for Nobody runs here yet"),
        ("other.dev/v2", "Puppet", "no controller for Puppet runs here yet"),
    ] {
        let answer = ask(review(1, to, kind)).await;
        // Another replica may know it.
        assert_eq!(answer.status, 500, "{}", answer.text);
        assert_contains(
            &answer.text,
            &format!("retry-after: 1 … connection: close … {words}"),
        );
    }
    let reordered = String::from_utf8(review(2, v2, "Puppet")).unwrap();
    let reordered = reordered.replacen("\"spec\":{", "\"spec\":{\"convert\":\"reorder\",", 1);
    let words = "`metadata.name` is \\\"p-1\\\" … are the objects in the same order?";
    assert_contains(&ask(reordered.into_bytes()).await.text, words);
    for body in [&b"{}"[..], b"[", &[b'['; 100_000]] {
        assert_eq!(ask(body.to_vec()).await.status, 400);
    }
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_version_whose_conversion_loses_a_field_or_whose_defaults_are_not_stable_for_a_live_object_is_held_back()
 {
    const FILE: &str = "puppet.wasm";
    let scenario = Scenario::new("conversion-proof").await;
    let folder = scenario.folder.path().join("mount");
    let mut mount = Mount::new(&folder, FILE, &variant_of(FILE, CONVERTS));
    let plugin = folder.join(FILE).display().to_string();
    let host = scenario.start_with(&scenario.config(&controller(&plugin, "")), &[]);
    host.until_log("controller started").await;
    let both = async |variants: Value| {
        let spec = json!({ "size": 1, "response": {}, "variants": variants });
        for name in ["p", "q"] {
            scenario.puppet(name, spec.clone()).await;
        }
    };
    both(json!({ "8": { "convert": "lose" } })).await;
    for name in ["p", "q"] {
        scenario.until_ready(name).await;
    }
    mount.put(FILE, &variant_of(FILE, 8));
    let lost = "spec.size is lost when it is converted to test.operator-host.dev/v2 and back";
    let words =
        format!("held back … its conversion loses something of some objects: conversion-proof/ … {lost}");
    host.until_log(&words).await;
    let says = format!("PluginHeldBack=True LossyConversion: {lost}");
    scenario.until_told("p", &says).await;

    both(json!({ "8": { "default": "grow" } })).await;
    let changes = "`default` changes its own answer: spec.size changes when it is called again";
    host.until_log(&format!("held back … conversion-proof/ … {changes}"))
        .await;
    let says = format!("PluginHeldBack=True UnstableDefaults: {changes}");
    scenario.until_told("p", &says).await;
    // An object that the live version refuses as well does not hold it back.
    both(json!({ "9": { "default": "invalid" }, "8": { "default": "grow" } })).await;
    let digest = Digest::of(&variant_of(FILE, 8)).to_string();
    host.until_log(&format!("plugin loaded … {digest}")).await;

    both(json!({})).await;
    // Without both versions, the objects of the one that is missing could not be read any more.
    mount.put(FILE, &variant_of(FILE, 0));
    host.until_log("held back … it does not convert v1, which the live version converts")
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Writes each resource as it is, in the storage version.
async fn write_all(scenario: &Scenario) -> Vec<kube::Result<DynamicObject>> {
    let api = scenario.api(PUPPET);
    let all = api.list(&ListParams::default()).await.expect("a list");
    let params = PostParams::default();
    let write = all.items.iter().map(|puppet| {
        let name = puppet.metadata.name.as_deref().unwrap();
        api.replace(name, &params, puppet)
    });
    futures::future::join_all(write).await
}

#[tokio::test]
async fn resources_that_are_stored_in_another_version_than_the_controllers_are_converted_for_it() {
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "conversion-storage").await;
    let folder = scenario.folder.path().join("mount");
    let _mount = Mount::new(&folder, "puppet.wasm", &variant_of("puppet.wasm", CONVERTS));
    let config = configuration(&scenario, &folder.join("puppet.wasm").display().to_string());
    let authority = certified(&scenario);
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
    for name in ["a", "b", "c"] {
        scenario
            .ready_with(name, json!({ "text": name, "response": {} }))
            .await;
    }
    serve_v2(&scenario, &host, &authority, "v2").await;
    until_v2(&scenario, "a").await;
    for written in write_all(&scenario).await {
        written.expect("it is written");
    }
    // Nothing is left to convert, but the version of the controller is not the stored one.
    host.kill();
    assert_eq!(scenario.names(V2).await.len(), 3);
    let away = scenario
        .api(PUPPET)
        .get("a")
        .await
        .expect_err("nobody converts it");
    assert_contains(&away.to_string(), "conversion webhook");

    // A host that starts converts what it lists itself.
    let host = scenario.start_named("again", &config);
    serve_v2(&scenario, &host, &authority, "v2").await;
    host.until_log("controller started").await;
    scenario
        .patch(
            V2,
            "a",
            json!({ "spec": { "response": { "status": { "back": true } } } }),
        )
        .await;
    scenario
        .until(PUPPET, "a", "reconciled again", |puppet| {
            puppet.data["status"]["back"] == true
        })
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
}
