//! Finds values in the text of a JSON document without making a tree of it.
//!
//! A plugin asks an object of the cluster for three or four fields of a hundred: to allocate all of them was half of
//! what a call takes. Eight bytes are looked at in one step, since each turn of a loop in WebAssembly also asks
//! whether the call's time is over.
//!
//! The text is JSON by the contract. Of another text, something or nothing is found; nothing panics.

/// There is an escape in a name or in a text that was asked for: the document must be read in full.
#[derive(Debug, PartialEq)]
pub(crate) struct Escaped;

/// What stands in a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item<'a> {
    /// As it stands there, a text with its quotes.
    pub(crate) json: &'a str,
    /// Whether it is a text with escapes.
    pub(crate) escaped: bool,
}

impl<'a> Item<'a> {
    /// What a text says; of a value that is no text, nothing.
    pub(crate) fn string(self) -> Result<Option<&'a str>, Escaped> {
        if self.escaped {
            return Err(Escaped);
        }
        let inside = self.json.strip_prefix('"');
        Ok(inside.and_then(|rest| rest.strip_suffix('"')))
    }

    /// The number that stands here, when it is digits alone and not too many; else nothing.
    pub(crate) fn integer(self) -> Option<i64> {
        // Not `parse`: its errors and overflows are half a kilobyte of a plugin.
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

    /// A member of an object; of a value that is no object, nothing.
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

/// The members of an object, in their order; of a value that is no object, none.
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

/// The elements of an array; of a value that is no array, none.
pub(crate) fn elements(array: &str) -> impl Iterator<Item = Item<'_>> {
    Items::of(array, b'[')
}

/// The values in an array or object, a member's name and its value one after the other.
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

    /// The next eight bytes, the first one lowest; zeros behind the last, and zero at the end.
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

    /// From behind a quote to behind the one that ends the text. Whether there are escapes between them.
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

    /// From behind the brace or bracket that opens something to behind the one that closes it.
    fn end_of_nested(&mut self) -> Option<()> {
        // This bit apart, brackets are braces.
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
                        // What is escaped may be in the next word.
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

/// The highest bit of each byte of the word that is this one, which is ASCII.
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

    /// Every value in the document is found by its name or place, and is what the reader of the tree says.
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
        // Texts of each length, and with what has a meaning outside of them.
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
