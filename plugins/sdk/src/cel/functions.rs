//! The functions and operators of CEL, and the dispatch to the libraries of Kubernetes.

use std::rc::Rc;

use super::patterns::Patterns;
use super::quantity::Quantity;
use super::strings::shown;
use super::value::{Evaluated, Fuel, Val};
use super::{Fault, libraries, strings, time, url};

/// All functions, of which the API server has more.
const KNOWN: &[&str] = &[
    "size",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "bool",
    "dyn",
    "duration",
    "timestamp",
    "matches",
    "quantity",
    "isQuantity",
    "url",
    "isURL",
    "ip",
    "isIP",
    "ip.isCanonical",
    "cidr",
    "isCIDR",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "optional.of",
    "optional.none",
    "contains",
    "startsWith",
    "endsWith",
    "charAt",
    "indexOf",
    "lastIndexOf",
    "lowerAscii",
    "upperAscii",
    "replace",
    "split",
    "substring",
    "trim",
    "join",
    "find",
    "findAll",
    "format",
    "isSorted",
    "sum",
    "min",
    "max",
    "isInteger",
    "asInteger",
    "asApproximateFloat",
    "sign",
    "add",
    "sub",
    "isLessThan",
    "isGreaterThan",
    "compareTo",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "containsIP",
    "containsCIDR",
    "masked",
    "prefixLength",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
    "getQuery",
    "hasValue",
    "value",
    "orValue",
    "or",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
];

pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

/// Calls a function.
pub(super) fn global<'a>(name: &str, args: &[Val<'a>], fuel: &Fuel, patterns: &Patterns) -> Evaluated<'a> {
    let text = match args {
        [Val::Text(text)] => Some(text),
        _ => None,
    };
    if let Some(text) = text {
        fuel.bytes(text.len())?;
    }
    let wrong = |what: &str| {
        let text = text.map(|text| text.chars().take(60).collect::<String>());
        Fault::Error(format!("{what}: {}", text.unwrap_or_default()))
    };
    match (name, args) {
        ("size", [value]) => size(value, fuel),
        ("dyn", [value]) => Ok(value.clone()),
        ("matches", [Val::Text(text), Val::Text(pattern)]) => strings::matches(text, pattern, fuel, patterns),
        ("int" | "uint" | "double" | "string" | "bytes" | "bool", [value]) => convert(name, value, fuel),
        ("duration", [Val::Text(text)]) => {
            let parsed = time::duration(text).map(Val::Duration);
            parsed.ok_or_else(|| wrong("invalid duration"))
        }
        ("timestamp", [Val::Text(text)]) => {
            let parsed = time::parse(text).map(Val::Time);
            parsed.ok_or_else(|| wrong("invalid timestamp"))
        }
        ("duration", [value @ Val::Duration(_)]) | ("timestamp", [value @ Val::Time(_)]) => Ok(value.clone()),
        ("isQuantity", [Val::Text(text)]) => Ok(Val::Bool(Quantity::parse(text).is_some())),
        ("quantity", [Val::Text(text)]) => {
            let parsed = Quantity::parse(text).map(Val::Quantity);
            let why = "quantities must match the regular expression \
                       '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
            parsed.ok_or_else(|| Fault::Error(why.to_owned()))
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
            let parsed = url::cidr(text).map(|(address, length)| Val::Cidr(address, length));
            parsed.ok_or_else(|| wrong("network address parse error"))
        }
        ("optional.none", []) => Ok(Val::Optional(None)),
        ("optional.of", [value]) => Ok(Val::some(value.clone())),
        _ => libraries::sets(name, args, fuel),
    }
}

/// Calls a method.
pub(super) fn member<'a>(
    name: &str,
    of: &Val<'a>,
    args: &[Val<'a>],
    fuel: &Fuel,
    patterns: &Patterns,
) -> Evaluated<'a> {
    match (name, of, args) {
        ("size", value, []) => size(value, fuel),
        (_, Val::Text(text), _) => strings::member(name, text, args, fuel, patterns),
        (_, list, _) if list.is_list() => libraries::lists(name, list, args, fuel),
        _ => libraries::member(name, of, args, fuel),
    }
}

fn size<'a>(value: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let size = match value {
        Val::Text(text) => {
            fuel.bytes(text.len())?;
            text.chars().count()
        }
        Val::Bytes(bytes) => bytes.len(),
        other => other.len().ok_or(Fault::Overload)?,
    };
    Ok(Val::Int(size as i64))
}

fn convert<'a>(to: &str, value: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let failed = || {
        Fault::Error(format!(
            "type conversion error from '{}' to '{to}'",
            value.type_name()
        ))
    };
    Ok(match (to, value) {
        ("int", Val::Int(_)) | ("uint", Val::Uint(_)) | ("double", Val::Double(_)) => value.clone(),
        ("string", Val::Text(_)) | ("bytes", Val::Bytes(_)) | ("bool", Val::Bool(_)) => value.clone(),
        ("int", Val::Uint(value)) => Val::Int(i64::try_from(*value).map_err(|_| Fault::overflow())?),
        ("int", Val::Double(value)) if value.is_finite() && value.abs() < 9.2e18 => Val::Int(*value as i64),
        ("int", Val::Double(_)) => return Err(Fault::overflow()),
        ("int", Val::Text(text)) => Val::Int(text.parse().map_err(|_| failed())?),
        ("uint", Val::Int(value)) => Val::Uint(u64::try_from(*value).map_err(|_| Fault::overflow())?),
        ("uint", Val::Double(value)) if *value >= 0.0 && *value < 1.8e19 => Val::Uint(*value as u64),
        ("uint", Val::Text(text)) => Val::Uint(text.parse().map_err(|_| failed())?),
        ("double", Val::Int(value)) => Val::Double(*value as f64),
        ("double", Val::Uint(value)) => Val::Double(*value as f64),
        ("double", Val::Text(text)) => Val::Double(text.parse().map_err(|_| failed())?),
        ("bool", Val::Text(text)) => match &**text {
            "true" | "True" | "TRUE" | "t" | "1" => Val::Bool(true),
            "false" | "False" | "FALSE" | "f" | "0" => Val::Bool(false),
            _ => return Err(failed()),
        },
        ("bytes", Val::Text(text)) => {
            fuel.bytes(text.len())?;
            Val::Bytes(text.as_bytes().into())
        }
        ("string", Val::Bytes(bytes)) => {
            fuel.bytes(bytes.len())?;
            Val::made(std::str::from_utf8(bytes).map_err(|_| failed())?)
        }
        (
            "string",
            Val::Bool(_) | Val::Int(_) | Val::Uint(_) | Val::Double(_) | Val::Ip(_) | Val::Cidr(..),
        ) => Val::made(shown(value)),
        // The form of these is left to the API server.
        ("string", Val::Duration(_) | Val::Time(_) | Val::Url(_)) => {
            return Err(Fault::Unknown("string".to_owned()));
        }
        _ => return Err(Fault::Overload),
    })
}
