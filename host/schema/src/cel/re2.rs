//! Regular expressions as Go reads them. The API server uses RE2 for the patterns of schemas and for those of rules; its
//! syntax differs from that of the crate `regex` in escapes, classes and limits, and its classes are ASCII.
//!
//! A pattern is parsed as Go does and written for the crate. Source: <https://github.com/google/re2/wiki/Syntax>.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// Why a pattern cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Go refuses it with these words.
    Syntax(&'static str),
    /// Go takes it. Here it is too large, or repeats flags as in `a(?i)*`.
    Large,
}

/// Maximum number of bytes of a compiled pattern of a schema. The API server has another limit: what is larger is left to it.
const PATTERN: usize = 10 << 20;
/// Maximum number of repetitions, also of those within each other.
const REPETITIONS: u64 = 1_000;
/// Maximum number of groups within each other. Go's.
const DEPTH: usize = 1_000;

/// The names of classes such as `[[:alpha:]]`.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// Compiles a pattern of a schema.
///
/// # Errors
/// When the API server refuses it, or it is too large here.
pub(crate) fn pattern(text: &str) -> Result<Regex, Unusable> {
    compiled(text, PATTERN)
}

/// Compiles a pattern whose compiled form has at most this many bytes.
///
/// # Errors
/// When Go would refuse the pattern, or it is too large.
pub(crate) fn compiled(pattern: &str, size: usize) -> Result<Regex, Unusable> {
    let text = translated(pattern).map_err(Unusable::Syntax)?;
    let built = RegexBuilder::new(&text)
        .size_limit(size)
        .dfa_size_limit(size.min(128 << 10))
        .build();
    built.map_err(|_| Unusable::Large)
}

/// Returns the pattern in the syntax of the crate.
///
/// # Errors
/// When Go would refuse the pattern.
fn translated(pattern: &str) -> Result<String, &'static str> {
    let mut parser = Parser {
        rest: pattern.chars().peekable(),
        made: String::with_capacity(2 * pattern.len()),
    };
    // The outermost group is the pattern.
    let mut groups = vec![Group::default()];
    while let Some(next) = parser.rest.next() {
        let depth = groups.len();
        let Some(group) = groups.last_mut() else {
            return Err("unexpected )");
        };
        match next {
            '(' if depth > DEPTH => return Err("expression nests too deeply"),
            '(' => {
                if !parser.take('?') {
                    parser.made.push_str("(?:");
                    groups.push(Group::default());
                } else if parser.flags()? {
                    groups.push(Group::default());
                } else if group.last == Last::Repetition {
                    group.item(group.repetitions);
                }
            }
            ')' => {
                let repetitions = group.repetitions;
                groups.pop();
                groups.last_mut().ok_or("unexpected )")?.item(repetitions);
                parser.made.push(')');
            }
            '|' => {
                group.last = Last::Nothing;
                parser.made.push('|');
            }
            '*' | '+' | '?' => group.repeat(&mut parser, &next.to_string(), 1)?,
            '{' => match parser.counts()? {
                Some((text, most)) => group.repeat(&mut parser, &text, most)?,
                None => {
                    parser.literal('{');
                    group.item(1);
                }
            },
            '.' | '^' | '$' => {
                parser.made.push(next);
                group.item(1);
            }
            '[' => {
                parser.class()?;
                group.item(1);
            }
            '\\' if parser.take('Q') => {
                // Up to \E, everything is what it is.
                while let Some(next) = parser.rest.next() {
                    if next == '\\' && parser.take('E') {
                        break;
                    }
                    parser.literal(next);
                    group.item(1);
                }
            }
            '\\' => {
                parser.escape()?;
                group.item(1);
            }
            other => {
                parser.literal(other);
                group.item(1);
            }
        }
    }
    match groups.len() {
        1 => Ok(parser.made),
        _ => Err("missing closing )"),
    }
}

/// What stands before a repetition.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Last {
    #[default]
    Nothing,
    /// What may be repeated, with the repetitions within it.
    Item(u64),
    Repetition,
}

/// An open group.
#[derive(Default)]
struct Group {
    last: Last,
    /// The most repetitions within each other.
    repetitions: u64,
}

impl Group {
    fn item(&mut self, repetitions: u64) {
        self.last = Last::Item(repetitions.max(1));
        self.repetitions = self.repetitions.max(repetitions);
    }

    fn repeat(&mut self, parser: &mut Parser<'_>, text: &str, most: u64) -> Result<(), &'static str> {
        let within = match self.last {
            Last::Nothing => return Err("missing argument to repetition operator"),
            Last::Repetition => return Err("invalid nested repetition operator"),
            Last::Item(within) => within,
        };
        parser.made.push_str(text);
        if parser.take('?') {
            parser.made.push('?');
        }
        let all = within.saturating_mul(most.max(1));
        if most > 1 && all > REPETITIONS {
            return Err("invalid repeat count");
        }
        self.repetitions = self.repetitions.max(all);
        self.last = Last::Repetition;
        Ok(())
    }
}

struct Parser<'p> {
    rest: Peekable<Chars<'p>>,
    made: String,
}

impl Parser<'_> {
    fn take(&mut self, wanted: char) -> bool {
        self.rest.next_if_eq(&wanted).is_some()
    }

    fn literal(&mut self, literal: char) {
        if literal.is_ascii_alphanumeric() {
            self.made.push(literal);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(self.made, "\\x{{{:X}}}", u32::from(literal));
        }
    }

    /// Reads what follows `(?`, and reports whether a group is open after it. Nothing asks for the names of groups.
    fn flags(&mut self) -> Result<bool, &'static str> {
        let named = self.take('P') || self.rest.peek() == Some(&'<');
        if named {
            let mut name = String::new();
            if !self.take('<') {
                return Err("invalid or unsupported Perl syntax");
            }
            while let Some(next) = self.rest.next_if(|next| *next != '>') {
                name.push(next);
            }
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            self.made.push_str("(?:");
            return match is_name && self.take('>') {
                true => Ok(true),
                false => Err("invalid named capture"),
            };
        }
        let (mut on, mut off) = (String::new(), String::new());
        let (mut negative, mut seen) = (false, false);
        for next in self.rest.by_ref() {
            match next {
                'i' | 'm' | 's' | 'U' => {
                    seen = true;
                    let (to, from) = if negative {
                        (&mut off, &mut on)
                    } else {
                        (&mut on, &mut off)
                    };
                    from.retain(|flag| flag != next);
                    if !to.contains(next) {
                        to.push(next);
                    }
                }
                '-' if !negative => (negative, seen) = (true, false),
                ':' | ')' if !negative || seen => {
                    let minus = if off.is_empty() { "" } else { "-" };
                    if next == ':' || !on.is_empty() || !off.is_empty() {
                        let _ = write!(self.made, "(?{on}{minus}{off}{next}");
                    }
                    return Ok(next == ':');
                }
                _ => break,
            }
        }
        Err("invalid or unsupported Perl syntax")
    }

    /// Reads the rest of `{2}`, `{2,}` or `{2,3}`, and returns it with the highest number. Any other `{` is itself.
    fn counts(&mut self) -> Result<Option<(String, u64)>, &'static str> {
        let text: String = self.rest.clone().take_while(|next| *next != '}').collect();
        let number = |digits: &str| {
            let is_plain = digits == "0" || !digits.starts_with('0');
            let is_number = !digits.is_empty() && is_plain && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse().unwrap_or(u64::MAX))
        };
        let (least, most) = text.split_once(',').unwrap_or((&text, &text));
        let is_closed = self.rest.clone().nth(text.chars().count()) == Some('}');
        let (Some(low), Some(high), true) = (
            number(least),
            number(if most.is_empty() { least } else { most }),
            is_closed,
        ) else {
            return Ok(None);
        };
        if low > high || high > REPETITIONS {
            return Err("invalid repeat count");
        }
        self.rest.nth(text.chars().count());
        Ok(Some((format!("{{{text}}}"), high)))
    }

    /// Reads what follows a backslash.
    fn escape(&mut self) -> Result<(), &'static str> {
        let assertion = match self.rest.peek() {
            Some('A') => r"\A",
            Some('z') => r"\z",
            Some('b') => r"(?-u:\b)",
            Some('B') => r"(?-u:\B)",
            _ => {
                if !self.named_class()? {
                    let literal = self.escaped()?;
                    self.literal(literal);
                }
                return Ok(());
            }
        };
        self.rest.next();
        self.made.push_str(assertion);
        Ok(())
    }

    /// Reads a class such as `\d` or `\p{Greek}` after its backslash; `false` if there is none.
    fn named_class(&mut self) -> Result<bool, &'static str> {
        let Some(letter) = self.rest.next_if(|next| "dDsSwWpP".contains(*next)) else {
            return Ok(false);
        };
        let set = match letter {
            'd' => "[0-9]",
            'D' => "[^0-9]",
            's' => r"[\t\n\f\r ]",
            'S' => r"[^\t\n\f\r ]",
            'w' => "[0-9A-Za-z_]",
            'W' => "[^0-9A-Za-z_]",
            _ => {
                let class = self.unicode_class(letter == 'P')?;
                self.made.push_str(&class);
                return Ok(true);
            }
        };
        self.made.push_str(set);
        Ok(true)
    }

    fn unicode_class(&mut self, mut negative: bool) -> Result<String, &'static str> {
        const INVALID: &str = "invalid character class range";
        let mut name = String::new();
        match self.rest.next() {
            Some('{') => {
                negative ^= self.take('^');
                while let Some(next) = self.rest.next_if(|next| *next != '}') {
                    name.push(next);
                }
                if !self.take('}') {
                    return Err(INVALID);
                }
            }
            letter => name.extend(letter),
        }
        name.retain(|c| !"_- ".contains(c));
        let name = name.to_ascii_lowercase();
        // The crate takes `isGreek`, and Go does not.
        if name.is_empty() || name.starts_with("is") || !name.bytes().all(|b| b.is_ascii_alphabetic()) {
            return Err(INVALID);
        }
        let letter = if negative { 'P' } else { 'p' };
        let class = match name.as_str() {
            "any" | "assigned" | "ascii" => format!(r"\{letter}{{{name}}}"),
            _ => ["gc", "sc"]
                .map(|of| format!(r"\{letter}{{{of}={name}}}"))
                .into_iter()
                .find(|class| regex_syntax::parse(class).is_ok())
                .ok_or(INVALID)?,
        };
        Ok(class)
    }

    /// Reads one escaped character after its backslash.
    fn escaped(&mut self) -> Result<char, &'static str> {
        const INVALID: &str = "invalid escape sequence";
        let next = self
            .rest
            .next()
            .ok_or("trailing backslash at end of expression")?;
        let octal = |c: &char| ('0'..='7').contains(c);
        let code = match next {
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            '0'..='7' => {
                // One digit other than zero would refer to a group.
                if next != '0' && !self.rest.peek().is_some_and(octal) {
                    return Err(INVALID);
                }
                let more = (0..2).map_while(|_| self.rest.next_if(octal)?.to_digit(8));
                more.fold(u32::from(next) - u32::from('0'), |code, digit| 8 * code + digit)
            }
            'x' if self.take('{') => {
                let mut code: Option<u32> = None;
                while let Some(digit) = self.rest.peek().and_then(|next| next.to_digit(16)) {
                    self.rest.next();
                    code = Some(code.unwrap_or(0).saturating_mul(16).saturating_add(digit));
                }
                code.filter(|_| self.take('}')).ok_or(INVALID)?
            }
            'x' => {
                let mut digit = || self.rest.next().and_then(|next| next.to_digit(16)).ok_or(INVALID);
                16 * digit()? + digit()?
            }
            other if other.is_ascii() && !other.is_ascii_alphanumeric() => u32::from(other),
            _ => return Err(INVALID),
        };
        char::from_u32(code).ok_or(INVALID)
    }

    /// Reads the rest of a class after its bracket.
    fn class(&mut self) -> Result<(), &'static str> {
        const MISSING: &str = "missing closing ]";
        const INVALID: &str = "invalid character class range";
        self.made.push('[');
        if self.take('^') {
            self.made.push('^');
        }
        let mut first = true;
        loop {
            let next = *self.rest.peek().ok_or(MISSING)?;
            if next == ']' && !first {
                self.rest.next();
                self.made.push(']');
                return Ok(());
            }
            first = false;
            if next == '['
                && let Some(name) = self.posix_name()
            {
                if !POSIX.contains(&name.trim_matches(['[', ']', ':', '^'])) {
                    return Err(INVALID);
                }
                self.made.push_str(&name);
                continue;
            }
            if next == '\\' {
                let mut ahead = self.rest.clone();
                ahead.next();
                if ahead.next().is_some_and(|next| "dDsSwWpP".contains(next)) {
                    self.rest.next();
                    self.named_class()?;
                    continue;
                }
            }
            let low = self.class_char()?;
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|next| next != ']');
            self.literal(low);
            if is_range {
                self.rest.next();
                let high = self.class_char()?;
                if high < low {
                    return Err(INVALID);
                }
                self.made.push('-');
                self.literal(high);
            }
        }
    }

    fn class_char(&mut self) -> Result<char, &'static str> {
        match self.rest.next().ok_or("missing closing ]")? {
            '\\' => self.escaped(),
            other => Ok(other),
        }
    }

    /// Reads a name such as `[:alpha:]`, if there is one.
    fn posix_name(&mut self) -> Option<String> {
        let rest: String = self.rest.clone().collect();
        let end = rest.strip_prefix("[:")?.find(":]")? + 4;
        let name = &rest[..end];
        self.rest.nth(name.chars().count() - 1);
        Some(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether Go's regexp finds each pattern in a text; `None` where it refuses the pattern. Made with Go 1.26.
    const CASES: &str = include_str!("re2.json");

    #[test]
    fn patterns_match_as_in_go() {
        let cases: Vec<(String, String, Option<String>)> = serde_json::from_str(CASES).unwrap();
        let mut wrong = Vec::new();
        for (pattern, text, wanted) in &cases {
            let regex = compiled(pattern, 4 << 20);
            let found = regex.as_ref().ok().map(|regex| {
                let found = regex.find(text);
                found.map_or("none".to_owned(), |found| {
                    format!("{}-{}", found.start(), found.end())
                })
            });
            if found != *wanted {
                wrong.push(format!(
                    "{pattern:?} in {text:?} is {found:?} ({regex:?}), not {wanted:?}: {:?}",
                    translated(pattern)
                ));
            }
        }
        assert!(
            wrong.is_empty(),
            "{} of {}:\n{}",
            wrong.len(),
            cases.len(),
            wrong.join("\n")
        );
    }
}
