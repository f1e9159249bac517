//! Paths of fields in an object: of a field that is there, and as people write them, such as `spec.replicas`,
//! `data["app.properties"]` and `spec.containers[name=app].resources`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value};

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The field of this name.
    Field(String),
    /// This element of a list, or the one with these fields. It is shared because paths are copied, and an element and those
    /// within it may be large.
    Element(Arc<Value>),
}

impl Step {
    /// Reports whether it is the step to this element of a list. People write every value as text.
    pub fn selects(&self, element: &Value) -> bool {
        let Self::Element(wanted) = self else { return false };
        let Value::Object(wanted) = &**wanted else {
            return **wanted == *element;
        };
        wanted.iter().all(|(key, wanted)| {
            let found = &element[key];
            wanted == found
                || wanted
                    .as_str()
                    .is_some_and(|wanted| !found.is_string() && *wanted == format!("{found}"))
        })
    }

    /// Returns what is one step below a value.
    pub fn find<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        match self {
            Self::Field(name) => value.get(name),
            Self::Element(_) => value.as_array()?.iter().find(|element| self.selects(element)),
        }
    }

    /// As [`Step::find`].
    pub fn find_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        match self {
            Self::Field(name) => value.get_mut(name),
            Self::Element(_) => {
                let mut elements = value.as_array_mut()?.iter_mut();
                elements.find(|element| self.selects(element))
            }
        }
    }
}

/// The path of a field, from the root of its object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldPath(pub Vec<Step>);

impl FieldPath {
    /// Returns the path of a field of this object.
    #[must_use]
    pub fn field(mut self, name: &str) -> Self {
        self.0.push(Step::Field(name.to_owned()));
        self
    }

    /// Returns the path of an element of this list.
    #[must_use]
    pub fn element(mut self, element: &Value) -> Self {
        self.0.push(Step::Element(Arc::new(element.clone())));
        self
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if !name.chars().all(is_plain) => write!(f, "[{name:?}]")?,
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Element(element) => {
                    let fields = || element.as_object().into_iter().flatten();
                    let name = fields().find(|(key, _)| *key == "name");
                    let is_plain = |value: &Value| value.is_string() || value.is_number();
                    match name.or_else(|| fields().find(|(_, value)| is_plain(value))) {
                        Some((key, Value::String(value))) => write!(f, "[{key}={value}]")?,
                        Some((key, value)) => write!(f, "[{key}={value}]")?,
                        None if is_plain(element) => write!(f, "[{element}]")?,
                        None => f.write_str("[]")?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// A path with the text that somebody wrote. It begins and ends with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPath {
    /// The steps from the root of the object.
    pub steps: Vec<Step>,
    text: Box<str>,
}

impl WrittenPath {
    /// Reports whether it is the field of another path, or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.steps.starts_with(&other.steps)
    }
}

impl FromStr for WrittenPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match steps(text.trim()) {
            Some((steps, "")) => Ok(Self {
                steps,
                text: text.trim().into(),
            }),
            _ => Err(format!(
                "{text:?} is not the path of a field; write one such as `spec.replicas`, `metadata.labels[\"example.com/a\"]` or \
                 `spec.containers[name=app].resources`"
            )),
        }
    }
}

impl fmt::Display for WrittenPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses a list of paths, with commas between them.
///
/// # Errors
/// The text that is no path.
pub fn parse(text: &str) -> Result<Vec<WrittenPath>, &str> {
    let mut paths = Vec::new();
    let mut rest = text.trim();
    loop {
        let (path, after) = steps(rest).ok_or(rest)?;
        paths.push(WrittenPath {
            steps: path,
            text: rest[..rest.len() - after.len()].trim().into(),
        });
        match after.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if after.is_empty() => return Ok(paths),
            None => return Err(rest),
        }
    }
}

/// Returns the steps of the first path and the text after it. A name that has dots is a JSON string in brackets, and an element
/// its keys in brackets.
fn steps(text: &str) -> Option<(Vec<Step>, &str)> {
    let (mut steps, mut rest) = (Vec::new(), text);
    while steps.is_empty() || rest.starts_with(['.', '[']) {
        if let Some(within) = rest.strip_prefix('[') {
            let (step, after) = match within.trim_start().starts_with('"') {
                true => string(within).map(|(name, after)| (Step::Field(name), after))?,
                false => keys(within)?,
            };
            steps.push(step);
            rest = after.trim_start().strip_prefix(']')?.trim_start();
        } else {
            let start = if steps.is_empty() { rest } else { &rest[1..] };
            let end = start.find(['.', '[', ',']).unwrap_or(start.len());
            rest = &start[end..];
            steps.push(Step::Field(start[..end].trim().to_owned()));
        }
    }
    let is_field = |step: Option<&Step>| matches!(step, Some(Step::Field(_)));
    let is_empty = |step: &Step| matches!(step, Step::Field(name) if name.is_empty());
    let is_path = is_field(steps.first()) && is_field(steps.last()) && !steps.iter().any(is_empty);
    is_path.then_some((steps, rest))
}

/// Returns the JSON string that a text begins with, and the text after it.
fn string(text: &str) -> Option<(String, &str)> {
    let mut strings = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let string = strings.next()?.ok()?;
    Some((string, &text[strings.byte_offset()..]))
}

/// Returns the keys of an element, such as `port=53,protocol="TCP"`, and the text after them.
fn keys(text: &str) -> Option<(Step, &str)> {
    let (mut keys, mut rest) = (Map::new(), text);
    loop {
        let (key, after) = rest.split_once('=')?;
        let (value, after) = match after.starts_with('"') {
            true => string(after)?,
            false => {
                let end = after.find([',', ']'])?;
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        let key = key.trim();
        if key.is_empty() || key.contains(['[', ']', ',']) || value.is_empty() || keys.contains_key(key) {
            return None;
        }
        keys.insert(key.to_owned(), value.into());
        match after.trim_start().strip_prefix(',') {
            Some(more) => rest = more,
            None => return Some((Step::Element(Arc::new(keys.into())), after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_dots_is_a_string_in_brackets() {
        let names = |text| {
            let word = |step: &Step| match step {
                Step::Field(name) => name.clone(),
                Step::Element(keys) => {
                    let keys = keys.as_object().into_iter().flatten();
                    let keys = keys.map(|(key, value)| format!("{key}:{}", value.as_str().unwrap()));
                    keys.collect::<Vec<_>>().join("&")
                }
            };
            let words = |steps: &[Step]| steps.iter().map(word).collect::<Vec<_>>().join("|");
            let paths = parse(text).map(|paths| paths.iter().map(|path| words(&path.steps)).collect());
            paths as Result<Vec<_>, _>
        };
        let two = names("spec.replicas, data[\"app.properties\"]").unwrap();
        assert_eq!(two, ["spec|replicas", "data|app.properties"]);
        let mixed = names("[\"a\"] [\"b,]\\\"c\"].d,e").unwrap();
        assert_eq!(mixed, ["a|b,]\"c|d", "e"]);
        let keyed = names("spec.ports[port=53, protocol=UDP].nodePort, a[name=\"b,]\"].c").unwrap();
        assert_eq!(
            keyed,
            ["spec|ports|port:53&protocol:UDP|nodePort", "a|name:b,]|c"]
        );
        for bad in [
            "a[name=b]",
            "[name=b].c",
            "a[name=].c",
            "a[=b].c",
            "a[name=b,name=c].d",
            "a[name=b",
            "",
            "a,",
            "a..b",
            "a.",
            ".a",
            "data[app]",
            "data['a']",
            "data[\"a\"",
            "data[\"\"]",
            "data[\"a\"]b",
        ] {
            assert!(names(bad).is_err(), "{bad}");
        }
        let path = |text: &str| text.parse::<WrittenPath>().unwrap();
        assert!(path("a[b=1,c=2].d.e").is_within(&path("a[c=2, b=1].d")));
        assert_eq!(parse("a, b[").unwrap_err(), "b[");
        assert_eq!(parse("a , b[\"c\"]").unwrap()[1].to_string(), "b[\"c\"]");
    }
}
