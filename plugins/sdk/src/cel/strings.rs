//! The methods of strings.

use super::Fault;
use super::patterns::Patterns;
use super::value::{Evaluated, Fields, Fuel, Val, keys};

pub(super) fn matches<'a>(text: &str, pattern: &str, fuel: &Fuel, patterns: &Patterns) -> Evaluated<'a> {
    let regex = patterns.get(pattern, fuel)?;
    Ok(Val::Bool(regex.is_match(text, fuel)?))
}

/// Calls a method of a string. Positions count characters.
pub(super) fn member<'a>(
    name: &str,
    text: &str,
    args: &[Val<'a>],
    fuel: &Fuel,
    patterns: &Patterns,
) -> Evaluated<'a> {
    fuel.bytes(text.len())?;
    let out_of_range = |index: i64| Fault::Error(format!("index out of range: {index}"));
    // Where a character begins, or the text ends.
    let at = |index: i64| {
        let mut places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
        let found = usize::try_from(index).ok().and_then(|index| places.nth(index));
        found.ok_or_else(|| out_of_range(index))
    };
    match (name, args) {
        ("contains", [Val::Text(part)]) => Ok(Val::Bool(text.contains(&**part))),
        ("startsWith", [Val::Text(part)]) => Ok(Val::Bool(text.starts_with(&**part))),
        ("endsWith", [Val::Text(part)]) => Ok(Val::Bool(text.ends_with(&**part))),
        ("matches", [Val::Text(pattern)]) => matches(text, pattern, fuel, patterns),
        ("lowerAscii", []) => Ok(Val::made(text.to_ascii_lowercase())),
        ("upperAscii", []) => Ok(Val::made(text.to_ascii_uppercase())),
        ("trim", []) => Ok(Val::made(text.trim())),
        ("charAt", [Val::Int(index)]) => {
            let letter = text[at(*index)?..].chars().next();
            Ok(Val::made(letter.map(String::from).unwrap_or_default()))
        }
        ("substring", [Val::Int(from)]) => Ok(Val::made(&text[at(*from)?..])),
        ("substring", [Val::Int(from), Val::Int(to)]) => {
            let (start, end) = (at(*from)?, at(*to)?);
            if start > end {
                return Err(Fault::Error(format!(
                    "invalid substring range. start: {from}, end: {to}"
                )));
            }
            Ok(Val::made(&text[start..end]))
        }
        ("indexOf", [Val::Text(part)]) => Ok(place(text, text.find(&**part))),
        ("lastIndexOf", [Val::Text(part)]) => Ok(place(text, text.rfind(&**part))),
        ("indexOf", [Val::Text(part), Val::Int(from)]) => {
            let from = at(*from)?;
            let found = text[from..].find(&**part);
            Ok(place(text, found.map(|found| found + from)))
        }
        ("lastIndexOf", [Val::Text(part), Val::Int(to)]) => {
            let end = (at(*to)? + part.len()).min(text.len());
            let end = text.floor_char_boundary(end);
            Ok(place(text, text[..end].rfind(&**part)))
        }
        ("replace", [Val::Text(from), Val::Text(to)]) => replace(text, from, to, -1, fuel),
        ("replace", [Val::Text(from), Val::Text(to), Val::Int(count)]) => {
            replace(text, from, to, *count, fuel)
        }
        ("split", [Val::Text(by)]) => split(text, by, -1, fuel),
        ("split", [Val::Text(by), Val::Int(count)]) => split(text, by, *count, fuel),
        ("find", [Val::Text(pattern)]) => {
            let regex = patterns.get(pattern, fuel)?;
            let found = regex.find(text, fuel)?;
            Ok(Val::made(found.map_or("", |found| found.as_str())))
        }
        ("findAll", [Val::Text(pattern), limit @ ..]) => {
            let limit = match limit {
                [] => usize::MAX,
                [Val::Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
                _ => return Err(Fault::Overload),
            };
            let regex = patterns.get(pattern, fuel)?;
            let found = regex.find_all(text, limit, fuel)?;
            Ok(Val::list(found.into_iter().map(Val::made).collect()))
        }
        ("format", [list]) if list.is_list() => format(text, list, fuel),
        _ => Err(Fault::Overload),
    }
}

fn place<'a>(text: &str, found: Option<usize>) -> Val<'a> {
    Val::Int(found.map_or(-1, |at| text[..at].chars().count() as i64))
}

fn replace<'a>(text: &str, from: &str, to: &str, count: i64, fuel: &Fuel) -> Evaluated<'a> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(from).take(count).count();
    fuel.bytes(text.len() + found.saturating_mul(to.len()))?;
    Ok(Val::made(text.replacen(from, to, count)))
}

fn split<'a>(text: &str, by: &str, count: i64, fuel: &Fuel) -> Evaluated<'a> {
    if count == 0 {
        return Ok(Val::list(Vec::new()));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut parts: Vec<Val<'a>> = Vec::new();
    if by.is_empty() {
        for (at, letter) in text.char_indices() {
            fuel.items(1)?;
            if parts.len() + 1 == count {
                parts.push(Val::made(&text[at..]));
                break;
            }
            parts.push(Val::made(String::from(letter)));
        }
    } else {
        for part in text.splitn(count, by) {
            fuel.items(1)?;
            parts.push(Val::made(part));
        }
    }
    Ok(Val::list(parts))
}

/// Fills in the values of a list for `%s`, `%d` and `%f`. The other forms are left to the API server.
fn format<'a>(text: &str, values: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let mut made = String::new();
    let mut next = 0;
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        made.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            made.push('%');
            rest = after;
            continue;
        }
        let (places, after) = match after.strip_prefix('.') {
            Some(after) => {
                let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
                let places = after[..end].parse::<usize>().ok().filter(|places| *places <= 50);
                (Some(places.ok_or(Fault::Overload)?), &after[end..])
            }
            None => (None, after),
        };
        let value = values
            .item(next, fuel)?
            .ok_or_else(|| Fault::Error(format!("index {next} out of range")))?;
        next += 1;
        let form = after.chars().next().unwrap_or_default();
        match (form, &value) {
            ('s', value) => made += &formatted(value, fuel)?,
            ('d', Val::Int(_) | Val::Uint(_)) => made += &formatted(&value, fuel)?,
            ('f', Val::Double(value)) => made += &format!("{value:.*}", places.unwrap_or(6)),
            ('d' | 'f', _) => return Err(Fault::Overload),
            _ => return Err(Fault::Unknown("format".to_owned())),
        }
        fuel.bytes(made.len())?;
        rest = &after[form.len_utf8()..];
    }
    made.push_str(rest);
    fuel.bytes(made.len())?;
    Ok(Val::made(made))
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
fn formatted(value: &Val<'_>, fuel: &Fuel) -> Result<String, Fault> {
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
