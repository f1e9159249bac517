//! The formats of texts that the API server checks. It ignores all others.
//!
//! Source: "Extend the Kubernetes API with CustomResourceDefinitions", section "Validation", and the functions of Go that it
//! names.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use crate::cel::re2::pattern;
use crate::cel::time::{date, lenient_duration};
use crate::cel::url::Url;

/// Formats that are a pattern. The name has no dashes.
const PATTERNS: [(&str, &str); 13] = [
    (
        "byte",
        "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$",
    ),
    ("hexcolor", "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
    (
        "rgbcolor",
        r"^rgb\((\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,){2}\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
    ),
    ("ssn", r"^\d{3}[- ]\d{2}[- ]\d{4}$"),
    ("uuid", "(?i)^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$"),
    (
        "uuid3",
        "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
    ),
    (
        "uuid4",
        "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
    ),
    (
        "uuid5",
        "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$",
    ),
    ("bsonobjectid", "^[0-9a-fA-F]{24}$"),
    ("k8sshortname", "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    (
        "k8slongname",
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
    (
        "hostname",
        r"^([a-zA-Z0-9\p{S}\pL]-?[a-zA-Z0-9\p{S}\pL]*|([a-zA-Z0-9\p{S}\pL]([a-zA-Z0-9\p{S}\pL-]*[a-zA-Z0-9\p{S}\pL])?\.)+[a-zA-Z\pL]{2,})$",
    ),
    (
        "time",
        "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$",
    ),
];

static COMPILED: LazyLock<HashMap<&str, Regex>> = LazyLock::new(|| {
    let compiled = |(name, text): (&'static str, &str)| Some((name, pattern(text).ok()?));
    PATTERNS.into_iter().filter_map(compiled).collect()
});

/// Reports whether a text has a format.
pub(super) fn is_valid(format: &str, text: &str) -> bool {
    let format = format.replace('-', "");
    let fits = |name: &str| COMPILED.get(name).is_none_or(|regex| regex.is_match(text));
    match format.as_str() {
        "date" => date(text).is_some(),
        "datetime" => {
            let lower = text.to_lowercase();
            let mut parts = lower.split('t');
            let (day, time) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            date(day).is_some() && COMPILED.get("time").is_some_and(|regex| regex.is_match(time))
        }
        "duration" => lenient_duration(text).is_some(),
        "ipv4" => text.contains('.') && (is_ipv4(text) || text.parse::<Ipv6Addr>().is_ok()),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uri" => Url::parse(text).is_some(),
        "email" => is_email(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "k8sshortname" => text.len() <= 63 && fits(&format),
        "k8slongname" => text.len() <= 253 && fits(&format),
        "hostname" => text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && fits(&format),
        "time" => true,
        other => fits(other),
    }
}

/// Takes zeros in front of the numbers, as Go once did.
fn is_ipv4(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    parts.len() == 4 && parts.iter().all(|part| is_number(part, 255))
}

fn is_number(text: &str, most: u32) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && text.parse::<u32>().is_ok_and(|number| number <= most)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    match is_ipv4(address) {
        true => is_number(length, 32),
        false => address.parse::<Ipv6Addr>().is_ok() && is_number(length, 128),
    }
}

/// An address of 6, 8 or 20 bytes, such as `01:23:45:67:89:ab` or `0123.4567.89ab`.
fn is_mac(text: &str) -> bool {
    let of = |sign: char, digits: usize| {
        let mut parts = text.split(sign);
        parts.all(|part| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    match text.len() {
        17 | 23 | 59 if text.contains([':', '-']) => of(':', 2) || of('-', 2),
        14 | 19 | 49 => of('.', 4),
        _ => false,
    }
}

/// Returns the digits of a number without spaces and dashes, if it has this many. The last one may be `X`.
fn isbn(text: &str, count: usize, may_end_with_x: bool) -> Option<Vec<u32>> {
    let text = text.replace([' ', '-', '\t', '\n', '\u{c}', '\r'], "");
    let digit = |(index, c): (usize, char)| match c {
        'X' if may_end_with_x && index + 1 == count => Some(10),
        c => c.to_digit(10),
    };
    let digits: Option<Vec<u32>> = text.chars().enumerate().map(digit).collect();
    digits.filter(|digits| digits.len() == count)
}

fn is_isbn10(text: &str) -> bool {
    let sum = |digits: Vec<u32>| (1..).zip(digits).map(|(place, digit)| place * digit).sum::<u32>();
    isbn(text, 10, true).is_some_and(|digits| sum(digits) % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let sum = |digits: Vec<u32>| {
        digits
            .iter()
            .zip([1, 3].iter().cycle())
            .map(|(digit, by)| digit * by)
            .sum::<u32>()
    };
    isbn(text, 13, false).is_some_and(|digits| sum(digits) % 10 == 0)
}

/// The known issuers, and the check sum of Luhn.
fn is_credit_card(text: &str) -> bool {
    const ISSUERS: &str = "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|\
                           3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$";
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let value = |(place, digit): (usize, char)| {
        let digit = digit.to_digit(10).unwrap_or_default();
        let doubled = digit << (place % 2);
        doubled / 10 + doubled % 10
    };
    let sum: u32 = digits.chars().rev().enumerate().map(value).sum();
    sum.is_multiple_of(10) && pattern(ISSUERS).is_ok_and(|regex| regex.is_match(&digits))
}

/// An address as in a mail, such as `a@b.c` or `Name <a@b.c>`.
fn is_email(text: &str) -> bool {
    static EMAIL: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let word = r#"[^\x00-\x20"(),.:;<>@\[\\\]\x7F]"#;
        let atom = format!(r"{word}+(?:\.{word}+)*");
        let quoted = r#"(?:[^"\\\r\n]|\\[^\r\n])"#;
        let local = format!(r#"(?:{atom}|"{quoted}+")"#);
        let address = format!(r"{local}@[ \t]*(?:{atom}|\[([0-9A-Fa-f:.]+)\])");
        let name = format!(r#"(?:(?:"{quoted}*"|(?:{word}|\.)+)[ \t]*)*"#);
        Regex::new(&format!(r"^[ \t]*(?:{address}|{name}<{address}>)[ \t]*$")).ok()
    });
    let parts = EMAIL.as_ref().and_then(|email| email.captures(text));
    parts.is_some_and(|parts| {
        let mut numbers = parts.iter().skip(1).flatten();
        numbers.all(|number| number.as_str().parse::<IpAddr>().is_ok())
    })
}
