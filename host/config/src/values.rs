//! Parses single values of the configuration. The parser of YAML adds their location to the errors.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Location;

use super::{ConfigError, ServiceAccount};
use operator_host_contract::is_dns_label;
use operator_host_core::digest::Prefix;
use operator_host_core::object::Selector;

/// A value that the file has as text.
pub(super) trait Value: Sized {
    /// Parses the text. The error says what is expected.
    fn parse(text: &str) -> Result<Self, String>;
}

/// The text of a [`Value`].
#[derive(Clone, Debug)]
pub(super) struct Text<T>(pub(super) T);

impl<'de, T: Value> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::parse(&text).map(Self).map_err(D::Error::custom)
    }
}

/// Reads the text of a value.
pub(super) fn text<'de, T: Value, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Text::deserialize(deserializer).map(|it| it.0)
}

/// Reads a value that the file has in the form `R`.
pub(super) fn read_as<'de, R: Deserialize<'de>, T: From<R>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    R::deserialize(deserializer).map(T::from)
}

impl<T> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// A number from 1 to `MOST`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AtMost<const MOST: usize>(pub(super) usize);

impl<'de, const MOST: usize> Deserialize<'de> for AtMost<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match usize::deserialize(deserializer)? {
            number if (1..=MOST).contains(&number) => Ok(Self(number)),
            number => Err(D::Error::custom(match MOST {
                usize::MAX => format!("it must be at least 1, not {number}"),
                _ => format!("it must be from 1 to {MOST}, not {number}"),
            })),
        }
    }
}

impl<const MOST: usize> From<AtMost<MOST>> for usize {
    fn from(number: AtMost<MOST>) -> Self {
        number.0
    }
}

impl<const MOST: usize> From<AtMost<MOST>> for u32 {
    fn from(number: AtMost<MOST>) -> Self {
        Self::try_from(number.0).unwrap_or(Self::MAX)
    }
}

/// A number that is not 0.
pub(super) type Positive = AtMost<{ usize::MAX }>;

/// A name that is a DNS label.
pub(super) struct Label(pub(super) String);

impl Value for Label {
    fn parse(text: &str) -> Result<Self, String> {
        if is_dns_label(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "{text:?} is not a name: expected at most 63 lower-case letters, digits and '-', not '-' at an end"
        ))
    }
}

impl Value for ServiceAccount {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for ServiceAccount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if is_dns_label(namespace) && name.split('.').all(is_dns_label) => {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                Ok(Self { namespace, name })
            }
            _ => Err(format!(
                "{text:?} is not a ServiceAccount: expected `namespace/name`"
            )),
        }
    }
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.parse::<jiff::SignedDuration>().ok();
        let parsed = parsed.and_then(|duration| Self::try_from(duration).ok());
        parsed.filter(|duration| !duration.is_zero()).ok_or_else(|| {
            format!("{text:?} is not a duration: expected a value such as `500ms`, `30s`, `5m` or `1h`")
        })
    }
}

/// Bytes.
impl Value for usize {
    fn parse(text: &str) -> Result<Self, String> {
        parse_size(text).ok_or_else(|| {
            format!("{text:?} is not a size: expected a number of bytes, such as `65536`, `512Ki` or `64Mi`")
        })
    }
}

impl Value for Prefix {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl Value for Selector {
    fn parse(text: &str) -> Result<Self, String> {
        Self::of(text)
    }
}

pub(super) fn invalid(file: &Path, at: Location, message: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        file: file.to_owned(),
        line: at.line().max(1),
        column: at.column().max(1),
        message: message.into(),
    }
}

/// Parses bytes, more than 0, with or without one of the units Ki, Mi and Gi; returns `None` for any other text.
pub fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let unit = match unit {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    let size = number.parse::<usize>().ok()?.checked_mul(unit)?;
    (size > 0).then_some(size)
}

/// Returns bytes as [`parse_size`] reads them, in the largest unit of which they are a multiple.
pub(super) fn size(bytes: usize) -> String {
    let units = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let unit = units.into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, ""));
    format!("{}{name}", bytes / unit)
}

/// Parses YAML of any shape; the errors contain the location.
pub(super) fn yaml<T: serde::de::DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let message = error.without_snippet().to_string();
        let at = error.location().unwrap_or(Location::UNKNOWN);
        invalid(file, at, in_plain_words(&message))
    })
}

/// Shortens a message of serde or serde-saphyr: removes the location at its end, which [`ConfigError`] puts first, and replaces
/// the names of Rust types.
pub(super) fn in_plain_words(message: &str) -> String {
    let end = message.find(" at line ").unwrap_or(message.len());
    let mut message = message[..end].to_owned();
    for number in ["u8", "u16", "u32", "u64", "i64", "usize"] {
        for expected in ["invalid", "expected"] {
            message = message.replace(&format!("{expected} {number}"), "expected a whole number");
        }
    }
    message
}
