//! The methods of strings.

use super::EvalError;
use super::patterns::Patterns;
use super::time;
use super::value::{Evaluated, Fuel, Val, keys};

/// Calls a method of a string. Positions count characters.
pub(super) fn member<'a>(
    name: &str,
    text: &str,
    args: &[Val<'a>],
    fuel: &Fuel,
    patterns: &Patterns,
) -> Evaluated<'a> {
    let out_of_range = |index: i64| EvalError::Error(format!("index out of range: {index}"));
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
        ("matches", [Val::Text(pattern)]) => {
            let regex = patterns.get(pattern, fuel)?;
            Ok(Val::Bool(regex.is_match(text, fuel)?))
        }
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
                return Err(EvalError::Error(format!(
                    "invalid substring range. start: {from}, end: {to}"
                )));
            }
            Ok(Val::made(&text[start..end]))
        }
        ("indexOf", [Val::Text(part)]) => Ok(place(text, text.find(&**part))),
        ("lastIndexOf", [Val::Text(part)]) => Ok(place(text, text.rfind(&**part))),
        ("indexOf" | "lastIndexOf", [Val::Text(_), Val::Int(index)]) if *index < 0 => {
            Err(out_of_range(*index))
        }
        ("indexOf" | "lastIndexOf", [Val::Text(part), Val::Int(index)]) => {
            let at = at(*index).ok();
            if part.is_empty() {
                return Ok(at.map_or_else(|| place(text, Some(text.len())), |_| Val::Int(*index)));
            }
            // From one that is not there, nothing is found.
            let Some(at) = at.filter(|at| *at < text.len()) else {
                return Ok(Val::Int(-1));
            };
            Ok(place(
                text,
                match name {
                    "indexOf" => text[at..].find(&**part).map(|found| found + at),
                    _ => text[..text.floor_char_boundary((at + part.len()).min(text.len()))].rfind(&**part),
                },
            ))
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
                _ => return Err(EvalError::Overload),
            };
            let regex = patterns.get(pattern, fuel)?;
            let found = regex.find_all(text, limit, fuel)?;
            Ok(Val::list(found.into_iter().map(Val::made).collect()))
        }
        ("format", [list]) if list.is_list() => format(text, list, fuel),
        _ => Err(EvalError::Overload),
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

/// A part of a text with clauses such as `%d`.
#[derive(Debug)]
pub(super) enum Clause {
    Text(String),
    Value { form: char, places: Option<usize> },
}

/// Splits a text into its clauses.
///
/// # Errors
/// Why it is none, in the API server's words.
pub(super) fn clauses(text: &str) -> Result<Vec<Clause>, String> {
    let (mut clauses, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('%') {
        clauses.push(Clause::Text(before.to_owned()));
        if let Some(after) = after.strip_prefix('%') {
            clauses.push(Clause::Text('%'.to_string()));
            rest = after;
            continue;
        }
        let (places, after) = match after.strip_prefix('.') {
            Some(after) => {
                let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
                let places = after[..end].parse::<usize>();
                (
                    Some(places.map_err(|_| "error while parsing precision".to_owned())?),
                    &after[end..],
                )
            }
            None => (None, after),
        };
        let form = after.chars().next().ok_or("unexpected end of string")?;
        if !"sdfebxXo".contains(form) {
            let why = format!("could not parse formatting clause: unrecognized formatting clause {form:?}");
            return Err(why);
        }
        clauses.push(Clause::Value { form, places });
        rest = &after[1..];
    }
    clauses.push(Clause::Text(rest.to_owned()));
    Ok(clauses)
}

/// Fills in the values of a list. Scientific numbers are left to the API server.
fn format<'a>(text: &str, values: &Val<'a>, fuel: &Fuel) -> Evaluated<'a> {
    let (mut made, mut next) = (String::new(), 0);
    for clause in clauses(text).map_err(EvalError::Error)? {
        let (form, places) = match clause {
            Clause::Text(text) => {
                made += &text;
                continue;
            }
            Clause::Value { form, places } => (form, places.unwrap_or(6)),
        };
        let value = values
            .item(next, fuel)?
            .ok_or_else(|| EvalError::Error(format!("index {next} out of range")))?;
        next += 1;
        made += &match (form, &value) {
            ('s', value) => formatted(value, fuel)?,
            ('d', Val::Int(_) | Val::Uint(_)) => shown(&value),
            ('f', Val::Double(value)) if places <= 50 => fixed(*value, places),
            ('b', Val::Bool(value)) => u8::from(*value).to_string(),
            ('b', Val::Int(value)) => signed(*value, |value| format!("{value:b}")),
            ('b', Val::Uint(value)) => format!("{value:b}"),
            ('o', Val::Int(value)) => signed(*value, |value| format!("{value:o}")),
            ('o', Val::Uint(value)) => format!("{value:o}"),
            ('x' | 'X', _) => {
                let digits = match &value {
                    Val::Int(value) => signed(*value, |value| format!("{value:x}")),
                    Val::Uint(value) => format!("{value:x}"),
                    Val::Text(text) => hexadecimal(text.as_bytes(), fuel)?,
                    Val::Bytes(bytes) => hexadecimal(bytes, fuel)?,
                    _ => return Err(unformattable(form, &value)),
                };
                if form == 'X' {
                    digits.to_uppercase()
                } else {
                    digits
                }
            }
            ('e' | 'f', Val::Double(_) | Val::Text(_)) => {
                return Err(EvalError::Unknown("format".to_owned()));
            }
            _ => return Err(unformattable(form, &value)),
        };
        fuel.bytes(made.len())?;
    }
    fuel.bytes(made.len())?;
    Ok(Val::made(made))
}

fn unformattable(form: char, value: &Val<'_>) -> EvalError {
    EvalError::Error(format!(
        "error during formatting: %{form} takes no {}",
        value.type_name()
    ))
}

fn signed(value: i64, digits: impl Fn(u64) -> String) -> String {
    format!(
        "{}{}",
        if value < 0 { "-" } else { "" },
        digits(value.unsigned_abs())
    )
}

fn hexadecimal(bytes: &[u8], fuel: &Fuel) -> Result<String, EvalError> {
    fuel.bytes(2 * bytes.len())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns a number with so many places, and commas between its thousands.
fn fixed(value: f64, places: usize) -> String {
    if !value.is_finite() {
        return shown(&Val::Double(value))
            .replace("+Inf", "∞")
            .replace("-Inf", "-∞");
    }
    let text = format!("{value:.places$}");
    let end = text.find('.').unwrap_or(text.len());
    let mut made = String::new();
    for (index, digit) in text.char_indices() {
        let is_inside = index > 0 && index < end && (end - index) % 3 == 0;
        if is_inside && !made.ends_with('-') {
            made.push(',');
        }
        made.push(digit);
    }
    made
}

/// Returns the text of a simple value, as `string` and `format` do.
pub(super) fn shown(value: &Val<'_>) -> String {
    match value {
        Val::Null => "null".to_owned(),
        Val::Bool(value) => value.to_string(),
        Val::Int(value) => value.to_string(),
        Val::Uint(value) => value.to_string(),
        Val::Double(value) => double(*value),
        Val::Text(text) => text.to_string(),
        Val::Ip(address) => address.to_string(),
        Val::Cidr(network) => network.to_string(),
        Val::Duration(nanos) => time::shown_duration(*nanos),
        Val::Time(time) => format!("{time}Z"),
        Val::Type(name) => (*name).to_owned(),
        other => other.type_name().to_owned(),
    }
}

/// Returns the shortest text of a number, as Go writes it.
fn double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => value.to_string(),
    }
}

/// Returns a text between quotes, with escapes.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for sign in text.chars() {
        match sign {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' | '"' => quoted.extend(['\\', sign]),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the text of a value for `%s`.
///
/// # Errors
/// When it costs too much, or no text stands for it.
fn formatted(value: &Val<'_>, fuel: &Fuel) -> Result<String, EvalError> {
    fuel.burn(1)?;
    match value {
        Val::Text(text) => fuel.bytes(text.len())?,
        Val::Bytes(bytes) => {
            fuel.bytes(bytes.len())?;
            return Ok(String::from_utf8_lossy(bytes).into_owned());
        }
        list if list.is_list() => {
            let mut items = Vec::new();
            for index in 0..list.len().unwrap_or_default() {
                if let Some(item) = list.item(index, fuel)? {
                    items.push(within(&item, fuel)?);
                }
            }
            return Ok(format!("[{}]", items.join(", ")));
        }
        map if map.is_map() => {
            let mut entries = Vec::new();
            for key in keys(map) {
                let value = map.get(&key, fuel)?.unwrap_or(Val::Null);
                entries.push((within(&key, fuel)?, within(&value, fuel)?));
            }
            entries.sort();
            let entries: Vec<String> = entries
                .into_iter()
                .map(|(key, value)| format!("{key}:{value}"))
                .collect();
            return Ok(format!("{{{}}}", entries.join(", ")));
        }
        Val::Null | Val::Bool(_) | Val::Int(_) | Val::Uint(_) | Val::Double(_) => {}
        Val::Duration(_) | Val::Time(_) | Val::Type(_) => {}
        _ => return Err(unformattable('s', value)),
    }
    Ok(shown(value))
}

/// Returns the text of a value within a list or a map, as it is written in an expression.
fn within(value: &Val<'_>, fuel: &Fuel) -> Result<String, EvalError> {
    let text = formatted(value, fuel)?;
    Ok(match value {
        Val::Text(_) => quoted(&text),
        Val::Bytes(_) => format!("b{}", quoted(&text)),
        Val::Double(value) if value.is_finite() => format!("{value:.6}"),
        Val::Double(_) => quoted(&text),
        Val::Duration(_) => format!("duration({})", quoted(&text)),
        Val::Time(_) => format!("timestamp({})", quoted(&text)),
        _ => text,
    })
}
