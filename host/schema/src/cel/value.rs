//! The values of CEL. Those of a resource borrow from its JSON, and are read by its schema.

use std::cell::Cell;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Instant;

use ipnet::IpNet;
use jiff::civil::{DateTime, Time};
use serde_json::{Map, Value};

use super::EvalError;
use super::time;
use super::url::Url;
use crate::quantity::Quantity;

/// The result of an evaluation.
pub(super) type Evaluated<'a> = Result<Val<'a>, EvalError>;

/// Text that is borrowed from a resource or made by an expression.
#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    Of(&'a str),
    Made(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Of(text) => text,
            Self::Made(text) => text,
        }
    }
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Rc<[u8]>),
    List(Rc<Vec<Val<'a>>>),
    Map(Rc<Vec<(Val<'a>, Val<'a>)>>),
    /// An object with declared fields, and its schema.
    Object(&'a Map<String, Value>, &'a Value, Fields),
    /// A list of a resource, and its schema.
    Items(&'a [Value], &'a Value),
    /// A map of a resource, and its schema.
    Entries(&'a Map<String, Value>, &'a Value),
    /// Nanoseconds.
    Duration(i64),
    /// In UTC.
    Time(DateTime),
    Optional(Option<Rc<Val<'a>>>),
    Quantity(Quantity),
    Ip(IpAddr),
    Cidr(IpNet),
    Url(Rc<Url>),
    /// A type, by its name.
    Type(&'static str),
}

/// Which fields an object has beside the declared ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fields {
    Declared,
    /// With `apiVersion`, `kind` and `metadata`: of a resource or an embedded one.
    Resource,
    /// `metadata`, of which rules see the names only.
    Metadata,
}

impl<'a> Val<'a> {
    pub(super) fn made(text: impl Into<Rc<str>>) -> Self {
        Self::Text(Text::Made(text.into()))
    }

    pub(super) fn list(items: Vec<Self>) -> Self {
        Self::List(Rc::new(items))
    }

    pub(super) fn some(value: Self) -> Self {
        Self::Optional(Some(Rc::new(value)))
    }

    /// Reads a value by its schema; `None` if rules cannot see values of this schema.
    ///
    /// # Errors
    /// When it costs too much: each read decodes the text of bytes and times once more. Also when the text has the format of
    /// the schema and yet no value, such as a time in lower case.
    pub(super) fn read(
        value: &'a Value,
        schema: &'a Value,
        is_root: bool,
        fuel: &Fuel,
    ) -> Result<Option<Self>, EvalError> {
        if let (Value::String(text), Some("string")) = (value, schema["type"].as_str()) {
            let decoded = match schema["format"].as_str() {
                Some("date-time") => {
                    fuel.bytes(text.len())?;
                    time::parse(text).map(Val::Time)
                }
                Some("date") => {
                    fuel.bytes(text.len())?;
                    time::date(text).map(|day| Val::Time(day.to_datetime(Time::midnight())))
                }
                Some("duration") => {
                    fuel.bytes(text.len())?;
                    time::lenient_duration(text).map(Val::Duration)
                }
                Some("byte") => {
                    // Two for each byte, which is kept.
                    fuel.bytes((text.len() / 4 * 3).saturating_mul(20))?;
                    base64(text).map(|bytes| Val::Bytes(bytes.into()))
                }
                _ => return Ok(Some(Val::Text(Text::Of(text)))),
            };
            let format = schema["format"].as_str().unwrap_or_default();
            let why = || EvalError::Error(format!("Invalid {format} formatted string {text}"));
            return decoded.ok_or_else(why).map(Some);
        }
        if let Value::Number(number) = value
            && schema["type"] != "number"
            && !number.is_i64()
        {
            // `1.0` fits the schema, and is no integer here.
            return Err(EvalError::Error(
                "invalid data, expected int, got float64".to_owned(),
            ));
        }
        Ok(Self::decoded(value, schema, is_root))
    }

    fn decoded(value: &'a Value, schema: &'a Value, is_root: bool) -> Option<Self> {
        let type_ = schema["type"].as_str();
        if schema["x-kubernetes-int-or-string"] != true && type_.is_none() && !is_root {
            return None;
        }
        Some(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) if type_ == Some("number") => Self::Double(number.as_f64()?),
            Value::Number(number) => Self::Int(number.as_i64()?),
            Value::String(text) => Self::Text(Text::Of(text)),
            Value::Array(items) => Self::Items(items, schema),
            Value::Object(map) if schema["additionalProperties"].is_object() => Self::Entries(map, schema),
            Value::Object(map) => {
                let embedded = schema["x-kubernetes-embedded-resource"] == true;
                let fields = if is_root || embedded {
                    Fields::Resource
                } else {
                    Fields::Declared
                };
                Self::Object(map, schema, fields)
            }
        })
    }

    pub(super) const fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) | Self::Items(..) => "list",
            Self::Map(_) | Self::Entries(..) | Self::Object(..) => "map",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Time(_) => "google.protobuf.Timestamp",
            Self::Optional(_) => "optional_type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Type(_) => "type",
        }
    }

    /// Whether it is the value that a type has when nothing is set.
    ///
    /// # Errors
    /// When only the API server knows.
    pub(super) fn is_zero(&self) -> Result<bool, EvalError> {
        Ok(match self {
            Self::Null | Self::Optional(None) => true,
            Self::Bool(value) => !value,
            Self::Int(value) | Self::Duration(value) => *value == 0,
            Self::Uint(value) => *value == 0,
            Self::Double(value) => *value == 0.0,
            Self::Text(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            list_or_map if list_or_map.len().is_some() => list_or_map.len() == Some(0),
            _ => return Err(EvalError::Unknown("optional.ofNonZeroValue".to_owned())),
        })
    }

    /// Returns the number of items of a list or a map.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::List(items) => Some(items.len()),
            Self::Items(items, _) => Some(items.len()),
            Self::Map(entries) => Some(entries.len()),
            Self::Entries(map, _) => Some(map.len()),
            _ => None,
        }
    }

    /// Returns an item of a list.
    ///
    /// # Errors
    /// When it costs too much.
    pub(super) fn item(&self, index: usize, fuel: &Fuel) -> Result<Option<Self>, EvalError> {
        match self {
            Self::List(items) => Ok(items.get(index).cloned()),
            Self::Items(items, schema) => match items.get(index) {
                Some(item) => Self::read(item, &schema["items"], false, fuel),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    pub(super) const fn is_list(&self) -> bool {
        matches!(self, Self::List(_) | Self::Items(..))
    }

    pub(super) const fn is_map(&self) -> bool {
        matches!(self, Self::Map(_) | Self::Entries(..))
    }

    /// Returns the value of a key of a map.
    pub(super) fn get(&self, key: &Val<'a>, fuel: &Fuel) -> Result<Option<Self>, EvalError> {
        match self {
            Self::Entries(map, schema) => match key {
                Val::Text(key) => match map.get(&**key) {
                    Some(value) => Self::read(value, &schema["additionalProperties"], false, fuel),
                    None => Ok(None),
                },
                _ => Ok(None),
            },
            Self::Map(entries) => {
                for (known, value) in entries.iter() {
                    if equal(known, key, fuel)? {
                        return Ok(Some(value.clone()));
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// What the rules may still cost for one object, in the units of the API server: one for each step, and one for ten bytes.
/// A deadline stops what the units do not bound.
#[derive(Debug)]
pub(super) struct Fuel {
    /// For the object.
    object: Cell<u64>,
    /// For the current rule, and at most what the object has.
    rule: Cell<u64>,
    /// The units since the clock was read.
    unchecked: Cell<u64>,
    deadline: Instant,
}

/// The clock is read once in this many units, so that a cheaper evaluation does not depend on it.
const CHECKED: u64 = 1_000;

impl Fuel {
    pub(super) const fn new(object: u64, deadline: Instant) -> Self {
        Self {
            object: Cell::new(object),
            rule: Cell::new(0),
            unchecked: Cell::new(0),
            deadline,
        }
    }

    /// Returns enough for a constant.
    pub(super) fn unlimited() -> Self {
        let fuel = Self::new(u64::MAX, Instant::now() + std::time::Duration::from_secs(60));
        fuel.begin(u64::MAX);
        fuel
    }

    /// Returns what the object has.
    pub(super) fn rest(&self) -> u64 {
        self.object.get()
    }

    /// Gives the next evaluation its units.
    pub(super) fn begin(&self, rule: u64) {
        self.rule.set(rule.min(self.object.get()));
    }

    /// Takes from the object alone what no evaluation burns.
    ///
    /// # Errors
    /// When it is too late.
    pub(super) fn take(&self, units: u64) -> Result<(), EvalError> {
        self.object.set(self.object.get().saturating_sub(units));
        self.in_time(units.max(1))
    }

    pub(super) fn burn(&self, units: usize) -> Result<(), EvalError> {
        let (units, rest) = (units as u64, self.rule.get());
        let burnt = units.min(rest);
        self.rule.set(rest - burnt);
        self.object.set(self.object.get().saturating_sub(burnt));
        self.in_time(burnt)?;
        if burnt < units {
            Err(EvalError::Cost)
        } else {
            Ok(())
        }
    }

    /// Burns what reading or making this many bytes costs.
    pub(super) fn bytes(&self, bytes: usize) -> Result<(), EvalError> {
        self.burn(1 + bytes / 10)
    }

    /// Burns what a new item of a list costs beside its bytes: it takes about 80 bytes, so that an evaluation holds 16 MB.
    pub(super) fn items(&self, count: usize) -> Result<(), EvalError> {
        self.burn(count.saturating_mul(5))
    }

    fn in_time(&self, units: u64) -> Result<(), EvalError> {
        let unchecked = self.unchecked.get() + units;
        if unchecked < CHECKED {
            self.unchecked.set(unchecked);
            return Ok(());
        }
        self.unchecked.set(0);
        if Instant::now() < self.deadline {
            return Ok(());
        }
        self.rule.set(0);
        self.object.set(0);
        Err(EvalError::Cost)
    }
}

/// Reports whether two values are equal. Numbers of different types can be equal.
///
/// # Errors
/// When it costs too much.
pub(super) fn equal(a: &Val<'_>, b: &Val<'_>, fuel: &Fuel) -> Result<bool, EvalError> {
    fuel.burn(1)?;
    Ok(match (a, b) {
        (Val::Null, Val::Null) => true,
        (Val::Bool(a), Val::Bool(b)) => a == b,
        (Val::Text(a), Val::Text(b)) => {
            fuel.bytes(a.len().min(b.len()))?;
            a[..] == b[..]
        }
        (Val::Bytes(a), Val::Bytes(b)) => {
            fuel.bytes(a.len().min(b.len()))?;
            a == b
        }
        (Val::Object(a, of_a, _), Val::Object(b, of_b, _)) => {
            fuel.burn(a.len() + b.len())?;
            let present = |map: &Map<String, Value>| map.values().filter(|value| !value.is_null()).count();
            if present(a) != present(b) {
                return Ok(false);
            }
            for (name, value) in a.iter().filter(|(_, value)| !value.is_null()) {
                let Some(other) = b.get(name) else {
                    return Ok(false);
                };
                let schemas = (of_a["properties"].get(name), of_b["properties"].get(name));
                let same = match schemas {
                    (Some(of_a), Some(of_b)) => {
                        let a = Val::read(value, of_a, false, fuel)?;
                        match (a, Val::read(other, of_b, false, fuel)?) {
                            (Some(a), Some(b)) => equal(&a, &b, fuel)?,
                            _ => value == other,
                        }
                    }
                    _ => value == other,
                };
                if !same {
                    return Ok(false);
                }
            }
            true
        }
        (Val::Optional(a), Val::Optional(b)) => match (a, b) {
            (Some(a), Some(b)) => equal(a, b, fuel)?,
            (None, None) => true,
            _ => false,
        },
        (Val::Url(a), Val::Url(b)) => a == b,
        (Val::Type(a), Val::Type(b)) => a == b,
        (Val::Ip(a), Val::Ip(b)) => a == b,
        (Val::Cidr(a), Val::Cidr(b)) => a == b,
        (a, b) if a.is_list() && b.is_list() => lists(a, b, fuel)?,
        (a, b) if a.is_map() && b.is_map() => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for key in keys(a) {
                match (a.get(&key, fuel)?, b.get(&key, fuel)?) {
                    (Some(a), Some(b)) if equal(&a, &b, fuel)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (a, b) => compare(a, b) == Some(Ordering::Equal),
    })
}

/// Compares lists. The order does not count if the first one is a set or a map of a resource.
fn lists(a: &Val<'_>, b: &Val<'_>, fuel: &Fuel) -> Result<bool, EvalError> {
    let (Some(count), Some(of_b)) = (a.len(), b.len()) else {
        return Ok(false);
    };
    if count != of_b {
        return Ok(false);
    }
    let ordered = !is_unordered(a);
    for index in 0..count {
        let Some(item) = a.item(index, fuel)? else {
            return Ok(false);
        };
        let mut candidates = if ordered { index..index + 1 } else { 0..count };
        let mut found = false;
        while !found
            && let Some(index) = candidates.next()
            && let Some(other) = b.item(index, fuel)?
        {
            found = equal(&item, &other, fuel)?;
        }
        if !found {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_unordered(list: &Val<'_>) -> bool {
    matches!(list, Val::Items(_, schema) if schema["x-kubernetes-list-type"] == "set" || schema["x-kubernetes-list-type"] == "map")
}

/// Returns the keys of a map.
pub(super) fn keys<'a>(map: &Val<'a>) -> Vec<Val<'a>> {
    match map {
        Val::Map(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
        Val::Entries(entries, _) => entries.keys().map(|key| Val::Text(Text::Of(key))).collect(),
        _ => Vec::new(),
    }
}

/// Compares values that have an order; `None` for all others.
pub(super) fn compare(a: &Val<'_>, b: &Val<'_>) -> Option<Ordering> {
    let integer = |value: &Val<'_>| match value {
        Val::Int(value) => Some(i128::from(*value)),
        Val::Uint(value) => Some(i128::from(*value)),
        _ => None,
    };
    let number = |value: &Val<'_>| match value {
        Val::Double(value) => Some(*value),
        other => integer(other).map(|value| value as f64),
    };
    match (a, b) {
        (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
        (Val::Text(a), Val::Text(b)) => Some(a[..].cmp(&b[..])),
        (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
        (Val::Duration(a), Val::Duration(b)) => Some(a.cmp(b)),
        (Val::Time(a), Val::Time(b)) => Some(a.cmp(b)),
        (Val::Quantity(a), Val::Quantity(b)) => Some(a.compare(b)),
        _ => match (integer(a), integer(b)) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => number(a)?.partial_cmp(&number(b)?),
        },
    }
}

/// The API server decodes what the format `byte` allows by the alphabet of URLs: it fails for `+` and `/`.
fn base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digits = text.trim_end_matches('=');
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(digits.len() * 3 / 4), 0_u32, 0);
    for digit in digits.bytes() {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        bits = (bits << 6) | u32::try_from(value).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}
