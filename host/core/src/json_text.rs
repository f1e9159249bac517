//! Reads parts of JSON text without parsing the rest, and writes JSON that is YAML, too.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::error::Category;
use serde_json::value::{RawValue, to_raw_value};

/// Describes why a text is not the expected JSON, without quoting it: an error of serde_json would quote values of any
/// length, and they may be secret.
pub fn unquoted(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        Category::Data => "a field is missing or has another form",
        Category::Io | Category::Syntax | Category::Eof => "it is not JSON",
    };
    format!("{what} (line {}, column {})", error.line(), error.column())
}

/// The most members that [`members`] reads. An object of Kubernetes has some ten, and each takes more memory than its text.
const MEMBERS: usize = 1000;

/// The members of a JSON object by name, each value as its text.
pub type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Reads the members of a JSON object.
///
/// # Errors
/// When the text is not a JSON object, or has more than a thousand members.
pub fn members(text: &str) -> Result<Members<'_>, String> {
    object(text).map(|Few(members)| members)
}

struct Few<'a>(Members<'a>);

impl<'de> Deserialize<'de> for Few<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self(Members::new()))
    }
}

impl<'de> Visitor<'de> for Few<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((name, value)) = map.next_entry()? {
            if self.0.len() == MEMBERS {
                return Err(A::Error::custom(format!("it has more than {MEMBERS} members")));
            }
            self.0.insert(name, value);
        }
        Ok(self)
    }
}

/// Reads a JSON object into a type whose fields are texts, numbers and [`RawValue`]s: what is nested deeper is read by
/// another call, so that nothing recurses and no error quotes a value of any length.
///
/// # Errors
/// When the text is not a JSON object, or lacks a field.
pub fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    // Serde would also take a list for a struct, and quote all of a string.
    if !text.trim_start().starts_with('{') {
        return Err("it is not a JSON object".to_owned());
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Returns a value as JSON that a YAML parser reads as the same value: the API server parses the body of an apply as YAML,
/// where some characters are not allowed or end a line.
///
/// # Errors
/// When the value cannot be written as JSON.
pub fn as_yaml(value: &Value) -> serde_json::Result<Box<RawValue>> {
    let json = to_raw_value(value)?;
    if !json.get().contains(is_special_in_yaml) {
        return Ok(json);
    }
    let mut escaped = String::with_capacity(json.get().len() + 64);
    // Outside of strings, JSON has none of them.
    for c in json.get().chars() {
        match is_special_in_yaml(c) {
            // Writing to a string cannot fail.
            true => drop(write!(escaped, "\\u{:04x}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    RawValue::from_string(escaped)
}

/// Reports whether a YAML parser refuses a character that JSON allows, or takes it for the end of a line. Source: YAML
/// 1.1, sections 5.1 and 5.4.
const fn is_special_in_yaml(c: char) -> bool {
    matches!(
        c,
        '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the members of one body of 15 MiB could take 200 MB.
    #[test]
    fn an_object_has_a_limited_number_of_members() {
        let with = |count: usize| {
            let members: Vec<_> = (0..count).map(|number| format!("\"{number}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(members(&with(MEMBERS)).unwrap().len(), MEMBERS);
        let error = members(&with(MEMBERS + 1)).unwrap_err();
        assert!(error.contains("more than 1000 members"), "{error}");
        assert!(members("[]").is_err() && members("\"{\"").is_err());
    }
}
