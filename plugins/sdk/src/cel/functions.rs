//! The functions and operators of CEL, and the dispatch to the libraries of Kubernetes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use regex::{Match, Regex, RegexBuilder};

use super::eval::overflow;
use super::quantity::Quantity;
use super::value::{Fields, Fuel, Val, equal, keys};
use super::{Fault, libraries, strings, time, url};

type Evaluated<'a> = Result<Val<'a>, Fault>;

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

/// The regular expressions of an evaluation, compiled once each.
#[derive(Debug, Default)]
pub(super) struct Patterns(RefCell<HashMap<String, Option<Rc<Pattern>>>>);

/// Maximum number of compiled regular expressions.
const PATTERNS: usize = 16;
/// Sizes of a compiled regular expression in bytes, of which the last one is the limit.
const SIZES: [usize; 4] = [1 << 10, 8 << 10, 32 << 10, 128 << 10];

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// The length that a search is charged for. A short text such as `(a{100}){10}` can be a large expression.
    length: usize,
}

impl Pattern {
    /// Compiles a regular expression; `None` if the text is none, or too large.
    fn new(text: &str) -> Option<Self> {
        SIZES.iter().find_map(|size| {
            let regex = RegexBuilder::new(text)
                .size_limit(*size)
                .dfa_size_limit(SIZES[SIZES.len() - 1])
                .build();
            Some(Self {
                regex: regex.ok()?,
                length: text.len().max(size / 64),
            })
        })
    }

    pub(super) fn is_match(&self, text: &str, fuel: &Fuel) -> Result<bool, Fault> {
        self.charge(text.len(), fuel)?;
        Ok(self.regex.is_match(text))
    }

    pub(super) fn find<'t>(&self, text: &'t str, fuel: &Fuel) -> Result<Option<Match<'t>>, Fault> {
        self.charge(text.len(), fuel)?;
        Ok(self.regex.find(text))
    }

    /// Returns what it matches, up to a limit.
    pub(super) fn find_all<'t>(
        &self,
        text: &'t str,
        limit: usize,
        fuel: &Fuel,
    ) -> Result<Vec<&'t str>, Fault> {
        let (mut all, mut matches, mut from) = (Vec::new(), self.regex.find_iter(text), 0);
        while all.len() < limit {
            // Each search may read the text to its end before it settles on a match.
            self.charge(text.len() - from, fuel)?;
            let Some(found) = matches.next() else {
                break;
            };
            fuel.items(1)?;
            from = found.end();
            all.push(found.as_str());
        }
        Ok(all)
    }

    /// Charges a search as the API server does: a tenth of the text times a fourth of the expression.
    fn charge(&self, bytes: usize, fuel: &Fuel) -> Result<(), Fault> {
        fuel.burn(1 + bytes.saturating_mul(self.length) / 40)
    }
}

impl Patterns {
    /// Returns a compiled regular expression.
    ///
    /// # Errors
    /// When the text is none, or compiling it costs too much.
    pub(super) fn get(&self, text: &str, fuel: &Fuel) -> Result<Rc<Pattern>, Fault> {
        let mut known = self.0.borrow_mut();
        if !known.contains_key(text) {
            // A class of letters such as `\pL` takes thousands of bytes.
            fuel.burn(2_000 + text.len().saturating_mul(100))?;
            if known.len() >= PATTERNS {
                known.clear();
            }
            let pattern = Pattern::new(text).map(Rc::new);
            let length = pattern
                .as_ref()
                .map_or(SIZES[SIZES.len() - 1] / 64, |pattern| pattern.length);
            known.insert(text.to_owned(), pattern);
            fuel.burn(length.saturating_mul(8))?;
        }
        let pattern = known.get(text).cloned().flatten();
        pattern.ok_or_else(|| Fault::Error(format!("error parsing regexp: `{text}`")))
    }
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

/// Implements `in`.
pub(super) fn contains<'a>(list: &Val<'a>, value: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    if list.is_map() {
        return Ok(Val::Bool(list.get(value, fuel)?.is_some()));
    }
    let (Some(count), true) = (list.len(), list.is_list()) else {
        return Err(Fault::Overload);
    };
    for index in 0..count {
        if let Some(item) = list.item(index, fuel)?
            && equal(&item, value, fuel)?
        {
            return Ok(Val::Bool(true));
        }
    }
    Ok(Val::Bool(false))
}

/// Implements `+`, `-`, `*`, `/` and `%`.
pub(super) fn arithmetic<'a>(operator: &str, left: &Val<'a>, right: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let by_zero = |operator: &str| {
        Fault::Error(match operator {
            "/" => "division by zero".to_owned(),
            _ => "modulus by zero".to_owned(),
        })
    };
    match (operator, left, right) {
        ("/" | "%", Val::Int(_), Val::Int(0)) | ("/" | "%", Val::Uint(_), Val::Uint(0)) => {
            Err(by_zero(operator))
        }
        (_, Val::Int(a), Val::Int(b)) => match operator {
            "+" => a.checked_add(*b),
            "-" => a.checked_sub(*b),
            "*" => a.checked_mul(*b),
            "/" => a.checked_div(*b),
            _ => a.checked_rem(*b),
        }
        .map(Val::Int)
        .ok_or_else(overflow),
        (_, Val::Uint(a), Val::Uint(b)) => match operator {
            "+" => a.checked_add(*b),
            "-" => a.checked_sub(*b),
            "*" => a.checked_mul(*b),
            "/" => a.checked_div(*b),
            _ => a.checked_rem(*b),
        }
        .map(Val::Uint)
        .ok_or_else(|| Fault::Error("unsigned integer overflow".to_owned())),
        (_, Val::Double(a), Val::Double(b)) => Ok(Val::Double(match operator {
            "+" => a + b,
            "-" => a - b,
            "*" => a * b,
            "/" => a / b,
            _ => return Err(Fault::Overload),
        })),
        ("+", Val::Text(a), Val::Text(b)) => {
            fuel.bytes(a.len() + b.len())?;
            Ok(Val::made([&**a, &**b].concat()))
        }
        ("+", Val::Bytes(a), Val::Bytes(b)) => {
            fuel.bytes(a.len() + b.len())?;
            Ok(Val::Bytes([&**a, &**b].concat().into()))
        }
        ("+", a, b) if a.is_list() && b.is_list() => libraries::concat(a, b, fuel),
        ("+", Val::Duration(a), Val::Duration(b)) => {
            a.checked_add(*b).map(Val::Duration).ok_or_else(overflow)
        }
        ("-", Val::Duration(a), Val::Duration(b)) => {
            a.checked_sub(*b).map(Val::Duration).ok_or_else(overflow)
        }
        ("+", Val::Time(a), Val::Duration(b)) | ("+", Val::Duration(b), Val::Time(a)) => {
            Ok(Val::Time(a + i128::from(*b)))
        }
        ("-", Val::Time(a), Val::Duration(b)) => Ok(Val::Time(a - i128::from(*b))),
        ("-", Val::Time(a), Val::Time(b)) => i64::try_from(a - b).map(Val::Duration).map_err(|_| overflow()),
        _ => Err(Fault::Overload),
    }
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
        ("int", Val::Uint(value)) => Val::Int(i64::try_from(*value).map_err(|_| overflow())?),
        ("int", Val::Double(value)) if value.is_finite() && value.abs() < 9.2e18 => Val::Int(*value as i64),
        ("int", Val::Double(_)) => return Err(overflow()),
        ("int", Val::Text(text)) => Val::Int(text.parse().map_err(|_| failed())?),
        ("uint", Val::Int(value)) => Val::Uint(u64::try_from(*value).map_err(|_| overflow())?),
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

/// Returns the text of a simple value, as `string` and `format` do.
pub(super) fn shown(value: &Val<'_>) -> String {
    match value {
        Val::Null => "null".to_owned(),
        Val::Bool(value) => value.to_string(),
        Val::Int(value) => value.to_string(),
        Val::Uint(value) => value.to_string(),
        Val::Double(value) => value.to_string(),
        Val::Text(text) => text.to_string(),
        Val::Ip(address) => address.to_string(),
        Val::Cidr(address, length) => format!("{address}/{length}"),
        other => other.type_name().to_owned(),
    }
}

/// Returns the text of a value for `%s`, within a list or a map as well.
///
/// # Errors
/// When it costs too much, or only the API server knows the form.
pub(super) fn formatted(value: &Val<'_>, fuel: &Fuel) -> Result<String, Fault> {
    fuel.burn(1)?;
    match value {
        Val::Text(text) => fuel.bytes(text.len())?,
        list if list.is_list() => {
            let mut items = Vec::new();
            for index in 0..list.len().unwrap_or_default() {
                if let Some(item) = list.item(index, fuel)? {
                    items.push(formatted(&item, fuel)?);
                }
            }
            return Ok(format!("[{}]", items.join(", ")));
        }
        map if map.is_map() => {
            let mut entries = Vec::new();
            for key in keys(map) {
                let value = map.get(&key, fuel)?.unwrap_or(Val::Null);
                entries.push(format!(
                    "{}: {}",
                    formatted(&key, fuel)?,
                    formatted(&value, fuel)?
                ));
            }
            return Ok(format!("{{{}}}", entries.join(", ")));
        }
        Val::Null | Val::Bool(_) | Val::Int(_) | Val::Uint(_) => {}
        Val::Object(_, _, Fields::Declared | Fields::Resource | Fields::Metadata) => {
            return Err(Fault::Overload);
        }
        _ => return Err(Fault::Unknown("format".to_owned())),
    }
    Ok(shown(value))
}
