//! Checks definitions against the API server's rules. Those for schemas have tests in `host/schema`.

use crate::support::prelude::*;
use operator_host_contract::Kind;
use operator_host_core::crd::definition;

/// Changes of Echo's definition, and the place and the words of the problem that each makes.
const CASES: &str = r#"SPEC/image = {"description": "no type"}
  -> properties.image: `type` is missing
/spec/names/plural = "echos"
  -> metadata.name: must be "echos.my-operator.dev"
/spec/names/kind = "Ekko"
  -> spec.names.kind: must be "Echo"
/spec/group = "other.dev"
  -> spec.group: must be "my-operator.dev"
/spec/scope = "Galaxy"
  -> spec.scope: Namespaced or Cluster
VERSION/name = "v2"
  -> spec.versions: my-operator.dev/v1 is missing
VERSION/storage = false
  -> spec.versions: exactly one must
VERSION/subresources = {}
  -> subresources.status: add `status: {}`
VERSION/additionalPrinterColumns/0/jsonPath = ".status.replicas"
  -> additionalPrinterColumns[0].jsonPath: no "replicas"
VERSION/additionalPrinterColumns/0/type = "int"
  -> additionalPrinterColumns[0].type: one of integer
VERSION/subresources = {"status": {}, "scale": {"specReplicasPath": ".spec.replicas"}}
  -> scale.statusReplicasPath: is missing
VERSION/subresources = {"status": {}, "scale": {"specReplicasPath": ".status.replicas"}}
  -> scale.specReplicasPath: must begin with .spec.
VERSION/subresources = {"status": {}, "scale": {"specReplicasPath": ".spec.size"}}
  -> scale.specReplicasPath: no "size"
VERSION/subresources = {"status": {}, "scale": {"specReplicasPath": ".spec.image"}}
  -> scale.specReplicasPath: of type "string"; it must be of type integer
VERSION/deprecationWarning = "use v2"
  -> spec.versions[0].deprecationWarning: needs `deprecated: true`
VERSION/schema/openAPIV3Schema/properties/status/properties/conditions = {"type": "string"}
  -> status.conditions: drops unknown fields"#;

/// The Echo definition with one change each.
#[test]
fn a_definition_that_the_api_server_would_refuse_is_named_with_its_path() {
    let text = std::fs::read_to_string(root().join("manifests/crds/echoes.my-operator.dev.yaml")).unwrap();
    let crd: Value = serde_saphyr::from_str(&text).unwrap();
    let parent = Kind::new("my-operator.dev/v1", "Echo");
    assert_eq!(definition::problems(&crd, &parent), []);
    let lines: Vec<_> = CASES.lines().collect();
    for case in lines.chunks(2) {
        let (at, value) = case[0].split_once(" = ").unwrap();
        let (path, message) = case[1].trim_start_matches("  -> ").split_once(": ").unwrap();
        let at = at.replace(
            "SPEC",
            "VERSION/schema/openAPIV3Schema/properties/spec/properties",
        );
        let at = at.replace("VERSION", "/spec/versions/0");
        let mut crd = crd.clone();
        let (parent_of, name) = at.rsplit_once('/').unwrap();
        crd.pointer_mut(parent_of).unwrap()[name] = serde_json::from_str(value).unwrap();
        let problems = definition::problems(&crd, &parent);
        let mut all = problems.iter();
        let found = all.any(|it| it.path.ends_with(path) && it.message.contains(message));
        assert!(found, "{case:?}: {problems:#?}");
    }
}
