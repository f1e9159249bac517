//! Finds values in the text of a JSON document without parsing it into a tree.
//!
//! A plugin reads three or four of an object's hundred fields, and allocating all of them took half of a call's
//! time. The scanner processes eight bytes at a time, since each loop iteration in WebAssembly also checks the
//! call's time limit.
//!
//! The text is JSON by contract. In any other text, something or nothing is found, but nothing panics.

/// A name or a requested string contains an escape: the document must be parsed completely.
#[derive(Debug, PartialEq)]
pub(crate) struct Escaped;

/// A value in a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item<'a> {
    /// Its text, including the quotes of a string.
    pub(crate) json: &'a str,
    /// Whether it is a string with escapes.
    pub(crate) escaped: bool,
}

impl<'a> Item<'a> {
    /// Returns the content of a string; `None` for any other value.
    pub(crate) fn string(self) -> Result<Option<&'a str>, Escaped> {
        if self.escaped {
            return Err(Escaped);
        }
        let inside = self.json.strip_prefix('"');
        Ok(inside.and_then(|rest| rest.strip_suffix('"')))
    }

    /// Returns the number if it consists of digits only and is not too long; otherwise `None`.
    pub(crate) fn integer(self) -> Option<i64> {
        // Not `parse`: its error and overflow handling add half a kilobyte to a plugin.
        const DIGITS: usize = 18;
        if self.json.len() > DIGITS {
            return None;
        }
        self.json.bytes().try_fold(0, |number, digit| {
            digit
                .is_ascii_digit()
                .then(|| number * 10 + i64::from(digit - b'0'))
        })
    }

    /// Returns a member of an object; `None` for any other value.
    pub(crate) fn member(self, name: &str) -> Result<Option<Self>, Escaped> {
        let mut escaped = false;
        for member in members(self.json) {
            match member.name.string() {
                Ok(found) if found == Some(name) => return Ok(Some(member.value)),
                Ok(_) => {}
                Err(Escaped) => escaped = true,
            }
        }
        if escaped { Err(Escaped) } else { Ok(None) }
    }
}

/// One member of an object.
#[derive(Debug, PartialEq)]
pub(crate) struct Member<'a> {
    pub(crate) name: Item<'a>,
    pub(crate) value: Item<'a>,
}

/// Returns the members of an object in order; none for any other value.
pub(crate) fn members(object: &str) -> impl Iterator<Item = Member<'_>> {
    Members(Items::of(object, b'{'))
}

struct Members<'a>(Items<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let items = &mut self.0;
        let name = items.next()?;
        items.blank();
        if items.byte() != Some(b':') {
            return None;
        }
        items.at += 1;
        let value = items.next()?;
        Some(Member { name, value })
    }
}

/// Returns the elements of an array; none for any other value.
pub(crate) fn elements(array: &str) -> impl Iterator<Item = Item<'_>> {
    Items::of(array, b'[')
}

/// The values in an array or object; a member's name and value are separate items.
struct Items<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Items<'a> {
    fn of(text: &'a str, open: u8) -> Self {
        let mut items = Self { text, at: 0 };
        items.blank();
        match items.byte() {
            Some(byte) if byte == open => items.at += 1,
            _ => items.at = text.len(),
        }
        items
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Returns the next eight bytes, the first one lowest; padded with zeros at the end.
    #[inline(always)]
    fn word(&self) -> u64 {
        match self.text.as_bytes().get(self.at..self.at + 8) {
            Some(&[a, b, c, d, e, f, g, h]) => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => self.last_word(),
        }
    }

    #[inline(never)]
    fn last_word(&self) -> u64 {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let rest = rest.iter().rev();
        rest.fold(0, |word, &byte| word << 8 | u64::from(byte))
    }

    /// Advances from after the opening quote to after the closing one. Returns whether the string contains escapes.
    fn end_of_string(&mut self) -> Option<bool> {
        let mut escaped = false;
        loop {
            let word = self.word();
            if word == 0 {
                return None;
            }
            let quotes = marks(word, b'"');
            let marks = quotes | marks(word, b'\\');
            if marks == 0 {
                self.at += 8;
                continue;
            }
            self.at += marks.trailing_zeros() as usize / 8 + 1;
            if quotes & lowest(marks) != 0 {
                return Some(escaped);
            }
            escaped = true;
            self.at += 1;
        }
    }

    /// Advances from after an opening brace or bracket to after the matching closing one.
    fn end_of_nested(&mut self) -> Option<()> {
        // Brackets and braces differ only in this bit.
        const BIT: u64 = ONES * 0x20;
        let mut depth = 1;
        let mut in_string = false;
        loop {
            let word = self.word();
            if word == 0 {
                return None;
            }
            let quotes = marks(word, b'"');
            let escapes = marks(word, b'\\');
            let opens = marks(word | BIT, b'{');
            let closes = marks(word | BIT, b'}');
            let mut left = quotes | escapes | opens | closes;
            let mut step = 8;
            while left != 0 {
                let mark = lowest(left);
                left ^= mark;
                if mark & quotes != 0 {
                    in_string = !in_string;
                } else if in_string {
                    if mark & escapes != 0 {
                        // The escaped byte may be in the next word.
                        step += usize::from(mark.leading_zeros() == 0);
                        left &= !(mark << 8);
                    }
                } else if mark & opens != 0 {
                    depth += 1;
                } else if mark & closes != 0 {
                    depth -= 1;
                    if depth == 0 {
                        self.at += mark.trailing_zeros() as usize / 8 + 1;
                        return Some(());
                    }
                }
            }
            self.at += step;
        }
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        self.blank();
        if self.byte() == Some(b',') {
            self.at += 1;
            self.blank();
        }
        let start = self.at;
        let mut escaped = false;
        match self.byte()? {
            b'"' => {
                self.at += 1;
                escaped = self.end_of_string()?;
            }
            b'{' | b'[' => {
                self.at += 1;
                self.end_of_nested()?;
            }
            b'}' | b']' => return None,
            _ => {
                while !matches!(
                    self.byte(),
                    None | Some(b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t')
                ) {
                    self.at += 1;
                }
            }
        }
        let json = self.text.get(start..self.at)?;
        Some(Item { json, escaped })
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// Sets the highest bit of each byte of the word that equals this ASCII byte.
fn marks(word: u64, byte: u8) -> u64 {
    const LOW: u64 = ONES * 0x7f;
    let others = word ^ (ONES * u64::from(byte));
    !((others & LOW).wrapping_add(LOW) | others | LOW)
}

fn lowest(marks: u64) -> u64 {
    marks & marks.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Checks that every value in the document is found by its name or position and equals the parsed one.
    fn same(item: Item, value: &Value) {
        let text = item.json;
        match value {
            Value::Object(map) => {
                assert_eq!(members(text).count(), map.len(), "{text}");
                for (name, value) in map {
                    match item.member(name) {
                        Ok(found) => same(found.unwrap(), value),
                        Err(Escaped) => assert!(text.contains('\\'), "{text}"),
                    }
                }
            }
            Value::Array(items) => {
                let found: Vec<_> = elements(text).collect();
                assert_eq!(found.len(), items.len(), "{text}");
                for (item, value) in found.into_iter().zip(items) {
                    same(item, value);
                }
            }
            Value::String(expected) => match item.string() {
                Ok(found) => assert_eq!(found, Some(expected.as_str())),
                Err(Escaped) => assert!(text.contains('\\'), "{text}"),
            },
            other => {
                assert_eq!(serde_json::from_str::<Value>(text).unwrap(), *other);
                assert_eq!(item.string(), Ok(None));
            }
        }
    }

    fn item(json: &str) -> Item<'_> {
        Item { json, escaped: false }
    }

    fn document() -> Value {
        // Strings of each length, with characters that have a meaning outside of them.
        let texts: Vec<String> = (0..20).map(|length| "{[\"\\]},:é".repeat(length)).collect();
        json!({
            "": {}, "a": [], "numbers": [0, -1, 1.5e300, u64::MAX], "words": [true, false, null],
            "texts": texts, "é": { "nested": [[[{ "deep": [{}, [], "]"] }]]] },
            "lengths": (0..20).map(|length| "x".repeat(length)).collect::<Vec<_>>(),
        })
    }

    #[test]
    fn every_value_is_found_in_compact_and_in_pretty_text() {
        let document = document();
        same(item(&document.to_string()), &document);
        same(item(&serde_json::to_string_pretty(&document).unwrap()), &document);
        let odd = json!({ "before": 1, "es\"caped": 2, "text": "es\"caped" }).to_string();
        assert_eq!(item(&odd).member("before"), Ok(Some(item("1"))));
        assert_eq!(item(&odd).member("missing"), Err(Escaped));
        assert_eq!(item(&odd).member("text").unwrap().unwrap().string(), Err(Escaped));
        assert_eq!(item("{\"a\": \"\"}").member("b"), Ok(None));
        let integers =
            ["0", "42", "-0", "1.0", "1e3", "null", "1000000000000000000"].map(|json| item(json).integer());
        assert_eq!(integers, [Some(0), Some(42), None, None, None, None, None]);
    }

    #[test]
    fn text_that_breaks_off_is_no_reason_to_panic() {
        let look = |text: &str| {
            let _ = members(text).count() + elements(text).count();
            let _ = (
                item(text).member("lengths"),
                item(text).string(),
                item(text).integer(),
            );
        };
        let text = document().to_string();
        (0..text.len())
            .filter(|end| text.is_char_boundary(*end))
            .for_each(|end| look(&text[..end]));
        for odd in [
            "", "\"", "\"\\", "{", "{\"", "{\"a\"", "{\"a\":", "[,,", "nul", "{:}", "{1:2}", "]", "{\"a\":}",
        ] {
            look(odd);
        }
    }
}
