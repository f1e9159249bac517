//! Reads parts of JSON text without parsing the rest, and writes JSON that is YAML, too.

use std::fmt::Write as _;

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

/// Returns the member of a JSON object with this name.
pub fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    members(object)
        .find(|(key, _)| key == name)
        .map(|(_, value)| value)
}

/// Returns the members of a JSON object, each value as its text; none when the value is not an object.
pub fn members(object: &str) -> Members<'_> {
    let at = object.find('{').map_or(object.len(), |open| open + 1);
    let is_object = object.trim_start().starts_with('{');
    Members {
        text: object,
        at: if is_object { at } else { object.len() },
    }
}

/// The members of a JSON object that are left.
pub struct Members<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Members<'a> {
    type Item = (String, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let between = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b':');
        let bytes = self.text.as_bytes();
        let start = skip(bytes, self.at, between);
        if bytes.get(start) != Some(&b'"') {
            self.at = bytes.len();
            return None;
        }
        let end = end_of_value(bytes, start);
        let key = self.text.get(start..end)?;
        // A lone surrogate such as "\ud800" is not a valid string: such a key is compared as written.
        let key = serde_json::from_str(key).unwrap_or_else(|_| key.to_owned());
        let start = skip(bytes, end, between);
        let end = end_of_value(bytes, start);
        self.at = end;
        Some((key, self.text.get(start..end)?))
    }
}

fn skip(bytes: &[u8], from: usize, what: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| what(**byte)).count()
}

/// Returns the end of the value that begins at `start`.
fn end_of_value(bytes: &[u8], start: usize) -> usize {
    let value = bytes.get(start..).unwrap_or_default();
    let is_string = value.first() == Some(&b'"');
    let mut depth = 0_usize;
    for (at, byte) in outside_strings(value) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 1 => depth -= 1,
            b'}' | b']' if depth == 1 => return start + at + 1,
            b'"' if is_string && at > 0 => return start + at + 1,
            // A number or a literal ends at the next delimiter.
            b'}' | b']' | b',' if depth == 0 => return start + at,
            _ if depth == 0 && byte.is_ascii_whitespace() => return start + at,
            _ => {}
        }
    }
    bytes.len()
}

/// Returns how deep valid JSON is nested.
pub fn levels(text: &str) -> usize {
    let (mut level, mut most) = (0_usize, 0);
    for (_, byte) in outside_strings(text.as_bytes()) {
        match byte {
            b'[' | b'{' => {
                level += 1;
                most = most.max(level);
            }
            b']' | b'}' => level = level.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// Returns the bytes of valid JSON that are not within a string, with their places. The quotes of strings are among them.
pub fn outside_strings(text: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.iter().copied().enumerate().filter(move |(_, byte)| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => {
                is_quoted = !is_quoted;
                return true;
            }
            _ => {}
        }
        !is_quoted
    })
}

/// The text of a JSON object that is being written.
pub struct ObjectText(String);

impl ObjectText {
    /// Returns an empty object with space for this many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        let mut text = String::with_capacity(bytes + 64);
        text.push('{');
        Self(text)
    }

    /// Adds a member with the text of its value.
    pub fn add(&mut self, key: &str, value: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{}:{value}", Value::from(key));
    }

    /// Returns the text of the whole object.
    #[must_use]
    pub fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
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
            true => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{:04x}", u32::from(c));
            }
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
