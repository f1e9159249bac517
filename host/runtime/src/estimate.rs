//! Estimates the memory of a JSON text without parsing it into values.
//!
//! Eight bytes of text, `{"a":1},`, become 700 bytes in memory. So the number of values is limited as well as
//! the text, and they are counted before the first is created.

/// The size of a JSON text in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The JSON values in it: objects, lists, texts, numbers and so on, without field names. For invalid JSON
    /// this is some number, at most one more than the number of its bytes.
    pub values: usize,
    /// An upper bound for the memory of its tree, in bytes.
    pub bytes: usize,
    /// How deep objects and lists are nested.
    pub levels: usize,
}

/// Estimates the size of a JSON text.
#[must_use]
pub fn estimate(text: &str) -> Estimate {
    /// A value that is in no list or map.
    const VALUE: usize = 32;
    /// A map with one entry has capacity for eleven.
    const MAP: usize = 704;
    /// A list with one value has capacity for four.
    const LIST: usize = 160;
    /// A value, twice, because lists double when they grow; and the allocator's overhead of a short text.
    const MORE: usize = 128;
    let bytes = text.as_bytes();
    let mut estimate = Estimate {
        values: 1,
        bytes: VALUE + bytes.len(),
        levels: 0,
    };
    let (mut at, mut level) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => level += 1,
            b'}' | b']' => level = level.saturating_sub(1),
            _ => {}
        }
        estimate.levels = estimate.levels.max(level);
        let more = match byte {
            b'"' => {
                at = end_of_string(bytes, at);
                continue;
            }
            b',' => MORE,
            b'{' if !closes(bytes, at) => MAP,
            b'[' if !closes(bytes, at) => LIST,
            _ => continue,
        };
        estimate.values += 1;
        estimate.bytes = estimate.bytes.saturating_add(more);
    }
    estimate
}

/// Returns the position after the string whose first byte is at `at`.
pub(crate) fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => return at,
            b'\\' => at += 1,
            _ => {}
        }
    }
    at
}

/// Whether the object or list ends before any value.
fn closes(bytes: &[u8], at: usize) -> bool {
    let rest = bytes.get(at..).unwrap_or_default();
    let next = rest.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(next, Some(b'}' | b']'))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn counted(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(counted).sum(),
            Value::Object(fields) => fields.values().map(counted).sum(),
            _ => 0,
        }
    }

    #[test]
    fn as_many_values_are_counted_as_a_tree_of_the_text_has() {
        let texts = [
            "7",
            "\"a,b:[c]\"",
            "{}",
            "[ ]",
            "[[],{},[{}]]",
            r#"{"a":1,"b":[1,2,{"c":null}],"d":"x,\"{y","e\\":{"f":[]}}"#,
            "[\"\\\\\",\"\\\"\",\"\u{fc},\"]",
            " { \"a\" : [ 1 , 2 ] , \"b\" : { } } ",
        ];
        for text in texts {
            let tree: Value = serde_json::from_str(text).unwrap();
            assert_eq!(estimate(text).values, counted(&tree), "{text}");
        }
    }

    #[test]
    fn what_breaks_off_is_counted_too() {
        for text in ["", "\"", "\"\\", "[", "{\"a\":[1,", "]"] {
            assert!(estimate(text).values <= text.len() + 1, "{text}");
        }
    }

    #[test]
    fn the_bytes_are_an_upper_bound_for_what_is_made_to_be_large_and_kind_to_what_people_write() {
        for small in ["{}", "[]", "7", "\"\""] {
            let value: Value = serde_json::from_str(small).unwrap();
            assert!(estimate(small).bytes >= memory_of(&value), "{small}");
        }
        let deep = format!("{}1{},", "{\"a\":".repeat(100), "}".repeat(100));
        for dense in ["[],", "{\"a\":1},", "[[1]],", "0,", "\"\",", &deep] {
            let text = format!("[{}0]", dense.repeat(300_000 / dense.len()));
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(estimate(&text).bytes >= memory_of(&value), "{dense}");
        }
        let kind = r#"{"a": "{[,\"{[,"}"#;
        assert_eq!(estimate(kind).bytes, 32 + kind.len() + 704);
    }

    /// The memory of the tree: the leaves of maps, and the capacity of lists and texts.
    fn memory_of(value: &Value) -> usize {
        let own = size_of::<Value>();
        match value {
            Value::Object(map) => {
                let leaf = 11 * (size_of::<String>() + own) + 16;
                let keys = map
                    .iter()
                    .map(|(key, value)| key.capacity() + memory_of(value) - own);
                own + map.len().div_ceil(5) * leaf + keys.sum::<usize>()
            }
            Value::Array(list) => {
                let values = list.iter().map(|value| memory_of(value) - own);
                own + list.capacity() * own + values.sum::<usize>()
            }
            Value::String(text) => own + text.capacity(),
            _ => own,
        }
    }
}
