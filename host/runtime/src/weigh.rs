//! How much a JSON text becomes, told without making anything of it.
//!
//! Eight bytes of text, `{"a":1},`, become 700 bytes in memory. So it is the values that are bounded, not only the
//! text, and they are counted before the first of them is made.

/// The JSON values in a text: objects, lists, texts, numbers and so on; names of fields are none. Of what is not JSON it
/// gives some number that is not larger than that of its bytes.
pub(crate) fn values(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut count = 1;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = end_of_string(bytes, at),
            b',' => count += 1,
            b'{' | b'[' if !closes(bytes, at) => count += 1,
            _ => {}
        }
    }
    count
}

/// Behind the end of the string whose first byte is at `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
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

/// Whether nothing comes before the end of the object or list.
fn closes(bytes: &[u8], at: usize) -> bool {
    let rest = bytes.get(at..).unwrap_or_default();
    let next = rest.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(next, Some(b'}' | b']'))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::values;

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
            assert_eq!(values(text), counted(&tree), "{text}");
        }
    }

    #[test]
    fn what_breaks_off_is_counted_too() {
        for text in ["", "\"", "\"\\", "[", "{\"a\":[1,", "]"] {
            assert!(values(text) <= text.len() + 1, "{text}");
        }
    }
}
