//! The operators on values.

use std::cmp::Ordering;
use std::rc::Rc;

use jiff::SignedDuration;
use jiff::civil::DateTime;

use super::EvalError;
use super::strings::shown;
use super::time;
use super::value::{Evaluated, Fuel, Val, compare, equal};

/// Applies an operator.
pub(super) fn apply<'a>(operator: &str, args: &[Val<'a>], fuel: &Fuel) -> Evaluated<'a> {
    match (operator, args) {
        ("!", [Val::Bool(value)]) => Ok(Val::Bool(!value)),
        ("-", [Val::Int(value)]) => value.checked_neg().map(Val::Int).ok_or_else(EvalError::overflow),
        ("-", [Val::Double(value)]) => Ok(Val::Double(-value)),
        ("==", [left, right]) => equal(left, right, fuel).map(Val::Bool),
        ("!=", [left, right]) => equal(left, right, fuel).map(|equal| Val::Bool(!equal)),
        ("in", [value, list]) => contains(list, value, fuel),
        ("<" | "<=" | ">" | ">=", [left, right]) => order(operator, left, right, fuel),
        ("[]" | "[?]", [of, index]) => item(of, index, operator == "[?]", fuel),
        (_, [left, right]) => arithmetic(operator, left, right, fuel),
        _ => Err(EvalError::Overload),
    }
}

/// Implements `<`, `<=`, `>` and `>=`.
fn order<'a>(operator: &str, left: &Val<'a>, right: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    match (left, right) {
        (Val::Quantity(_), _) => return Err(EvalError::Overload),
        (Val::Text(a), Val::Text(b)) => fuel.bytes(a.len().min(b.len()))?,
        // Every comparison with it is false.
        (Val::Double(value), _) | (_, Val::Double(value)) if value.is_nan() => return Ok(Val::Bool(false)),
        _ => {}
    }
    let order = compare(left, right).ok_or(EvalError::Overload)?;
    Ok(Val::Bool(match operator {
        "<" => order == Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}

/// Returns an item of a list or the value of a key.
fn item<'a>(of: &Val<'a>, index: &Val<'a>, optional: bool, fuel: &Fuel) -> Evaluated<'a> {
    let (found, what) = match of {
        Val::Optional(None) => return Ok(Val::Optional(None)),
        Val::Optional(Some(of)) => return item(of, index, true, fuel),
        list if list.is_list() => {
            let at = match index {
                Val::Int(at) => usize::try_from(*at).ok(),
                Val::Uint(at) => usize::try_from(*at).ok(),
                Val::Double(at) => (at.fract() == 0.0 && *at >= 0.0).then_some(*at as usize),
                _ => return Err(EvalError::Overload),
            };
            let found = at.map_or(Ok(None), |at| list.item(at, fuel))?;
            (found, "index out of bounds")
        }
        map if map.is_map() => (map.get(index, fuel)?, "no such key"),
        _ => return Err(EvalError::Overload),
    };
    match (found, optional) {
        (found, true) => Ok(Val::Optional(found.map(Rc::new))),
        (Some(value), false) => Ok(value),
        (None, false) => Err(EvalError::Error(format!("{what}: {}", shown(index)))),
    }
}

/// Implements `in`.
pub(super) fn contains<'a>(list: &Val<'a>, value: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    if list.is_map() {
        return Ok(Val::Bool(list.get(value, fuel)?.is_some()));
    }
    let (Some(count), true) = (list.len(), list.is_list()) else {
        return Err(EvalError::Overload);
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
    match (operator, left, right) {
        ("/" | "%", Val::Int(_), Val::Int(0)) | ("/" | "%", Val::Uint(_), Val::Uint(0)) => {
            let what = if operator == "/" { "division" } else { "modulus" };
            Err(EvalError::Error(format!("{what} by zero")))
        }
        (_, Val::Int(a), Val::Int(b)) => match operator {
            "+" => a.checked_add(*b),
            "-" => a.checked_sub(*b),
            "*" => a.checked_mul(*b),
            "/" => a.checked_div(*b),
            _ => a.checked_rem(*b),
        }
        .map(Val::Int)
        .ok_or_else(EvalError::overflow),
        (_, Val::Uint(a), Val::Uint(b)) => match operator {
            "+" => a.checked_add(*b),
            "-" => a.checked_sub(*b),
            "*" => a.checked_mul(*b),
            "/" => a.checked_div(*b),
            _ => a.checked_rem(*b),
        }
        .map(Val::Uint)
        .ok_or_else(EvalError::unsigned_overflow),
        (_, Val::Double(a), Val::Double(b)) => Ok(Val::Double(match operator {
            "+" => a + b,
            "-" => a - b,
            "*" => a * b,
            "/" => a / b,
            _ => return Err(EvalError::Overload),
        })),
        ("+", Val::Text(a), Val::Text(b)) => {
            fuel.bytes(a.len() + b.len())?;
            Ok(Val::made([&**a, &**b].concat()))
        }
        ("+", Val::Bytes(a), Val::Bytes(b)) => {
            fuel.bytes(a.len() + b.len())?;
            Ok(Val::Bytes([&**a, &**b].concat().into()))
        }
        ("+", a, b) if a.is_list() && b.is_list() => concat(a, b, fuel),
        ("+", Val::Duration(a), Val::Duration(b)) => a
            .checked_add(*b)
            .map(Val::Duration)
            .ok_or_else(EvalError::overflow),
        ("-", Val::Duration(a), Val::Duration(b)) => a
            .checked_sub(*b)
            .map(Val::Duration)
            .ok_or_else(EvalError::overflow),
        ("+", Val::Time(a), Val::Duration(b)) | ("+", Val::Duration(b), Val::Time(a)) => {
            moved(*a, SignedDuration::from_nanos(*b))
        }
        ("-", Val::Time(a), Val::Duration(b)) => moved(*a, -SignedDuration::from_nanos(*b)),
        ("-", Val::Time(a), Val::Time(b)) => i64::try_from(a.duration_since(*b).as_nanos())
            .map(Val::Duration)
            .map_err(|_| EvalError::overflow()),
        _ => Err(EvalError::Overload),
    }
}

fn moved<'a>(time: DateTime, by: SignedDuration) -> Evaluated<'a> {
    time::later(time, by)
        .map(Val::Time)
        .ok_or_else(EvalError::time_overflow)
}

/// Returns the items of a list.
pub(super) fn items<'a>(list: &Val<'a>, fuel: &Fuel) -> Result<Vec<Val<'a>>, EvalError> {
    let count = list.len().filter(|_| list.is_list()).ok_or(EvalError::Overload)?;
    fuel.burn(3 * count)?;
    let items = (0..count).map(|index| list.item(index, fuel));
    items.filter_map(Result::transpose).collect()
}

/// Joins two lists. A list of a resource that is a set or a map gets what it lacks, and of a map the newer items.
pub(super) fn concat<'a>(a: &Val<'a>, b: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let mut all = items(a, fuel)?;
    let type_ = match a {
        Val::Items(_, schema) => schema["x-kubernetes-list-type"].as_str(),
        _ => None,
    };
    let keys = match a {
        Val::Items(_, schema) => schema["x-kubernetes-list-map-keys"].as_array(),
        _ => None,
    };
    for item in items(b, fuel)? {
        let same = |other: &Val<'a>| match (type_, other, &item) {
            (Some("set"), other, item) => equal(other, item, fuel),
            (Some("map"), Val::Object(a, ..), Val::Object(b, ..)) => {
                fuel.burn(1)?;
                let mut keys = keys.into_iter().flatten().filter_map(|key| key.as_str());
                Ok(keys.all(|key| a.get(key) == b.get(key)))
            }
            _ => Ok(false),
        };
        let mut place = None;
        if type_.is_some_and(|type_| type_ != "atomic") {
            for (index, other) in all.iter().enumerate() {
                if same(other)? {
                    place = Some(index);
                    break;
                }
            }
        }
        match place {
            Some(index) => all[index] = item,
            None => all.push(item),
        }
    }
    Ok(Val::list(all))
}
