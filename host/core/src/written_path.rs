//! Paths of fields as people write them, such as `spec.replicas`, `data["app.properties"]` and
//! `spec.containers[name=app].resources`.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A step on the way to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The field of this name.
    Field(String),
    /// The element of a list with these keys and values.
    Element(Vec<(String, String)>),
}

impl Step {
    /// Reports whether an element has these keys, or is none.
    #[must_use]
    pub fn selects(&self, element: &Value) -> bool {
        let Self::Element(keys) = self else { return false };
        keys.iter().all(|(key, wanted)| match &element[key] {
            Value::String(value) => value == wanted,
            value => *wanted == format!("{value}"),
        })
    }

    /// Returns what is one step below a value.
    #[must_use]
    pub fn find<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        match self {
            Self::Field(name) => value.get(name),
            Self::Element(_) => value.as_array()?.iter().find(|element| self.selects(element)),
        }
    }

    /// As [`Step::find`].
    #[must_use]
    pub fn find_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        match self {
            Self::Field(name) => value.get_mut(name),
            Self::Element(_) => value
                .as_array_mut()?
                .iter_mut()
                .find(|element| self.selects(element)),
        }
    }
}

/// One path, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPath {
    steps: Vec<Step>,
    text: Box<str>,
}

impl WrittenPath {
    /// Returns the steps, of which the first and the last are fields.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Reports whether it is the field of another path, or below it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.steps.starts_with(&other.steps)
    }
}

impl FromStr for WrittenPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match path(text.trim()) {
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
        let (steps, after) = path(rest).ok_or(rest)?;
        paths.push(WrittenPath {
            steps,
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
/// its keys in brackets. A path begins and ends with a field.
fn path(text: &str) -> Option<(Vec<Step>, &str)> {
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
            let start = if steps.is_empty() {
                rest
            } else {
                rest.strip_prefix('.')?
            };
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
    let (mut keys, mut rest) = (Vec::new(), text);
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
        if key.is_empty() || key.contains(['[', ']', ',']) || value.is_empty() {
            return None;
        }
        keys.push((key.to_owned(), value));
        match after.trim_start().strip_prefix(',') {
            Some(more) => rest = more,
            None => return Some((Step::Element(keys), after)),
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
                    let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}:{value}")).collect();
                    keys.join("&")
                }
            };
            let words = |steps: &[Step]| steps.iter().map(word).collect::<Vec<_>>().join("|");
            let paths = parse(text).map(|paths| paths.iter().map(|path| words(path.steps())).collect());
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
        assert_eq!(parse("a, b[").unwrap_err(), "b[");
        assert_eq!(parse("a , b[\"c\"]").unwrap()[1].to_string(), "b[\"c\"]");
    }
}
