//! Checks definitions against the API server's rules. Those for schemas have tests in `host/schema`.

use crate::support::prelude::*;
use operator_host_contract::Kind;
use operator_host_core::crd::definition;

/// The Echo definition with one change each.
#[test]
fn a_definition_that_the_api_server_would_refuse_is_named_with_its_path() {
    let text = std::fs::read_to_string(root().join("manifests/crds/echoes.my-operator.dev.yaml")).unwrap();
    let crd: Value = serde_saphyr::from_str(&text).unwrap();
    let parent = Kind::new("my-operator.dev/v1", "Echo");
    assert_eq!(definition::problems(&crd, &parent), []);
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let image = &format!("{spec}/image");
    let scale = &"/spec/versions/0/subresources".to_owned();
    for (at, value, path, message) in [
        (
            image,
            json!({"description": "no type"}),
            "properties.image",
            "`type` is missing",
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
            "my-operator.dev/v1 is missing",
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
            scale,
            json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas"}}),
            "scale.statusReplicasPath",
            "is missing",
        ),
        (
            scale,
            json!({"status": {}, "scale": {"specReplicasPath": ".status.replicas"}}),
            "scale.specReplicasPath",
            "must begin with .spec.",
        ),
        (
            scale,
            json!({"status": {}, "scale": {"specReplicasPath": ".spec.size"}}),
            "scale.specReplicasPath",
            "no \"size\"",
        ),
        (
            scale,
            json!({"status": {}, "scale": {"specReplicasPath": ".spec.image"}}),
            "scale.specReplicasPath",
            "of type \"string\"; it must be of type integer",
        ),
        (
            &"/spec/versions/0/deprecationWarning".into(),
            json!("use v2"),
            "spec.versions[0].deprecationWarning",
            "needs `deprecated: true`",
        ),
        (
            &"/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions".into(),
            json!({"type": "string"}),
            "status.conditions",
            "drops unknown fields",
        ),
    ] {
        let mut crd = crd.clone();
        let (parent_of, name) = at.rsplit_once('/').unwrap();
        crd.pointer_mut(parent_of).unwrap()[name] = value.clone();
        let problems = definition::problems(&crd, &parent);
        assert!(
            problems
                .iter()
                .any(|p| p.path.ends_with(path) && p.message.contains(message)),
            "{at} = {value}: {problems:#?}"
        );
    }
}
