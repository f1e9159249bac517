//! Parses single values of the configuration; the errors contain their location.

use std::path::Path;
use std::time::Duration;

use serde_saphyr::{Location, Spanned};

use super::{ConfigError, ServiceAccount};
use operator_host_contract::is_dns_label;

pub(super) fn invalid(file: &Path, at: Location, message: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        file: file.to_owned(),
        line: at.line().max(1),
        column: at.column().max(1),
        message: message.into(),
    }
}

/// Whether the text is an API version such as `v1` or `v1beta2`.
pub(super) fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else {
        return false;
    };
    let more = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    more.len() < rest.len() && more.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

pub(super) fn dns_label(file: &Path, text: &Spanned<String>, what: &str) -> Result<(), ConfigError> {
    if is_dns_label(&text.value) {
        return Ok(());
    }
    let message = format!(
        "{:?} cannot be {what}: expected at most 63 lower-case letters, digits and '-', not '-' at an end",
        text.value
    );
    Err(invalid(file, text.referenced, message))
}

pub(super) fn service_account(file: &Path, text: &Spanned<String>) -> Result<ServiceAccount, ConfigError> {
    match text.value.split_once('/') {
        Some((namespace, name)) if is_dns_label(namespace) && name.split('.').all(is_dns_label) => {
            Ok(ServiceAccount {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
        }
        _ => {
            let message = format!(
                "{:?} is not a ServiceAccount: expected `namespace/name`",
                text.value
            );
            Err(invalid(file, text.referenced, message))
        }
    }
}

pub(super) fn duration(
    file: &Path,
    text: Option<&Spanned<String>>,
    default: Duration,
) -> Result<Duration, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    let parsed = text
        .value
        .parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|d| Duration::try_from(d).ok());
    parsed.filter(|d| !d.is_zero()).ok_or_else(|| {
        let message = format!(
            "{:?} is not a duration: expected a value such as `500ms`, `30s`, `5m` or `1h`",
            text.value
        );
        invalid(file, text.referenced, message)
    })
}

pub(super) fn bytes(
    file: &Path,
    text: Option<&Spanned<String>>,
    default: usize,
) -> Result<usize, ConfigError> {
    let Some(text) = text else { return Ok(default) };
    parse_size(&text.value).ok_or_else(|| {
        let message = format!(
            "{:?} is not a size: expected a number of bytes, such as `65536`, `512Ki` or `64Mi`",
            text.value
        );
        invalid(file, text.referenced, message)
    })
}

pub(super) fn count<N: Copy + Default + PartialEq>(
    file: &Path,
    number: Option<&Spanned<N>>,
    what: &str,
    default: N,
) -> Result<N, ConfigError> {
    match number {
        Some(number) if number.value == N::default() => Err(invalid(
            file,
            number.referenced,
            format!("{what} must be at least 1"),
        )),
        Some(number) => Ok(number.value),
        None => Ok(default),
    }
}

/// Parses bytes, more than 0, with or without one of the units Ki, Mi and Gi; returns `None` for any other text.
#[must_use]
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
        invalid(
            file,
            error.location().unwrap_or(Location::UNKNOWN),
            in_plain_words(&message),
        )
    })
}

/// Shortens a message of serde-saphyr: removes the location at its end, which [`ConfigError`] puts first, and replaces
/// the names of Rust types.
fn in_plain_words(message: &str) -> String {
    let end = message.find(" at line ").unwrap_or(message.len());
    let mut message = message[..end].to_owned();
    for number in ["u8", "u16", "u32", "u64", "i64"] {
        message = message.replace(&format!("invalid {number}"), "expected a whole number");
    }
    message
}
