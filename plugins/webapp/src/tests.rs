use operator_plugin::testing::{Case, Outcome};
use operator_plugin::{CHECKSUM, CRON_JOB, DEPLOYMENT, Failure, JOB, SERVICE, json};

use super::PLUGIN;

fn sample() -> Case {
    Case::new(include_str!("../sample.yaml"))
}

/// An application with nothing but an image.
fn small() -> Case {
    Case::new(
        "apiVersion: apps.example.com/v1\nkind: WebApp\nmetadata: {name: shop, namespace: default}\n\
         spec: {image: 'shop:1.4'}",
    )
}

fn checksum(outcome: &Outcome) -> String {
    let annotations = outcome
        .child(DEPLOYMENT, "shop")
        .get("/spec/template/metadata/annotations")
        .cloned()
        .unwrap();
    annotations[CHECKSUM].as_str().unwrap().to_owned()
}

#[test]
fn the_service_sends_requests_to_servers_and_not_to_pods_of_jobs() {
    let outcome = sample().run(&PLUGIN).unwrap();
    let selector = outcome
        .child(SERVICE, "shop")
        .get("/spec/selector")
        .cloned()
        .unwrap();
    let servers = outcome.child(DEPLOYMENT, "shop");
    assert_eq!(servers.get("/spec/template/metadata/labels"), Some(&selector));
    let scheduled = outcome.child(CRON_JOB, "shop-schedule");
    assert_eq!(
        scheduled.get("/spec/jobTemplate/spec/template/metadata/labels"),
        None
    );
}

#[test]
fn pods_wait_for_the_migration_and_each_image_has_its_own() {
    let migration = |image: &str| {
        let outcome = sample().set("/spec/image", image).run(&PLUGIN).unwrap();
        let job = outcome.names_of(JOB)[0].to_owned();
        let deployment = outcome.child(DEPLOYMENT, "shop");
        let after = format!("Job.batch/{job}");
        assert_eq!(deployment.annotation("operator-host.dev/after"), Some(&*after));
        assert_eq!(
            outcome
                .child(JOB, &job)
                .text("/spec/template/spec/containers/0/image"),
            Some(image)
        );
        job
    };
    assert_ne!(migration("shop:1.4"), migration("shop:1.5"));
    let without = small().run(&PLUGIN).unwrap().child(DEPLOYMENT, "shop");
    assert_eq!(without.annotation("operator-host.dev/after"), None);
}

#[test]
fn every_pod_has_the_session_key() {
    let outcome = sample().run(&PLUGIN).unwrap();
    assert_eq!(outcome.generate[0].name, "shop-session");
    let key = "/spec/containers/0/env/0/valueFrom/secretKeyRef/name";
    for (kind, name, template) in [
        (DEPLOYMENT, "shop", "/spec/template"),
        (CRON_JOB, "shop-schedule", "/spec/jobTemplate/spec/template"),
    ] {
        let path = format!("{template}{key}");
        assert_eq!(outcome.child(kind, name).text(&path), Some("shop-session"));
    }
}

#[test]
fn other_settings_replace_the_pods_and_other_labels_of_them_do_not() {
    let with = |metadata: &str, currency: &str| {
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: shop-settings, namespace: default{metadata}}}\n\
             data: {{CURRENCY: {currency}}}"
        );
        let case = small().set("/spec/settings", "shop-settings");
        checksum(&case.related("settings", &settings).run(&PLUGIN).unwrap())
    };
    assert_eq!(with("", "EUR"), with(", labels: {a: b}", "EUR"));
    assert_ne!(with("", "EUR"), with("", "CHF"));
}

#[test]
fn without_a_farewell_or_in_a_namespace_that_is_deleted_nothing_is_waited_for() {
    assert!(small().clean_up(&PLUGIN).unwrap().done);
    assert!(
        sample()
            .in_a_terminating_namespace()
            .clean_up(&PLUGIN)
            .unwrap()
            .done
    );
}

#[test]
fn what_a_schema_cannot_say_is_refused_with_its_field() {
    for (path, value, words) in [
        (
            "/spec/autoscale",
            json!({"min": 3, "max": 2}),
            "spec.autoscale: min 3",
        ),
        (
            "/spec/schedule",
            json!({"cron": "every night", "command": ["a"]}),
            "spec.schedule.cron",
        ),
        ("/spec/resources", json!({"cpu": "x"}), "spec.resources.cpu"),
    ] {
        match small().set(path, value).run(&PLUGIN) {
            Err(Failure::Invalid(invalid)) => {
                assert!(invalid.message.contains(words), "{}", invalid.message);
            }
            other => panic!("{path}: {other:?}"),
        }
    }
}
