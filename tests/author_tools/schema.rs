//! Checks resources and definitions against the API server's rules.

use operator_host_contract::Kind;
use operator_host_core::crd::definition;
use operator_host_schema::{Problem, schema, structural};
use serde_json::{Value, json};

use crate::support::root;

/// A schema with one property `a`, with valid and invalid values.
#[test]
fn values_are_validated_as_the_api_server_does() {
    for (rule, value, expected) in [
        (
            json!({"type": "string", "enum": ["x", "y"]}),
            json!("z"),
            Some("a: \"z\" is not one of \"x\", \"y\" (enum)"),
        ),
        (
            json!({"type": "string", "pattern": "^b"}),
            json!("ab"),
            Some("a: \"ab\" does not match ^b (pattern)"),
        ),
        (json!({"type": "string", "maxLength": 2}), json!("äö"), None),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("today"),
            Some("a: \"today\" is not a valid date-time (format)"),
        ),
        (
            json!({"type": "number", "maximum": 1, "exclusiveMaximum": true}),
            json!(1),
            Some("a: 1 must be less than 1 (exclusiveMaximum)"),
        ),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), None),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            Some("a: 7 is not a multiple of 5 (multipleOf)"),
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_i64),
            Some("a: 3000000000 does not fit the format int32"),
        ),
        (
            json!({"type": "string"}),
            json!(null),
            Some("a: must not be null"),
        ),
        (json!({"type": "string", "nullable": true}), json!(null), None),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%"), None),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!([]),
            Some("a: [] must be an integer or a string"),
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"b": 1}),
            None,
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"b/c": 1}),
            Some("a[b/c]: 1 must be of type string"),
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "string"}}),
            json!([]),
            Some("a: 0 items are fewer than 1 (minItems)"),
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
            json!(["b", "b"]),
            Some("a[1]: \"b\" occurs twice (x-kubernetes-list-type)"),
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            json!([{"k": "1"}, {"k": "1"}]),
            Some("a[1]: [\"1\"] occurs twice (x-kubernetes-list-type)"),
        ),
        (
            json!({"type": "object", "properties": {"b": {"type": "string"}, "c": {"type": "string"}}, "oneOf": [{"required": ["b"]}, {"required": ["c"]}]}),
            json!({"b": "", "c": ""}),
            Some("a: matches 2 of the alternatives, not exactly one (oneOf)"),
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}}),
            json!({"b": 1, "c": 2}),
            Some("a: 2 fields are more than 1 (maxProperties)"),
        ),
    ] {
        let schema = json!({"type": "object", "properties": {"a": rule}});
        let found: Vec<String> = schema::validate(&json!({"a": value}), &schema)
            .iter()
            .map(Problem::to_string)
            .collect();
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{schema}");
    }
}

#[test]
fn defaults_are_filled_in_from_the_outside_in() {
    let inner =
        json!({"type": "object", "default": {}, "properties": {"port": {"type": "integer", "default": 80}}});
    let schema = json!({"type": "object", "properties": {
        "one": inner, "many": {"type": "array", "items": inner}, "none": {"type": "object", "properties": {"x": {"default": 1}}},
    }});
    let mut value = json!({"many": [{}, {"port": 1}, {"port": null}]});
    schema::fill_defaults(&mut value, &schema);
    assert_eq!(
        value,
        json!({"one": {"port": 80}, "many": [{"port": 80}, {"port": 1}, {"port": 80}]})
    );
}

/// The Echo definition with one change each.
#[test]
fn a_definition_that_the_api_server_would_refuse_is_named_with_its_path() {
    let text = std::fs::read_to_string(root().join("manifests/crds/echoes.my-operator.dev.yaml")).unwrap();
    let crd: Value = serde_saphyr::from_str(&text).unwrap();
    let parent = Kind {
        api_version: "my-operator.dev/v1".into(),
        kind: "Echo".into(),
    };
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
            image,
            json!({"$ref": "#/definitions/Image"}),
            "properties.image",
            "`$ref` to \"#/definitions/Image\" is not allowed",
        ),
        (
            image,
            json!({"type": ["string", "null"]}),
            "properties.image",
            "nullable",
        ),
        (
            image,
            json!({"type": "text"}),
            "properties.image",
            "must be one of object",
        ),
        (
            image,
            json!({"const": "x", "type": "string"}),
            "properties.image",
            "`const` is not a keyword",
        ),
        (image, json!(true), "properties.image", "not structural"),
        (
            image,
            json!({"type": "string", "pattern": "("}),
            "properties.image",
            "not a regular expression",
        ),
        (
            image,
            json!({"type": "string", "default": 1}),
            "properties.image",
            "default does not match",
        ),
        (
            image,
            json!({"type": "array"}),
            "properties.image",
            "`items` is missing",
        ),
        (
            image,
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            "properties.image",
            "x-kubernetes-list-type: set",
        ),
        (
            image,
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            "properties.image",
            "exclude each other",
        ),
        (
            image,
            json!({"type": "string", "anyOf": [{"type": "string"}]}),
            "properties.image.anyOf[0]",
            "`type` is not allowed within",
        ),
        (
            image,
            json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
            "properties.image",
            "required or have a default",
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
            image,
            json!({"type": "string", "x-kubernetes-validations": [{"message": "no rule"}]}),
            "properties.image.x-kubernetes-validations[0]",
            "`rule` is missing",
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

/// The SDK implements the rules independently; its tests commit the schemas that it generates.
#[test]
fn what_the_sdk_makes_of_types_is_structural_and_what_it_cannot_make_so_is_named() {
    let schema = |name: &str| -> Value {
        let file = root().join("plugins/sdk/tests/schemas").join(name);
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    };
    assert_eq!(structural::problems(&schema("structural.json"), "spec"), []);
    let problems = structural::problems(&schema("unstructural.json"), "spec");
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    for (path, words) in [
        (
            "spec.properties.tree.properties.branches.items: ",
            "`$ref` to \"#/$defs/Tree\" is not allowed",
        ),
        ("spec.properties.mixed.anyOf[0]: ", "`type` is not allowed within"),
    ] {
        assert!(
            problems
                .iter()
                .any(|problem| problem.starts_with(path) && problem.contains(words)),
            "{path}{words} is not among {problems:#?}"
        );
    }
}
