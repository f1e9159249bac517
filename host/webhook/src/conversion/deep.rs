//! Values that are nested deeper than plugins read: they are carried over. The plugin gets a text in place of each, and the
//! host puts it back. Otherwise one such object, which any of its namespace's users can make, would fail the conversion of
//! every list that has it.

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::BuildHasher as _;

use operator_host_core::json_text::outside_strings;
use operator_host_core::object::MAX_DEPTH;

/// Levels of an object that a plugin gets: its own, and those of its fields.
const READ: usize = MAX_DEPTH + 1;
/// The level of the values that are replaced. What is replaced has so many more levels that its text is always longer than
/// the text in its place.
const REPLACED: usize = 60;

/// The values that were taken out of an object.
#[derive(Debug)]
pub struct Deep {
    /// What the texts in their places begin with, each as a JSON string.
    mark: String,
    values: Vec<String>,
}

/// Takes the values out of an object that are nested too deep; `None` when there are none. The object must be valid JSON.
pub fn take_out(object: &mut String) -> Option<Deep> {
    let mut mark = String::new();
    let (mut rest, mut values, mut copied) = (String::new(), Vec::new(), 0);
    let (mut level, mut deepest, mut start) = (0_usize, 0, 0);
    for (at, byte) in outside_strings(object.as_bytes()) {
        match byte {
            b'{' | b'[' => {
                level += 1;
                if level == REPLACED {
                    (start, deepest) = (at, 0);
                }
                deepest = deepest.max(level);
            }
            b'}' | b']' => {
                if level == REPLACED && deepest > READ {
                    if values.is_empty() {
                        // Nobody who made the object can have foreseen it.
                        mark = format!("\"operator-host-deep-{:016x}-", RandomState::new().hash_one(at));
                    }
                    rest.push_str(object.get(copied..start)?);
                    // Writing to a string cannot fail.
                    let _ = write!(rest, "{mark}{}\"", values.len());
                    copied = at + 1;
                    values.push(object.get(start..copied)?.to_owned());
                }
                level = level.saturating_sub(1);
            }
            _ => {}
        }
    }
    if values.is_empty() {
        return None;
    }
    rest.push_str(object.get(copied..)?);
    *object = rest;
    Some(Deep { mark, values })
}

impl Deep {
    /// Puts the values back into the converted object, each once.
    ///
    /// # Errors
    /// When such a text is somewhere else, for example within another text: the value would be lost with it.
    pub fn put_back(mut self, converted: &str) -> Result<String, &'static str> {
        let mut object = String::with_capacity(converted.len());
        let mut pieces = converted.split(&self.mark);
        object.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            let value = piece.split_once('"').and_then(|(number, rest)| {
                let value = self.values.get_mut(number.parse::<usize>().ok()?)?;
                Some((std::mem::take(value), rest)).filter(|(value, _)| !value.is_empty())
            });
            match value {
                Some((value, rest)) => {
                    object.push_str(&value);
                    object.push_str(rest);
                }
                None => {
                    object.push_str(&self.mark);
                    object.push_str(piece);
                }
            }
        }
        match object.contains(self.mark.trim_start_matches('"')) {
            false => Ok(object),
            true => Err(
                "it has the text in place of a value that is nested too deep, `operator-host-deep-…`, twice or within another text",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(levels: usize, within: &str) -> String {
        format!("{}{within}{}", "[".repeat(levels), "]".repeat(levels))
    }

    #[test]
    fn what_is_too_deep_is_taken_out_and_put_back_wherever_it_is_then() {
        let deep = lists(5_000, r#""]\"[", {"a": [{}]}"#);
        for levels in [1, 60, MAX_DEPTH] {
            let mut object = format!(r#"{{"spec": {}}}"#, lists(levels, ""));
            assert!(take_out(&mut object).is_none(), "{levels}");
        }
        let before = format!(
            r#"{{"a\"[": 1, "spec": {{"b": {deep}, "c": [1, {deep}]}}, "d": {}}}"#,
            lists(120, "1")
        );
        let mut object = before.clone();
        let taken = take_out(&mut object).unwrap();
        assert_eq!(taken.values.len(), 2);
        let read: serde_json::Value = serde_json::from_str(&object).unwrap();
        assert_eq!(read["spec"]["c"][0], 1);
        assert!(object.len() < before.len());
        let moved = object.replace("spec", "other");
        assert_eq!(taken.put_back(&moved).unwrap(), before.replace("spec", "other"));
    }

    #[test]
    fn a_text_is_no_longer_than_what_it_replaces() {
        let smallest = lists(READ + 1 - 58, "");
        let within = vec![smallest.as_str(); 10_000].join(",");
        let mut object = format!(r#"{{"spec": {}}}"#, lists(57, &within));
        let before = object.len();
        let taken = take_out(&mut object).unwrap();
        assert_eq!(taken.values.len(), 10_000);
        assert!(object.len() < before, "{} of {before}", object.len());
    }

    #[test]
    fn a_value_that_would_be_lost_is_an_error_and_one_that_the_plugin_drops_is_not() {
        let converted = |answer: &dyn Fn(&str) -> String| {
            let mut object = lists(200, "");
            let taken = take_out(&mut object).unwrap();
            taken.put_back(&answer(object.trim_matches(['[', ']'])))
        };
        assert_eq!(
            converted(&|text| format!("[{text}]")),
            Ok(format!("[{}]", lists(200 - 59, "")))
        );
        assert_eq!(converted(&|_| "[]".to_owned()), Ok("[]".to_owned()));
        for answer in [
            &|text: &str| format!("[{text},{text}]") as String,
            &|text: &str| text.replace("-0\"", "-1\""),
            &|text: &str| text.replace("-0\"", "-0"),
            // In an annotation, for the way back.
            &|text: &str| serde_json::Value::from(text).to_string(),
        ] as [&dyn Fn(&str) -> String; 4]
        {
            assert!(converted(answer).is_err());
        }
    }
}
