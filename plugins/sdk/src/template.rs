//! Creates children from YAML templates.

use serde::Serialize;
use serde_json::Value;

use crate::response::Failure;

/// A YAML template of a child with placeholders: `${name}` and `${spec.image}` are replaced by values.
///
/// A string that consists of one placeholder becomes the value itself, whatever its type; a placeholder within a
/// string must be a string, a number or a boolean. The YAML is parsed before the placeholders are replaced, so no
/// value can change the structure of the template.
///
/// ```
/// use operator_plugin::{Template, json};
///
/// const CHILD: Template = Template::new(
///     "
/// apiVersion: v1
/// kind: Service
/// metadata: {name: '${name}-web', labels: '${labels}'}
/// spec: {ports: [{port: '${spec.port}'}]}
/// ",
/// );
/// let child = CHILD.fill(&json!({ "name": "a", "labels": { "app": "a" }, "spec": { "port": 80 } })).unwrap();
/// assert_eq!(child["metadata"], json!({ "name": "a-web", "labels": { "app": "a" } }));
/// assert_eq!(child["spec"]["ports"][0]["port"], 80);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Template(&'static str);

impl Template {
    /// Creates a template from its text, for example with `include_str!`.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self(text)
    }

    /// Replaces the placeholders by the fields of `values` and returns the child.
    ///
    /// # Errors
    ///
    /// [`Failure::invalid`] when the template is not a single YAML document or refers to a missing value. Both are
    /// bugs of the plugin, which its tests find.
    pub fn fill(&self, values: &impl Serialize) -> Result<Value, Failure> {
        let wrong = |message: String| Failure::invalid_because("BadTemplate", message);
        let mut child: Value =
            serde_saphyr::from_str(self.0).map_err(|error| wrong(format!("the template: {error}")))?;
        let values =
            serde_json::to_value(values).map_err(|error| wrong(format!("the template's values: {error}")))?;
        fill(&mut child, &values).map_err(wrong)?;
        Ok(child)
    }
}

fn fill(place: &mut Value, values: &Value) -> Result<(), String> {
    match place {
        Value::String(text) => *place = filled(text, values)?,
        Value::Array(items) => items.iter_mut().try_for_each(|item| fill(item, values))?,
        Value::Object(fields) => fields.values_mut().try_for_each(|value| fill(value, values))?,
        _ => {}
    }
    Ok(())
}

fn filled(text: &str, values: &Value) -> Result<Value, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((path, behind)) = after.split_once('}') else {
            return Err(format!("the template: {text:?} has a blank without an end"));
        };
        let value = find(values, path)
            .ok_or_else(|| format!("the template: {text:?} names {path:?}, which is not among the values"))?;
        if before.is_empty() && behind.is_empty() && result.is_empty() {
            return Ok(value.clone());
        }
        result.push_str(before);
        match value {
            Value::String(value) => result.push_str(value),
            Value::Number(number) => result.push_str(&number.to_string()),
            Value::Bool(value) => result.push_str(if *value { "true" } else { "false" }),
            _ => return Err(format!("the template: {path:?} in {text:?} is not a plain value")),
        }
        rest = behind;
    }
    result.push_str(rest);
    Ok(Value::String(result))
}

fn find<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim()
        .split('.')
        .try_fold(values, |value, name| value.get(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ECHO: Template = Template::new(
        "{kind: Pod, metadata: {name: '${name}-${n}'}, spec: {containers: [{image: '${spec.image}', args: '${args}', plain: $5}]}}",
    );

    #[test]
    fn a_blank_alone_is_the_value_itself_and_one_in_a_text_is_its_text() {
        let values = json!({"name": "a", "n": 3, "spec": {"image": "x: {y}"}, "args": ["1", 2]});
        assert_eq!(
            ECHO.fill(&values).unwrap(),
            json!({
                "kind": "Pod", "metadata": {"name": "a-3"},
                "spec": {"containers": [{"image": "x: {y}", "args": ["1", 2], "plain": "$5"}]},
            })
        );
    }

    #[test]
    fn a_value_that_is_missing_or_does_not_fit_is_named() {
        let failure = |template: &'static str| {
            let values = json!({"list": []});
            match Template::new(template).fill(&values) {
                Err(Failure::Invalid(invalid)) => invalid.message,
                other => panic!("{other:?}"),
            }
        };
        assert!(failure("a: '${spec.image}'").contains("\"spec.image\""));
        assert!(failure("a: 'b ${list}'").contains("\"list\""));
        assert!(failure("a: 'b ${list'").contains("without an end"));
        assert!(failure("a: [").contains("the template"));
    }
}
