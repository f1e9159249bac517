use operator_plugin::testing::Case;
use operator_plugin::{Failure, ROLE_BINDING};

use super::{PLUGIN, RESOURCE_QUOTA};

fn namespace(labels: &str) -> Case {
    Case::new(&format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{{labels}}}}}, spec: {{finalizers: [kubernetes]}}}}"
    ))
}

#[test]
fn a_namespace_gets_the_limits_of_its_size_and_the_rights_of_its_team() {
    let outcome = namespace("tenant: blue").run(&PLUGIN).unwrap();
    assert_eq!(outcome.names(), ["tenant"; 4]);
    let quota = outcome.child(RESOURCE_QUOTA, "tenant");
    assert_eq!(quota.namespace(), Some("shop"));
    assert_eq!(quota.get("/spec/hard/pods").unwrap(), "20");
    let rights = outcome.child(ROLE_BINDING, "tenant");
    assert_eq!(rights.get("/subjects/0/name").unwrap(), "blue");
    let large = namespace("tenant: blue, tenant-size: large")
        .run(&PLUGIN)
        .unwrap();
    let quota = large.child(RESOURCE_QUOTA, "tenant");
    assert_eq!(quota.get("/spec/hard/pods").unwrap(), "200");
}

#[test]
fn an_unknown_size_changes_nothing() {
    let failure = namespace("tenant: blue, tenant-size: huge")
        .run(&PLUGIN)
        .unwrap_err();
    let Failure::Invalid(invalid) = failure else {
        panic!("{failure:?}")
    };
    assert_eq!(invalid.reason.as_deref(), Some("UnknownSize"));
}
