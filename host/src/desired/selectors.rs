//! Matches objects against a need: by name, namespace and label selector.

use std::sync::Arc;

use kube::core::{DynamicObject, Expression, Selector, SelectorExt};

use crate::object::NamespacedName;
use crate::plugin::contract::{Kind, Need};

/// Reports whether a parent's need selects an object.
#[must_use]
pub fn selects(need: &Need, parent: &NamespacedName, kind: &Kind, object: &DynamicObject) -> bool {
    let namespace = need.namespace.as_ref().or(parent.namespace.as_ref());
    let empty = std::collections::BTreeMap::new();
    need.kind == kind.kind
        && need.api_version == kind.api_version
        && need
            .name
            .as_ref()
            .is_none_or(|name| object.metadata.name.as_ref() == Some(name))
        && (object.metadata.namespace.is_none() || object.metadata.namespace.as_ref() == namespace)
        && selector(need)
            .is_ok_and(|selector| selector.matches(object.metadata.labels.as_ref().unwrap_or(&empty)))
}

/// Returns the label selector of a need.
///
/// # Errors
/// Why it is invalid.
pub fn selector(need: &Need) -> Result<Selector, String> {
    let expressions = parse_expressions(need.label_selector.as_deref().unwrap_or_default());
    Ok(expressions?.into_iter().collect())
}

/// A parsed label selector.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) selector: Arc<Selector>,
    /// A label, with its value, that an object must have to be selected, if there is one.
    pub(crate) required: Option<(String, String)>,
}

impl Parsed {
    /// Parses the text of a label selector, or returns why it is invalid.
    pub(crate) fn of(text: &str) -> Result<Self, String> {
        let expressions = parse_expressions(text)?;
        let required = expressions.iter().find_map(|expression| match expression {
            Expression::Equal(key, value) => Some((key.clone(), value.clone())),
            _ => None,
        });
        Ok(Self {
            selector: Arc::new(expressions.into_iter().collect()),
            required,
        })
    }
}

/// Parses the syntax of `kubectl get -l`: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
fn parse_expressions(text: &str) -> Result<Vec<Expression>, String> {
    let mut expressions = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // A comma within parentheses belongs to the set.
        let mut depth = 0;
        let end = rest.find(|c: char| {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            c == ',' && depth <= 0
        });
        let (one, after) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
        expressions.push(parse_expression(one.trim())?);
        rest = after.trim_start();
    }
    Ok(expressions)
}

fn parse_expression(text: &str) -> Result<Expression, String> {
    let key = |key: &str| {
        let key = key.trim();
        let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if key.is_empty() || !key.chars().all(is_key) {
            return Err(format!("{key:?} is not a label's key"));
        }
        Ok(key.to_owned())
    };
    if let Some((left, right)) = text.split_once("!=") {
        return Ok(Expression::NotEqual(key(left)?, right.trim().to_owned()));
    }
    if let Some((left, right)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Expression::Equal(key(left)?, right.trim().to_owned()));
    }
    if let Some((left, set)) = text.split_once('(') {
        let set = set
            .trim_end()
            .strip_suffix(')')
            .ok_or("a set must end with ')'")?;
        let values = set.split(',').map(|value| value.trim().to_owned()).collect();
        let (left, operator) = left
            .trim_end()
            .rsplit_once(char::is_whitespace)
            .ok_or("a set needs `in` or `notin`")?;
        return match operator {
            "in" => Ok(Expression::In(key(left)?, values)),
            "notin" => Ok(Expression::NotIn(key(left)?, values)),
            other => Err(format!("{other:?} is neither `in` nor `notin`")),
        };
    }
    match text.strip_prefix('!') {
        Some(absent) => Ok(Expression::DoesNotExist(key(absent)?)),
        None => Ok(Expression::Exists(key(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_as_kubectl_reads_them() {
        let labels = |text: &str| {
            text.split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.into(), v.into()))
                .collect()
        };
        let cases = [
            ("", "a=1", true),
            ("a=1", "a=1", true),
            ("a==1,b!=2", "a=1,b=3", true),
            ("a=1,b!=2", "a=1,b=2", false),
            ("a in (1, 2),b", "a=2,b=", true),
            ("a notin (1,2)", "a=2", false),
            ("!a", "a=1", false),
            ("!a", "b=1", true),
            ("app.kubernetes.io/name", "b=1", false),
        ];
        for (selector, on, expected) in cases {
            let parsed = Parsed::of(selector).unwrap();
            assert_eq!(
                parsed.selector.matches(&labels(on)),
                expected,
                "{selector} on {on}"
            );
        }
        for bad in ["=1", "a b", "a of (1)", "a in (1", "in (1)"] {
            assert!(Parsed::of(bad).is_err(), "{bad}");
        }
    }
}
