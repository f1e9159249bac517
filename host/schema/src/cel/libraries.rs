//! The functions of lists, sets, quantities, networks, URLs, optional values and durations.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::rc::Rc;

use ipnet::IpNet;

use super::EvalError;
use super::operators::{arithmetic, contains, items};
use super::time;
use super::url::{self, Url};
use super::value::{Evaluated, Fuel, Val, compare, equal};
use crate::quantity::Quantity;

/// Calls a function of sets.
pub(super) fn sets<'a>(name: &str, a: &Val<'a>, b: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let count = |of: &Val<'a>, within: &Val<'a>| {
        let mut count = 0;
        for item in items(of, fuel)? {
            count += usize::from(matches!(contains(within, &item, fuel)?, Val::Bool(true)));
        }
        Ok::<_, EvalError>(count)
    };
    let is_within = |of: &Val<'a>, within: &Val<'a>| Ok::<_, EvalError>(Some(count(of, within)?) == of.len());
    Ok(Val::Bool(match name {
        "sets.contains" => is_within(b, a)?,
        "sets.equivalent" => is_within(a, b)? && is_within(b, a)?,
        _ => count(a, b)? > 0,
    }))
}

/// Calls a method of a list.
pub(super) fn lists<'a>(name: &str, list: &Val<'a>, args: &[Val<'a>], fuel: &Fuel) -> Evaluated<'a> {
    let items = items(list, fuel)?;
    match (name, args) {
        ("isSorted", []) => {
            for pair in items.windows(2) {
                match compare(&pair[0], &pair[1]) {
                    None => return Err(EvalError::Overload),
                    Some(Ordering::Greater) => return Ok(Val::Bool(false)),
                    Some(_) => {}
                }
            }
            Ok(Val::Bool(true))
        }
        ("sum", []) => {
            let mut items = items.into_iter();
            let first = items.next().unwrap_or(Val::Int(0));
            items.try_fold(first, |sum, item| arithmetic("+", &sum, &item, fuel))
        }
        ("min" | "max", []) => {
            let wanted = if name == "min" {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            let mut items = items.into_iter();
            let first = items.next();
            let mut found = first.ok_or_else(|| EvalError::Error(format!("{name} called on empty list")))?;
            for item in items {
                if compare(&item, &found).ok_or(EvalError::Overload)? == wanted {
                    found = item;
                }
            }
            Ok(found)
        }
        ("indexOf" | "lastIndexOf", [wanted]) => {
            let mut found = -1;
            for (index, item) in items.iter().enumerate() {
                if equal(item, wanted, fuel)? {
                    found = index as i64;
                    if name == "indexOf" {
                        break;
                    }
                }
            }
            Ok(Val::Int(found))
        }
        ("first", []) => Ok(Val::Optional(items.into_iter().next().map(Rc::new))),
        ("last", []) => Ok(Val::Optional(items.into_iter().next_back().map(Rc::new))),
        ("reverse", []) => Ok(Val::list(items.into_iter().rev().collect())),
        ("slice", [Val::Int(from), Val::Int(to)]) => {
            let place = |index: i64| usize::try_from(index).ok().filter(|index| *index <= items.len());
            match (place(*from), place(*to)) {
                (Some(from), Some(to)) if from <= to => Ok(Val::list(items[from..to].to_vec())),
                _ => Err(EvalError::Error(format!(
                    "cannot slice({from}, {to}), list is length {}",
                    items.len()
                ))),
            }
        }
        ("distinct", []) => {
            let mut kept: Vec<Val<'a>> = Vec::new();
            for item in items {
                let mut is_known = false;
                for known in &kept {
                    is_known = is_known || equal(known, &item, fuel)?;
                }
                if !is_known {
                    kept.push(item);
                }
            }
            Ok(Val::list(kept))
        }
        ("sort", []) => {
            let mut sorted = items;
            fuel.burn(sorted.len().saturating_mul(20))?;
            if sorted
                .windows(2)
                .any(|pair| compare(&pair[0], &pair[1]).is_none())
            {
                return Err(EvalError::Overload);
            }
            sorted.sort_by(|a, b| compare(a, b).unwrap_or(Ordering::Equal));
            Ok(Val::list(sorted))
        }
        ("flatten", depth) => {
            let depth = match depth {
                [] => 1,
                [Val::Int(depth)] if *depth >= 0 => *depth,
                [Val::Int(_)] => return Err(EvalError::Error("level must be non-negative".to_owned())),
                _ => return Err(EvalError::Overload),
            };
            let mut flat = Vec::new();
            flatten(items, depth, &mut flat, fuel)?;
            Ok(Val::list(flat))
        }
        ("unwrapOpt", []) => unwrapped(list, fuel),
        ("join", separator) => {
            let separator = match separator {
                [] => "",
                [Val::Text(separator)] => separator,
                _ => return Err(EvalError::Overload),
            };
            let mut joined = String::new();
            for (index, item) in items.iter().enumerate() {
                let Val::Text(text) = item else {
                    return Err(EvalError::Overload);
                };
                fuel.bytes(text.len() + separator.len())?;
                if index > 0 {
                    joined.push_str(separator);
                }
                joined.push_str(text);
            }
            Ok(Val::made(joined))
        }
        _ => Err(EvalError::Overload),
    }
}

fn flatten<'a>(
    list: Vec<Val<'a>>,
    depth: i64,
    flat: &mut Vec<Val<'a>>,
    fuel: &Fuel,
) -> Result<(), EvalError> {
    for item in list {
        if depth > 0 && item.is_list() {
            flatten(items(&item, fuel)?, depth - 1, flat, fuel)?;
        } else {
            fuel.items(1)?;
            flat.push(item);
        }
    }
    Ok(())
}

/// Returns the values of those optional values of a list that have one.
pub(super) fn unwrapped<'a>(list: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let mut values = Vec::new();
    for item in items(list, fuel)? {
        let Val::Optional(value) = item else {
            return Err(EvalError::Overload);
        };
        values.extend(value.map(Rc::unwrap_or_clone));
    }
    Ok(Val::list(values))
}

/// Calls a method of another value.
pub(super) fn member<'a>(name: &str, of: &Val<'a>, args: &[Val<'a>], fuel: &Fuel) -> Evaluated<'a> {
    match of {
        Val::Quantity(of) => quantity(name, *of, args),
        Val::Ip(address) => ip(name, *address, args),
        Val::Cidr(of) => cidr(name, *of, args),
        Val::Url(of) => {
            // What the method returns is copied.
            let (bytes, items) = of.size();
            fuel.bytes(bytes)?;
            fuel.items(items)?;
            self::url(name, of, args)
        }
        Val::Optional(value) => match (name, args, value) {
            ("hasValue", [], value) => Ok(Val::Bool(value.is_some())),
            ("value", [], Some(value)) => Ok(Val::clone(value)),
            ("value", [], None) => Err(EvalError::Error("optional.none() dereference".to_owned())),
            _ => Err(EvalError::Overload),
        },
        Val::Duration(nanos) => match (name, args) {
            ("getHours", []) => Ok(Val::Int(nanos / 3_600_000_000_000)),
            ("getMinutes", []) => Ok(Val::Int(nanos / 60_000_000_000)),
            ("getSeconds", []) => Ok(Val::Int(nanos / 1_000_000_000)),
            ("getMilliseconds", []) => Ok(Val::Int(nanos / 1_000_000)),
            _ => Err(EvalError::Overload),
        },
        Val::Time(time) => {
            let zone = match args {
                [] => "",
                [Val::Text(zone)] => zone,
                _ => return Err(EvalError::Overload),
            };
            let local = time::local(*time, zone);
            let local = local.ok_or_else(|| EvalError::Unknown(format!("the time zone {zone}")))?;
            time::part(name, local).map(Val::Int).ok_or(EvalError::Overload)
        }
        _ => Err(EvalError::Overload),
    }
}

fn quantity<'a>(name: &str, of: Quantity, args: &[Val<'a>]) -> Evaluated<'a> {
    let other = match args {
        [] => None,
        [Val::Quantity(other)] => Some(*other),
        [Val::Int(other)] if matches!(name, "add" | "sub") => Some(Quantity::of(*other)),
        _ => return Err(EvalError::Overload),
    };
    let too_long = || EvalError::Unknown("a quantity with so many digits".to_owned());
    Ok(match (name, other) {
        ("isInteger", None) => Val::Bool(of.integer().is_some()),
        ("asInteger", None) => {
            let integer = of.integer().map(Val::Int);
            integer.ok_or_else(|| EvalError::Error("cannot convert value to integer".to_owned()))?
        }
        ("asApproximateFloat", None) => Val::Double(of.float()),
        ("add", Some(other)) => Val::Quantity(of.plus(other).ok_or_else(too_long)?),
        ("sub", Some(other)) => Val::Quantity(of.minus(other).ok_or_else(too_long)?),
        ("isLessThan", Some(other)) => Val::Bool(of.compare(&other).is_lt()),
        ("isGreaterThan", Some(other)) => Val::Bool(of.compare(&other).is_gt()),
        ("compareTo", Some(other)) => Val::Int(of.compare(&other) as i64),
        _ => return Err(EvalError::Overload),
    })
}

fn ip<'a>(name: &str, of: IpAddr, args: &[Val<'a>]) -> Evaluated<'a> {
    let local = |first: u8, v6: u16, mask: u16| match of {
        IpAddr::V4(of) if first == 169 => of.is_link_local(),
        IpAddr::V4(of) => of.octets()[..3] == [224, 0, 0],
        IpAddr::V6(of) => of.segments()[0] & mask == v6,
    };
    let is_link_local = local(169, 0xfe80, 0xffc0);
    Ok(match (name, args) {
        ("family", []) => Val::Int(if of.is_ipv4() { 4 } else { 6 }),
        ("isUnspecified", []) => Val::Bool(of.is_unspecified()),
        ("isLoopback", []) => Val::Bool(of.is_loopback()),
        ("isLinkLocalMulticast", []) => Val::Bool(local(224, 0xff02, 0xff0f)),
        ("isLinkLocalUnicast", []) => Val::Bool(is_link_local),
        ("isGlobalUnicast", []) => {
            let broadcast = matches!(of, IpAddr::V4(of) if of.is_broadcast());
            let other = of.is_unspecified() || of.is_loopback() || of.is_multicast() || broadcast;
            Val::Bool(!other && !is_link_local)
        }
        _ => return Err(EvalError::Overload),
    })
}

fn cidr<'a>(name: &str, of: IpNet, args: &[Val<'a>]) -> Evaluated<'a> {
    let wrong = |what: &str| EvalError::Error(format!("{what} parse error"));
    Ok(match (name, args) {
        ("containsIP", [Val::Ip(address)]) => Val::Bool(of.contains(address)),
        ("containsIP", [Val::Text(text)]) => {
            let address = url::ip(text).ok_or_else(|| wrong("IP Address"))?;
            Val::Bool(of.contains(&address))
        }
        ("containsCIDR", [Val::Cidr(inner)]) => Val::Bool(of.contains(inner)),
        ("containsCIDR", [Val::Text(text)]) => {
            let inner = url::cidr(text).ok_or_else(|| wrong("network address"))?;
            Val::Bool(of.contains(&inner))
        }
        ("ip", []) => Val::Ip(of.addr()),
        ("masked", []) => Val::Cidr(of.trunc()),
        ("prefixLength", []) => Val::Int(of.prefix_len().into()),
        _ => return Err(EvalError::Overload),
    })
}

fn url<'a>(name: &str, of: &Url, args: &[Val<'a>]) -> Evaluated<'a> {
    if !args.is_empty() {
        return Err(EvalError::Overload);
    }
    let (host, port) = of.host_and_port();
    Ok(match name {
        "getScheme" => Val::made(of.scheme.as_str()),
        "getHost" => Val::made(of.host.as_str()),
        "getHostname" => Val::made(host),
        "getPort" => Val::made(port),
        "getEscapedPath" => Val::made(of.path.as_str()),
        "getQuery" => Val::Map(Rc::new(
            of.query
                .iter()
                .map(|(name, values)| {
                    let values = values.iter().map(|value| Val::made(value.as_str())).collect();
                    (Val::made(name.as_str()), Val::list(values))
                })
                .collect(),
        )),
        _ => return Err(EvalError::Overload),
    })
}
