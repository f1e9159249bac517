//! Serializes to JSON text with little code.
//!
//! A type such as those of k8s-openapi has hundreds of fields, and each contains a copy of what the serializer does for a
//! field. Here that is a call of a function that all of them share: text is appended to a string, and there are no errors
//! to pass on.

use std::fmt::{self, Display};

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Returns the JSON text of a value, as `serde_json::to_string` does. `what` names the value in a message.
///
/// Panics when JSON cannot represent the value: a map whose keys are not strings, or a number that is not finite. It is a
/// bug of the plugin, and the host reports the panic with its message.
pub(crate) fn json(what: &str, value: &impl Serialize) -> String {
    // Before the value, so that it is there for a message.
    let mut text = what.to_owned();
    let Ok(()) = value.serialize(Text(&mut text));
    text.split_off(what.len())
}

/// Panics about a number at the end of what is written.
#[cold]
#[inline(never)]
fn not_finite(written: &str, number: f64) -> ! {
    let (what, mut rest) = written.split_at(written.find(['[', '{']).unwrap_or(written.len()));
    // Of each list and object that is open: the index, and the last text, which is the name of the field.
    let (mut open, mut name) = (Vec::new(), "");
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, open.last_mut()) {
            ('"', _) => {
                let mut is_escaped = false;
                let is_end = |c| {
                    let is_end = c == '"' && !is_escaped;
                    is_escaped = c == '\\' && !is_escaped;
                    is_end
                };
                (name, rest) = rest.split_once(is_end).unwrap_or_default();
            }
            ('[', _) => open.push((0, None)),
            ('{', _) => open.push((0, Some(""))),
            (']' | '}', _) => drop(open.pop()),
            (',', Some((index, _))) => *index += 1,
            (':', Some((_, field))) => *field = Some(name),
            _ => {}
        }
    }
    let steps = open.iter().map(|(index, field)| match field {
        Some(field) => format!(".{field}"),
        None => format!("[{index}]"),
    });
    let path: String = steps.collect();
    panic!("{what}{path} is {number}, which JSON does not have")
}

/// Appends to a text.
struct Text<'a>(&'a mut String);

/// There are no errors, so that the compiler leaves out what handles them.
#[derive(Debug)]
enum Never {}

impl Display for Never {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl std::error::Error for Never {}

impl Error for Never {
    fn custom<T: Display>(message: T) -> Self {
        panic!("a value cannot be written as JSON: {message}")
    }
}

impl<'a> Text<'a> {
    #[inline(never)]
    fn plain(self, text: &str) {
        self.0.push_str(text);
    }

    #[inline(never)]
    fn integer(self, value: i64) {
        self.0.push_str(&value.to_string());
    }

    #[inline(never)]
    fn string(self, text: &str) {
        self.0.push('"');
        for c in text.chars() {
            let escaped = match c {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\0'..='\u{1f}' => {
                    self.0.push_str("\\u00");
                    let code = u32::from(c);
                    self.0.extend(char::from_digit(code >> 4, 16));
                    self.0.extend(char::from_digit(code & 15, 16));
                    continue;
                }
                _ => {
                    self.0.push(c);
                    continue;
                }
            };
            self.0.push_str(escaped);
        }
        self.0.push('"');
    }

    /// Begins a list or an object.
    #[inline(never)]
    fn begin(self, bracket: char) -> Self {
        self.0.push(bracket);
        self
    }

    #[inline(never)]
    fn end(self, bracket: &str) {
        self.0.push_str(bracket);
    }

    /// Begins an object with one field, and its value.
    #[inline(never)]
    fn variant(self, name: &str) -> Self {
        self.0.push('{');
        Text(self.0).string(name);
        self.0.push(':');
        self
    }

    /// Continues a list or an object.
    #[inline(never)]
    fn next(&mut self) -> Text<'_> {
        if !self.0.ends_with(['[', '{']) {
            self.0.push(',');
        }
        Text(self.0)
    }

    /// Continues an object with a field.
    #[inline(never)]
    fn field(&mut self, name: &str) -> Text<'_> {
        self.next().string(name);
        self.0.push(':');
        Text(self.0)
    }

    /// Completes the key of a map, which begins at this byte: a number or boolean becomes a string.
    #[inline(never)]
    fn complete_key(&mut self, start: usize) {
        match self.0[start..].chars().next() {
            Some('"') => {}
            Some('n' | '[' | '{') | None => {
                panic!("a map whose keys are not strings cannot be written as JSON")
            }
            Some(_) => {
                self.0.insert(start, '"');
                self.0.push('"');
            }
        }
    }
}

type Written = Result<(), Never>;

/// Defines a method for each type of integers.
macro_rules! integers {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Written {
            self.integer(value.into());
            Ok(())
        })*
    };
}

impl<'a> Serializer for Text<'a> {
    type Ok = ();
    type Error = Never;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    integers!(
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32
    );

    fn serialize_u64(self, value: u64) -> Written {
        self.plain(&value.to_string());
        Ok(())
    }

    fn serialize_bool(self, value: bool) -> Written {
        self.plain(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Written {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Written {
        match serde_json::Number::from_f64(value) {
            Some(number) => self.plain(&number.to_string()),
            None => not_finite(self.0, value),
        }
        Ok(())
    }

    fn serialize_char(self, value: char) -> Written {
        self.string(value.encode_utf8(&mut [0; 4]));
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Written {
        self.string(value);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Written {
        self.collect_seq(value)
    }

    fn serialize_none(self) -> Written {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Written {
        self.plain("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Written {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Written {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Written {
        let text = self.variant(variant);
        value.serialize(Text(text.0))?;
        text.end("}");
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Never> {
        Ok(self.begin('['))
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Never> {
        Ok(self.begin('['))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Never> {
        Ok(self.begin('['))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Never> {
        Ok(self.variant(variant).begin('['))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Never> {
        Ok(self.begin('{'))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Never> {
        Ok(self.begin('{'))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Never> {
        Ok(self.variant(variant).begin('{'))
    }
}

/// Implements a trait for lists, or for structs, whose fields have names.
macro_rules! compound {
    ($trait:ident, $method:ident, $next:ident($($name:ident)?), $end:literal) => {
        impl $trait for Text<'_> {
            type Ok = ();
            type Error = Never;

            fn $method<T: Serialize + ?Sized>(&mut self, $($name: &'static str,)? value: &T) -> Written {
                value.serialize(self.$next($($name)?))
            }

            fn end(self) -> Written {
                Text::end(self, $end);
                Ok(())
            }
        }
    };
}

compound!(SerializeSeq, serialize_element, next(), "]");
compound!(SerializeTuple, serialize_element, next(), "]");
compound!(SerializeTupleStruct, serialize_field, next(), "]");
compound!(SerializeTupleVariant, serialize_field, next(), "]}");
compound!(SerializeStruct, serialize_field, field(name), "}");
compound!(SerializeStructVariant, serialize_field, field(name), "}}");

impl SerializeMap for Text<'_> {
    type Ok = ();
    type Error = Never;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Written {
        let start = self.next().0.len();
        key.serialize(Text(self.0))?;
        self.complete_key(start);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.0.push(':');
        value.serialize(Text(self.0))
    }

    fn end(self) -> Written {
        Text::end(self, "}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;
    use serde_json::{Value, json as value};

    use super::*;

    #[derive(Serialize)]
    struct Everything<'a> {
        text: &'a str,
        numbers: (i8, u64, i64, f32, f64),
        none: Option<u8>,
        some: Option<bool>,
        unit: (),
        letter: char,
        list: Vec<Vec<u8>>,
        empty: BTreeMap<String, u8>,
        by_text: BTreeMap<&'a str, Kind>,
        by_number: BTreeMap<i32, u8>,
        by_choice: BTreeMap<bool, u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<u8>,
        kinds: Vec<Kind>,
        wrapped: Wrapper,
        pair: Pair,
        #[serde(flatten)]
        rest: Value,
    }

    #[derive(Serialize)]
    struct Wrapper(u8);

    #[derive(Serialize)]
    struct Pair(u8, String);

    #[derive(Serialize)]
    enum Kind {
        Unit,
        Newtype(u8),
        Tuple(u8, u8),
        Struct { a: u8, b: Option<u8> },
    }

    #[test]
    fn the_text_is_that_of_serde_json() {
        let everything = Everything {
            text: "a \"b\" \\ \n\r\t \u{1}\u{1f}\u{7f} é 😀 /",
            numbers: (-8, u64::MAX, i64::MIN, 1.5, 1e300),
            none: None,
            some: Some(true),
            unit: (),
            letter: '"',
            list: vec![vec![], vec![1], vec![2, 3]],
            empty: BTreeMap::new(),
            by_text: BTreeMap::from([("a", Kind::Unit), ("b{", Kind::Newtype(1))]),
            by_number: BTreeMap::from([(-1, 1), (2, 2)]),
            by_choice: BTreeMap::from([(false, 1)]),
            left_out: None,
            kinds: vec![
                Kind::Tuple(1, 2),
                Kind::Struct { a: 1, b: None },
                Kind::Newtype(3),
                Kind::Unit,
            ],
            wrapped: Wrapper(1),
            pair: Pair(1, "[".into()),
            rest: value!({ "x": { "y": [null, {}, "{"] } }),
        };
        assert_eq!(
            json("it", &everything),
            serde_json::to_string(&everything).unwrap()
        );
        for value in [
            value!(null),
            value!([]),
            value!({}),
            value!("["),
            value!(1.0),
            value!([[], {}]),
        ] {
            assert_eq!(json("it", &value), value.to_string());
        }
    }

    #[test]
    fn a_number_that_json_does_not_have_is_a_bug_with_a_path() {
        let said = |value: &dyn Fn() -> String| {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(value)).unwrap_err();
            *panic.downcast::<String>().unwrap()
        };
        let by_text = BTreeMap::from([("a\"é\\", vec![vec![0.5], vec![1.0, f64::NEG_INFINITY]])]);
        assert_eq!(
            said(&|| json("status", &(("{", [1.5]), by_text.clone()))),
            "status[1].a\\\"é\\\\[1][1] is -inf, which JSON does not have"
        );
        assert_eq!(
            said(&|| json("status", &f32::NAN)),
            "status is NaN, which JSON does not have"
        );
    }

    #[test]
    #[should_panic(expected = "a map whose keys are not strings")]
    fn a_key_that_json_cannot_represent_is_a_bug() {
        json("it", &BTreeMap::from([(vec![1], 1)]));
    }
}
