//! The functions of CEL, and the dispatch to the libraries of Kubernetes.

use std::rc::Rc;

use super::parser::MESSAGE;
use super::patterns::Patterns;
use super::strings::shown;
use super::value::{Evaluated, Fuel, Val};
use super::{EvalError, libraries, strings, time, url};
use crate::quantity::Quantity;

/// Whether only the API server evaluates a function. `host/docs/authors.md` lists them.
pub(super) fn is_left(name: &str) -> bool {
    let is_left = matches!(
        name,
        MESSAGE | "semver" | "isSemver" | "major" | "minor" | "patch" | "validate" | "sortBy"
    );
    is_left || name.starts_with("format.")
}

/// Calls a function, or a method with the value that has it.
pub(super) fn call<'a>(name: &str, args: &[Val<'a>], fuel: &Fuel, patterns: &Patterns) -> Evaluated<'a> {
    let text = match args {
        [Val::Text(text), ..] => Some(text),
        _ => None,
    };
    if let Some(text) = text {
        fuel.bytes(text.len())?;
    }
    let wrong = |what: &str| {
        let text = text.map(|text| text.chars().take(60).collect::<String>());
        EvalError::Error(format!("{what}: {}", text.unwrap_or_default()))
    };
    match (name, args) {
        ("size", [value]) => size(value),
        ("dyn", [value]) => Ok(value.clone()),
        ("int" | "uint" | "double" | "string" | "bytes" | "bool", [value]) => convert(name, value, fuel),
        ("type", [value]) => Ok(Val::Type(value.type_name())),
        ("duration", [Val::Text(text)]) => time::duration(text)
            .map(Val::Duration)
            .ok_or_else(|| conversion("string", "google.protobuf.Duration")),
        ("timestamp", [Val::Text(text)]) => time::parse(text)
            .map(Val::Time)
            .ok_or_else(|| conversion("string", "google.protobuf.Timestamp")),
        ("timestamp", [Val::Int(seconds)]) => time::of_seconds(*seconds)
            .map(Val::Time)
            .ok_or_else(EvalError::time_overflow),
        ("duration", [value @ Val::Duration(_)]) | ("timestamp", [value @ Val::Time(_)]) => Ok(value.clone()),
        ("isQuantity", [Val::Text(text)]) => Ok(Val::Bool(Quantity::is_text_of_one(text))),
        ("quantity", [Val::Text(text)]) => {
            if !Quantity::is_text_of_one(text) {
                let why = "quantities must match the regular expression \
                           '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
                return Err(EvalError::Error(why.to_owned()));
            }
            let parsed = Quantity::parse(text).map(Val::Quantity);
            parsed.ok_or_else(|| EvalError::Unknown("a quantity with so many digits".to_owned()))
        }
        ("sign", [Val::Quantity(of)]) => Ok(Val::Int(of.sign())),
        ("isURL" | "url", [Val::Text(text)]) => {
            // Each name of a query is compared with those before it.
            let pairs = text.matches('&').count();
            fuel.burn(pairs.saturating_mul(10 + pairs / 10))?;
            if name == "isURL" {
                return Ok(Val::Bool(url::Url::parse(text).is_some()));
            }
            let parsed = url::Url::parse(text).map(|url| Val::Url(Rc::new(url)));
            parsed.ok_or_else(|| wrong("URL parse error during conversion from string"))
        }
        ("isIP", [Val::Text(text)]) => Ok(Val::Bool(url::ip(text).is_some())),
        ("ip.isCanonical", [Val::Text(text)]) => {
            let parsed = url::ip(text).ok_or_else(|| wrong("IP Address parse error"))?;
            Ok(Val::Bool(parsed.to_string() == text[..]))
        }
        ("ip", [Val::Text(text)]) => {
            let parsed = url::ip(text).map(Val::Ip);
            parsed.ok_or_else(|| wrong("IP Address parse error"))
        }
        ("isCIDR", [Val::Text(text)]) => Ok(Val::Bool(url::cidr(text).is_some())),
        ("cidr", [Val::Text(text)]) => {
            let parsed = url::cidr(text).map(Val::Cidr);
            parsed.ok_or_else(|| wrong("network address parse error"))
        }
        ("optional.none", []) => Ok(Val::Optional(None)),
        ("optional.of", [value]) => Ok(Val::some(value.clone())),
        ("optional.ofNonZeroValue", [value]) => match value.is_zero()? {
            true => Ok(Val::Optional(None)),
            false => Ok(Val::some(value.clone())),
        },
        ("optional.unwrap", [list]) => libraries::unwrapped(list, fuel),
        ("lists.range", [Val::Int(count)]) => {
            let count = (*count).max(0);
            fuel.items(usize::try_from(count).unwrap_or(usize::MAX))?;
            Ok(Val::list((0..count).map(Val::Int).collect()))
        }
        ("strings.quote", [Val::Text(text)]) => {
            fuel.bytes(2 * text.len())?;
            Ok(Val::made(strings::quoted(text)))
        }
        ("sets.contains" | "sets.equivalent" | "sets.intersects", [a, b]) => {
            libraries::sets(name, a, b, fuel)
        }
        (_, [Val::Text(text), args @ ..]) => strings::member(name, text, args, fuel, patterns),
        (_, [list, args @ ..]) if list.is_list() => libraries::lists(name, list, args, fuel),
        (_, [of, args @ ..]) => libraries::member(name, of, args, fuel),
        _ => Err(EvalError::Overload),
    }
}

fn size<'a>(value: &Val<'a>) -> Evaluated<'a> {
    let size = match value {
        Val::Text(text) => text.chars().count(),
        Val::Bytes(bytes) => bytes.len(),
        other => other.len().ok_or(EvalError::Overload)?,
    };
    Ok(Val::Int(size as i64))
}

fn conversion(from: &str, to: &str) -> EvalError {
    EvalError::Error(format!("type conversion error from '{from}' to '{to}'"))
}

fn convert<'a>(to: &str, value: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    // The numbers next to those of 64 bits.
    const SIGNED: f64 = 9_223_372_036_854_775_808.0;
    const UNSIGNED: f64 = 18_446_744_073_709_551_616.0;
    let failed = || conversion(value.type_name(), to);
    Ok(match (to, value) {
        ("int", Val::Int(_)) | ("uint", Val::Uint(_)) | ("double", Val::Double(_)) => value.clone(),
        ("string", Val::Text(_)) | ("bytes", Val::Bytes(_)) | ("bool", Val::Bool(_)) => value.clone(),
        ("int", Val::Uint(value)) => Val::Int(i64::try_from(*value).map_err(|_| EvalError::overflow())?),
        ("int", Val::Double(value)) if value.abs() < SIGNED => Val::Int(*value as i64),
        ("int", Val::Double(_)) => return Err(EvalError::overflow()),
        ("int", Val::Text(text)) => Val::Int(text.parse().map_err(|_| failed())?),
        ("int", Val::Duration(nanos)) => Val::Int(*nanos),
        ("int", Val::Time(time)) => Val::Int(time::seconds(*time)),
        ("uint", Val::Int(value)) => {
            Val::Uint(u64::try_from(*value).map_err(|_| EvalError::unsigned_overflow())?)
        }
        ("uint", Val::Double(value)) if *value >= 0.0 && *value < UNSIGNED => Val::Uint(*value as u64),
        ("uint", Val::Double(_)) => return Err(EvalError::unsigned_overflow()),
        ("uint", Val::Text(text)) => {
            let number = text.parse().ok().filter(|_| !text.starts_with('+'));
            Val::Uint(number.ok_or_else(failed)?)
        }
        ("double", Val::Int(value)) => Val::Double(*value as f64),
        ("double", Val::Uint(value)) => Val::Double(*value as f64),
        ("double", Val::Text(text)) => Val::Double(double(text, failed)?),
        ("bool", Val::Text(text)) => match &**text {
            "true" | "True" | "TRUE" | "t" | "T" | "1" => Val::Bool(true),
            "false" | "False" | "FALSE" | "f" | "F" | "0" => Val::Bool(false),
            _ => return Err(failed()),
        },
        ("bytes", Val::Text(text)) => {
            fuel.bytes(text.len())?;
            Val::Bytes(text.as_bytes().into())
        }
        ("string", Val::Bytes(bytes)) => {
            fuel.bytes(bytes.len())?;
            let text = std::str::from_utf8(bytes);
            Val::made(text.map_err(|_| {
                EvalError::Error("invalid UTF-8 in bytes, cannot convert to string".to_owned())
            })?)
        }
        (
            "string",
            Val::Bool(_)
            | Val::Int(_)
            | Val::Uint(_)
            | Val::Double(_)
            | Val::Ip(_)
            | Val::Cidr(_)
            | Val::Duration(_)
            | Val::Time(_),
        ) => Val::made(shown(value)),
        _ => return Err(EvalError::Overload),
    })
}

/// Reads a number as Go does.
fn double(text: &str, failed: impl Fn() -> EvalError) -> Result<f64, EvalError> {
    let digit = |at: Option<usize>| {
        at.and_then(|at| text.as_bytes().get(at))
            .is_some_and(u8::is_ascii_digit)
    };
    let is_between = |(at, _): (usize, &str)| digit(at.checked_sub(1)) && digit(Some(at + 1));
    if text.contains(['x', 'X']) {
        return Err(EvalError::Unknown("a number in hexadecimal digits".to_owned()));
    }
    if !text.match_indices('_').all(is_between) {
        return Err(failed());
    }
    let value: f64 = text.replace('_', "").parse().map_err(|_| failed())?;
    // What is written as a number is not infinite.
    let is_number = text.contains(|c: char| c.is_ascii_digit());
    if value.is_infinite() && is_number {
        Err(failed())
    } else {
        Ok(value)
    }
}
