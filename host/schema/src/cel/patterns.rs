//! The regular expressions of an evaluation.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use regex::{Match, Regex};

use super::EvalError;
use super::re2::{Unusable, compiled};
use super::value::Fuel;

/// The regular expressions of an evaluation, compiled once each.
#[derive(Debug, Default)]
pub(super) struct Patterns(RefCell<HashMap<String, Result<Rc<Pattern>, Unusable>>>);

/// Maximum number of compiled regular expressions.
const PATTERNS: usize = 16;
/// Sizes of a compiled regular expression in bytes, of which the last one is the limit.
const SIZES: [usize; 6] = [1 << 10, 8 << 10, 32 << 10, 128 << 10, 1 << 20, 4 << 20];
/// The length of a regular expression of which only one is kept.
const LONG: usize = SIZES[3] / 64;

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// The length that a search is charged for. A short text such as `(a{100}){10}` can be a large expression.
    length: usize,
}

impl Pattern {
    /// Compiles a regular expression.
    fn new(text: &str) -> Result<Self, Unusable> {
        let mut why = Unusable::Large;
        for size in SIZES {
            match compiled(text, size) {
                Ok(regex) => {
                    let length = text.len().max(size / 64);
                    return Ok(Self { regex, length });
                }
                Err(Unusable::Large) => {}
                Err(syntax) => {
                    why = syntax;
                    break;
                }
            }
        }
        Err(why)
    }

    pub(super) fn is_match(&self, text: &str, fuel: &Fuel) -> Result<bool, EvalError> {
        self.charge(text.len(), fuel)?;
        Ok(self.regex.is_match(text))
    }

    pub(super) fn find<'t>(&self, text: &'t str, fuel: &Fuel) -> Result<Option<Match<'t>>, EvalError> {
        self.charge(text.len(), fuel)?;
        Ok(self.regex.find(text))
    }

    /// Returns what it matches, up to a limit.
    pub(super) fn find_all<'t>(
        &self,
        text: &'t str,
        limit: usize,
        fuel: &Fuel,
    ) -> Result<Vec<&'t str>, EvalError> {
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
    fn charge(&self, bytes: usize, fuel: &Fuel) -> Result<(), EvalError> {
        fuel.burn(1 + bytes.saturating_mul(self.length) / 40)
    }
}

impl Patterns {
    /// Returns a compiled regular expression.
    ///
    /// # Errors
    /// When the text is none, or compiling it costs too much.
    pub(super) fn get(&self, text: &str, fuel: &Fuel) -> Result<Rc<Pattern>, EvalError> {
        let mut known = self.0.borrow_mut();
        if !known.contains_key(text) {
            // A class of letters such as `\pL` takes thousands of bytes.
            fuel.burn(2_000 + text.len().saturating_mul(100))?;
            let pattern = Pattern::new(text).map(Rc::new);
            let length = match &pattern {
                Ok(pattern) => pattern.length,
                Err(Unusable::Large) => SIZES[SIZES.len() - 1] / 64,
                Err(Unusable::Syntax(_)) => 0,
            };
            if known.len() >= PATTERNS || length > LONG {
                known.clear();
            }
            known.insert(text.to_owned(), pattern);
            fuel.burn(length.saturating_mul(8))?;
        }
        match known.get(text) {
            Some(Ok(pattern)) => Ok(Rc::clone(pattern)),
            Some(Err(Unusable::Syntax(why))) => {
                Err(EvalError::Error(format!("error parsing regexp: {why}: `{text}`")))
            }
            _ => Err(EvalError::Unknown(format!("a pattern as large as {text}"))),
        }
    }
}
