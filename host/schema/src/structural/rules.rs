//! The form of rules in CEL. `crate::cel` checks their expressions.

use serde_json::Value;

use super::super::Problem;
use crate::cel::rules::field_path;

/// The reasons that a rule may give.
const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

/// Checks the form of the rules of a schema.
pub(super) fn check(schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let Some(rules) = schema.get("x-kubernetes-validations") else {
        return;
    };
    let Some(rules) = rules.as_array() else {
        let message = "`x-kubernetes-validations` must be a list of rules";
        return problems.push(Problem::new(path, message));
    };
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        let mut wrong = |message: String| problems.push(Problem::new(&at, message));
        let given = |name: &str| rule[name].as_str().unwrap_or_default();
        let text = |name: &str| given(name).trim();
        if text("rule").is_empty() {
            wrong("`rule` is missing or not a string".into());
        }
        let lines = |text: &str| text.contains(['\n', '\r']);
        if lines(text("message")) {
            wrong("`message` must be one line".into());
        } else if lines(text("rule")) && text("message").is_empty() {
            wrong("a rule of several lines needs a `message`".into());
        }
        for name in ["message", "messageExpression", "fieldPath"] {
            if !given(name).is_empty() && text(name).is_empty() {
                wrong(format!("`{name}` has only spaces"));
            }
        }
        if let Some(reason) = rule["reason"].as_str()
            && !REASONS.contains(&reason)
        {
            wrong(format!(
                "`reason` is {reason:?}; it must be one of {}",
                REASONS.join(", ")
            ));
        }
        let field = given("fieldPath");
        if !field.is_empty() && field_path("", field, schema).is_none() {
            wrong(format!(
                "`fieldPath` is {field:?}, which is no field of the schema; it is written as `.spec.size` or `['a']`"
            ));
        }
    }
}
