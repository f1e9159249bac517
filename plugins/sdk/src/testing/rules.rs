//! Applies the rules in CEL of a plugin's definition to a case.

use serde_json::Value;

use super::{Case, yaml};
use crate::plugin::Reconciler;
use operator_host_schema::cel::{self, RuleVerdict};

impl Case {
    /// Sets the resource that the parent replaces, from YAML: rules about changes compare it with the parent.
    ///
    /// # Panics
    ///
    /// When the text is not a single YAML document.
    #[must_use]
    pub fn replacing(mut self, old: &str) -> Self {
        self.old = Some(yaml(old));
        self
    }

    /// Returns the rules of the plugin's definition that the parent violates, in the API server's words, such as
    /// `spec: Invalid value: min must not exceed max`.
    ///
    /// A resource that violates a rule never reaches the plugin, so [`run`](Self::run) does not apply the rules.
    ///
    /// ```
    /// # use operator_plugin::prelude::*;
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// # struct Spec { min: u32, max: u32 }
    /// # fn reconcile_spec(_: &Request<Spec, ()>) -> Result<Response<()>, Failure> { Ok(Response::empty()) }
    /// use operator_plugin::testing::Case;
    ///
    /// const PLUGIN: Plugin<Spec, ()> = Plugin::new("example.com/v1", "Shop", reconcile_spec)
    ///     .rules(&[Rule::new("self.spec.min <= self.spec.max", "min must not exceed max").at(".spec.min")]);
    ///
    /// let case = Case::new("{ metadata: { name: shop }, spec: { min: 2, max: 1 } }");
    /// assert_eq!(case.violations(&PLUGIN), ["spec.min: Invalid value: min must not exceed max"]);
    /// ```
    ///
    /// # Panics
    ///
    /// When only an API server can evaluate a rule: for example because it calls a function that is missing here.
    #[must_use]
    pub fn violations(&self, plugin: &impl Reconciler) -> Vec<String> {
        let (definition, _) = plugin.crd();
        let parent = plugin.describe("", "", "").parent;
        let version = parent.api_version.rsplit('/').next().unwrap_or_default();
        let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
        let mut versions = versions.filter(|known| known["name"] == version);
        let schema = versions.next().map(|known| &known["schema"]["openAPIV3Schema"]);
        let schema = schema.unwrap_or(&Value::Null);
        let completed = |resource: &Value| {
            let mut resource = resource.clone();
            resource["apiVersion"] = parent.api_version.as_str().into();
            resource["kind"] = parent.kind.as_str().into();
            cel::fill_defaults(&mut resource, schema);
            resource
        };
        let (resource, old) = (completed(&self.parent), self.old.as_ref().map(completed));
        let RuleVerdict { violations, left } = cel::validate(schema, &resource, old.as_ref());
        assert!(
            left.is_empty(),
            "only an API server can tell: {}",
            left.join("; ")
        );
        violations
    }
}

/// Returns the rules of all versions that are no expressions.
pub(super) fn problems(definition: &Value) -> Vec<String> {
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let problems = versions.flat_map(|version| {
        let name = version["name"].as_str().unwrap_or_default();
        cel::problems(&version["schema"]["openAPIV3Schema"], name)
    });
    let problems = problems.map(|(path, problem)| format!("{path} {problem}"));
    problems.collect()
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::*;
    use crate::prelude::*;

    #[derive(Deserialize, JsonSchema)]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self.min <= self.max", "message": "min must not exceed max" },
        { "rule": "self.max >= oldSelf.max", "message": "max must not shrink", "reason": "FieldValueForbidden" },
    ]))]
    #[allow(dead_code, reason = "for its schema alone")]
    struct Spec {
        #[serde(default)]
        min: u32,
        max: u32,
    }

    fn reconcile(_: &Request<Spec, ()>) -> Result<Response<()>, Failure> {
        Ok(Response::empty())
    }

    const PLUGIN: Plugin<Spec, ()> = Plugin::new("example.com/v1", "Shop", reconcile);

    #[test]
    fn a_case_names_the_rules_that_it_violates() {
        let case = |spec: &str| Case::new(&format!("{{ metadata: {{ name: shop }}, spec: {spec} }}"));
        assert_eq!(case("{ max: 1 }").violations(&PLUGIN), [""; 0]);
        // A null where the schema has a default is the default.
        assert_eq!(case("{ min: null, max: 1 }").violations(&PLUGIN), [""; 0]);
        let expected = ["spec: Invalid value: min must not exceed max"];
        assert_eq!(case("{ min: 2, max: 1 }").violations(&PLUGIN), expected);
        let shrunk = case("{ max: 1 }").replacing("{ metadata: { name: shop }, spec: { max: 2 } }");
        let expected = ["spec: Forbidden: max must not shrink"];
        assert_eq!(shrunk.violations(&PLUGIN), expected);
    }

    #[test]
    fn a_rule_that_is_no_expression_is_a_problem_of_the_definition() {
        const WRONG: Plugin<Spec, ()> =
            Plugin::new("example.com/v1", "Shop", reconcile).rules(&[Rule::new("self.spec.min <", "no")]);
        let (definition, _) = WRONG.crd();
        assert_eq!(
            problems(&definition),
            ["v1.x-kubernetes-validations[0].rule is no expression in CEL: unexpected end"]
        );
    }
}
