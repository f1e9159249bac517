//! Splits a CEL expression into tokens.
//!
//! Source: the lexical rules of <https://github.com/google/cel-spec/blob/master/doc/langdef.md>.

use super::value::Val;

/// A part of an expression.
#[derive(Clone, Debug)]
pub(super) enum Token {
    /// An integer without its sign.
    Int(u64),
    Literal(Val<'static>),
    Name(String),
    Sign(&'static str),
    End,
}

/// Longer signs first.
const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", ".?", "<", ">", "(", ")", "[", "]", "{", "}", ".", ",", "?", ":",
    "+", "-", "*", "/", "%",
];

/// Returns the tokens, the last of which is [`Token::End`].
///
/// # Errors
/// When a part is no token, and where it begins.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after);
            continue;
        }
        let Some(first) = rest.chars().next() else {
            tokens.push(Token::End);
            return Ok(tokens);
        };
        let at = text.len() - rest.len();
        let (token, length) = if let Some(found) = quoted(rest) {
            found.map_err(|why| format!("{why} at {at}"))?
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            (Token::Name(rest[..length].to_owned()), length)
        } else if first.is_ascii_digit()
            || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            number(rest).ok_or_else(|| format!("no number at {at}"))?
        } else if first == '!' && !rest.starts_with("!=") {
            (Token::Sign("!"), 1)
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = sign.ok_or_else(|| format!("unexpected {first:?} at {at}"))?;
            (Token::Sign(sign), sign.len())
        };
        tokens.push(token);
        rest = &rest[length..];
    }
}

fn number(text: &str) -> Option<(Token, usize)> {
    if let Some(hex) = text.strip_prefix("0x") {
        let digits = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        let value = u64::from_str_radix(&hex[..digits], 16).ok()?;
        return Some(match hex[digits..].starts_with(['u', 'U']) {
            true => (Token::Literal(Val::Uint(value)), digits + 3),
            false => (Token::Int(value), digits + 2),
        });
    }
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let whole = digits(text);
    let mut end = whole;
    if text[end..].starts_with('.') && digits(&text[end + 1..]) > 0 {
        end += 1 + digits(&text[end + 1..]);
    }
    if text[end..].starts_with(['e', 'E']) {
        let signed = end + 1 + usize::from(text[end + 1..].starts_with(['+', '-']));
        if digits(&text[signed..]) > 0 {
            end = signed + digits(&text[signed..]);
        }
    }
    if end > whole {
        // As in Go, a literal beyond the largest double is none.
        let value: f64 = text[..end].parse().ok()?;
        return value
            .is_finite()
            .then_some((Token::Literal(Val::Double(value)), end));
    }
    let value = text[..whole].parse().ok()?;
    Some(match text[whole..].starts_with(['u', 'U']) {
        true => (Token::Literal(Val::Uint(value)), whole + 1),
        false => (Token::Int(value), whole),
    })
}

/// Returns a literal of text or bytes with its length in the source; `None` if there is none.
fn quoted(text: &str) -> Option<Result<(Token, usize), &'static str>> {
    let prefix = text.bytes().take(3).position(|b| b == b'"' || b == b'\'')?;
    let flags = text[..prefix].to_ascii_lowercase();
    if !["", "r", "b", "br"].contains(&flags.as_str()) {
        return None;
    }
    let body = &text[prefix..];
    let quote = &body[..1];
    let triple = quote.repeat(3);
    let close = if body.starts_with(&triple) {
        triple.as_str()
    } else {
        quote
    };
    Some(
        until(
            &body[close.len()..],
            close,
            flags.contains('r'),
            flags.contains('b'),
        )
        .map(|(bytes, length)| {
            let length = prefix + 2 * close.len() + length;
            let value = match flags.contains('b') {
                true => Val::Bytes(bytes.into()),
                // Escapes produce whole characters only.
                false => Val::made(String::from_utf8_lossy(&bytes)),
            };
            (Token::Literal(value), length)
        }),
    )
}

/// Returns what a literal stands for, and its length in the source without the quotes.
fn until(text: &str, close: &str, raw: bool, bytes: bool) -> Result<(Vec<u8>, usize), &'static str> {
    let mut value = Vec::new();
    let mut rest = text;
    loop {
        if rest.starts_with(close) {
            return Ok((value, text.len() - rest.len()));
        }
        let next = rest.chars().next().ok_or("an open string")?;
        if next == '\n' && close.len() == 1 {
            return Err("a string over several lines");
        }
        rest = &rest[next.len_utf8()..];
        if next != '\\' || raw {
            value.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let escaped = rest.chars().next().ok_or("an open string")?;
        rest = &rest[escaped.len_utf8()..];
        let mut code = |length: usize, radix: u32, from: &str| {
            let digits = from.get(..length).ok_or("an incomplete escape")?;
            let code = u32::from_str_radix(digits, radix).map_err(|_| "an escape without digits")?;
            if bytes && length < 4 {
                value.push(u8::try_from(code).map_err(|_| "an escape above 255")?);
            } else {
                let character = char::from_u32(code).ok_or("an escape that is no character")?;
                value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            Ok::<usize, &'static str>(length)
        };
        let plain = match escaped {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            '\\' | '\'' | '"' | '`' | '?' => escaped as u8,
            'x' | 'X' => {
                rest = &rest[code(2, 16, rest)?..];
                continue;
            }
            'u' | 'U' if bytes => return Err("an escape of characters in bytes"),
            'u' => {
                rest = &rest[code(4, 16, rest)?..];
                continue;
            }
            'U' => {
                rest = &rest[code(8, 16, rest)?..];
                continue;
            }
            '0'..='3' => {
                let from = &text[text.len() - rest.len() - 1..];
                rest = &from[code(3, 8, from)?..];
                continue;
            }
            _ => return Err("an unknown escape"),
        };
        value.push(plain);
    }
}
