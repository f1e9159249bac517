//! Parses a CEL expression.
//!
//! Source: the grammar of <https://github.com/google/cel-spec/blob/master/doc/langdef.md>.

use std::borrow::Cow;

use super::lexer::{Token, tokens};
use super::types;
use super::value::Val;

/// Maximum number of bytes of an expression.
const TEXT: usize = 32 << 10;
/// Maximum depth of an expression, which limits the stack of its evaluation.
const DEPTH: usize = 100;

/// A parsed expression.
#[derive(Debug)]
pub(super) enum Expr {
    /// A value that is written down.
    Literal(Val<'static>),
    Name(String),
    /// `of.field`, or `of.?field`.
    Select {
        of: Box<Expr>,
        field: String,
        optional: bool,
    },
    /// `has(of.field)`.
    Has {
        of: Box<Expr>,
        field: String,
    },
    /// An operator with one or two values.
    Operation {
        operator: &'static str,
        args: Vec<Expr>,
    },
    /// A function, or a method, whose value is the first argument.
    Call {
        name: String,
        is_method: bool,
        args: Vec<Expr>,
    },
    /// Each item, and whether it is optional.
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    If(Box<[Expr; 3]>),
    Macro {
        name: &'static str,
        over: Box<Expr>,
        variables: Vec<String>,
        parts: Vec<Expr>,
    },
}

/// The macros with variables, with the numbers of variables and of expressions after them.
const MACROS: [(&str, usize, usize); 18] = [
    ("all", 1, 1),
    ("all", 2, 1),
    ("exists", 1, 1),
    ("exists", 2, 1),
    ("exists_one", 1, 1),
    ("exists_one", 2, 1),
    ("existsOne", 2, 1),
    ("map", 1, 1),
    ("map", 1, 2),
    ("filter", 1, 1),
    ("transformList", 2, 1),
    ("transformList", 2, 2),
    ("transformMap", 2, 1),
    ("transformMap", 2, 2),
    ("transformMapEntry", 2, 1),
    ("transformMapEntry", 2, 2),
    ("optMap", 1, 1),
    ("optFlatMap", 1, 1),
];

/// The name of the call that stands for a message.
pub(super) const MESSAGE: &str = "a message";

/// Parses an expression, and reports whether it uses `oldSelf`.
///
/// # Errors
/// When the text is no expression, or too long or deep.
pub(super) fn parse(text: &str) -> Result<(Expr, bool), String> {
    if text.len() > TEXT {
        return Err(format!(
            "the expression has {} bytes; the limit is {TEXT}",
            text.len()
        ));
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        next: 0,
        nested: 0,
        uses_old: false,
    };
    let (expr, _) = parser.expr()?;
    match parser.peek() {
        Token::End => Ok((expr, parser.uses_old)),
        other => Err(unexpected(other)),
    }
}

/// An expression with its depth.
type Deep = (Expr, usize);

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    nested: usize,
    uses_old: bool,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).unwrap_or(&Token::End)
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    fn sign(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(found) if *found == sign);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        match self.sign(sign) {
            true => Ok(()),
            false => Err(format!("expected `{sign}`, {}", unexpected(self.peek()))),
        }
    }

    fn one_of(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        let found = match self.peek() {
            Token::Sign(sign) => operators.iter().find(|operator| *operator == sign),
            Token::Name(name) if name == "in" => operators.iter().find(|operator| **operator == "in"),
            _ => None,
        }?;
        self.next += 1;
        Some(found)
    }

    fn expr(&mut self) -> Result<Deep, String> {
        self.nested += 1;
        deeper(self.nested)?;
        let (condition, depth) = self.junction("||")?;
        let expr = if self.sign("?") {
            let (yes, of_yes) = self.junction("||")?;
            self.expect(":")?;
            let (no, of_no) = self.expr()?;
            let depth = deeper(depth.max(of_yes).max(of_no))?;
            (Expr::If(Box::new([condition, yes, no])), depth)
        } else {
            (condition, depth)
        };
        self.nested -= 1;
        Ok(expr)
    }

    fn junction(&mut self, sign: &'static str) -> Result<Deep, String> {
        let (mut all, mut depth) = (Vec::new(), 0);
        loop {
            let (part, of_part) = match sign {
                "||" => self.junction("&&")?,
                _ => self.binary(0)?,
            };
            all.push(part);
            depth = depth.max(of_part);
            if !self.sign(sign) {
                break;
            }
        }
        if all.len() == 1 {
            return all.pop().map(|one| (one, depth)).ok_or_else(String::new);
        }
        let expr = if sign == "||" {
            Expr::Or(all)
        } else {
            Expr::And(all)
        };
        Ok((expr, deeper(depth)?))
    }

    /// Parses operators that bind at least this closely.
    fn binary(&mut self, least: usize) -> Result<Deep, String> {
        const LEVELS: [&[&str]; 3] = [
            &["==", "!=", "<=", ">=", "<", ">", "in"],
            &["+", "-"],
            &["*", "/", "%"],
        ];
        let (mut left, mut depth) = self.unary()?;
        loop {
            let mut levels = LEVELS.iter().enumerate().skip(least);
            let Some((level, operator)) =
                levels.find_map(|(level, operators)| Some((level, self.one_of(operators)?)))
            else {
                return Ok((left, depth));
            };
            let (right, of_right) = self.binary(level + 1)?;
            depth = deeper(depth.max(of_right))?;
            let args = vec![left, right];
            left = Expr::Operation { operator, args };
        }
    }

    fn unary(&mut self) -> Result<Deep, String> {
        let sign = match self.peek() {
            Token::Sign(sign @ ("!" | "-")) => *sign,
            _ => return self.member(),
        };
        let mut count = 0;
        while self.sign(sign) {
            count += 1;
        }
        // The smallest integer has no positive counterpart.
        if sign == "-"
            && let Token::Int(value) = *self.peek()
            && value == i64::MIN.unsigned_abs()
        {
            self.next += 1;
            return match count % 2 {
                1 => Ok((Expr::Literal(Val::Int(i64::MIN)), 1)),
                _ => Err("an integer out of range".to_owned()),
            };
        }
        let (of, depth) = self.member()?;
        if count % 2 == 0 {
            return Ok((of, depth));
        }
        let expr = match (sign, of) {
            // That of the smallest integer overflows when it is evaluated.
            ("-", Expr::Literal(Val::Int(value))) if value != i64::MIN => Expr::Literal(Val::Int(-value)),
            ("-", Expr::Literal(Val::Double(value))) => Expr::Literal(Val::Double(-value)),
            (operator, of) => Expr::Operation {
                operator,
                args: vec![of],
            },
        };
        Ok((expr, deeper(depth)?))
    }

    fn member(&mut self) -> Result<Deep, String> {
        let (mut of, mut depth) = self.primary()?;
        loop {
            let optional_field = self.sign(".?");
            if optional_field || self.sign(".") {
                let field = match self.take() {
                    Token::Name(name) => name,
                    other => return Err(unexpected(&other)),
                };
                if !optional_field && self.sign("(") {
                    let (args, of_args) = self.arguments()?;
                    depth = deeper(depth.max(of_args))?;
                    of = method(of, field, args);
                    continue;
                }
                of = select(of, field, optional_field);
            } else {
                if path(&of).is_some() && self.sign("{") {
                    (of, depth) = self.message(depth)?;
                    continue;
                }
                if !self.sign("[") {
                    return Ok((of, depth));
                }
                let optional = self.sign("?");
                let (index, of_index) = self.expr()?;
                self.expect("]")?;
                depth = depth.max(of_index);
                of = Expr::Operation {
                    operator: if optional { "[?]" } else { "[]" },
                    args: vec![of, index],
                };
            }
            depth = deeper(depth)?;
        }
    }

    fn primary(&mut self) -> Result<Deep, String> {
        let expr = match self.take() {
            Token::Int(value) => {
                let value = i64::try_from(value).map_err(|_| "an integer out of range")?;
                Expr::Literal(Val::Int(value))
            }
            Token::Literal(value) => Expr::Literal(value),
            Token::Sign("(") => {
                let (expr, depth) = self.expr()?;
                self.expect(")")?;
                return Ok((expr, deeper(depth)?));
            }
            Token::Sign("[") => return self.list(),
            Token::Sign("{") => return self.map(),
            Token::Name(name) => match name.as_str() {
                "null" => Expr::Literal(Val::Null),
                "true" => Expr::Literal(Val::Bool(true)),
                "false" => Expr::Literal(Val::Bool(false)),
                "in" => return Err("unexpected `in`".to_owned()),
                _ if self.sign("(") => {
                    let (args, depth) = self.arguments()?;
                    return Ok((function(name, args)?, deeper(depth)?));
                }
                _ => {
                    self.uses_old |= name == "oldSelf";
                    Expr::Name(name)
                }
            },
            other => return Err(unexpected(&other)),
        };
        Ok((expr, 1))
    }

    /// Parses what stands between commas up to a closing sign, and returns the depth. `may_end` allows a comma at the end.
    fn items(
        &mut self,
        close: &str,
        may_end: bool,
        mut item: impl FnMut(&mut Self) -> Result<usize, String>,
    ) -> Result<usize, String> {
        let mut depth = 0;
        if may_end && self.sign(",") {
            return self.expect(close).map(|()| depth);
        }
        let mut is_first = true;
        while !self.sign(close) {
            if !is_first {
                self.expect(",")?;
                if may_end && self.sign(close) {
                    break;
                }
            }
            is_first = false;
            depth = depth.max(item(self)?);
        }
        Ok(depth)
    }

    /// Parses the arguments of a function.
    fn arguments(&mut self) -> Result<(Vec<Expr>, usize), String> {
        let mut args = Vec::new();
        let depth = self.items(")", false, |parser| {
            let (arg, depth) = parser.expr()?;
            args.push(arg);
            Ok(depth)
        })?;
        Ok((args, depth))
    }

    fn list(&mut self) -> Result<Deep, String> {
        let mut items = Vec::new();
        let depth = self.items("]", true, |parser| {
            let optional = parser.sign("?");
            let (item, depth) = parser.expr()?;
            items.push((item, optional));
            Ok(depth)
        })?;
        Ok((Expr::List(items), deeper(depth)?))
    }

    fn map(&mut self) -> Result<Deep, String> {
        let mut entries = Vec::new();
        let depth = self.items("}", true, |parser| {
            let optional = parser.sign("?");
            let (key, of_key) = parser.expr()?;
            parser.expect(":")?;
            let (value, of_value) = parser.expr()?;
            entries.push((key, value, optional));
            Ok(of_key.max(of_value))
        })?;
        Ok((Expr::Map(entries), deeper(depth)?))
    }

    /// Parses the fields of a message, such as `google.protobuf.Duration{seconds: 1}`.
    fn message(&mut self, depth: usize) -> Result<Deep, String> {
        let mut args = Vec::new();
        let of_args = self.items("}", false, |parser| {
            match parser.take() {
                Token::Name(_) => parser.expect(":")?,
                other => return Err(unexpected(&other)),
            }
            let (value, depth) = parser.expr()?;
            args.push(value);
            Ok(depth)
        })?;
        Ok((function(MESSAGE.to_owned(), args)?, deeper(depth.max(of_args))?))
    }
}

/// Returns a name with dots.
fn path(expr: &Expr) -> Option<Cow<'_, str>> {
    match expr {
        Expr::Name(name) => Some(name.into()),
        Expr::Select {
            of,
            field,
            optional: false,
        } => Some(format!("{}.{field}", path(of)?).into()),
        _ => None,
    }
}

/// Reads a field, or a type whose name has dots, such as `google.protobuf.Duration`.
fn select(of: Expr, field: String, optional: bool) -> Expr {
    let select = Expr::Select {
        of: Box::new(of),
        field,
        optional,
    };
    match path(&select).and_then(|path| types::named(&path)) {
        Some((name, _)) => Expr::Name(name.to_owned()),
        None => select,
    }
}

/// Calls a function, or expands `has`.
fn function(name: String, mut args: Vec<Expr>) -> Result<Expr, String> {
    if name != "has" {
        return Ok(Expr::Call {
            name,
            is_method: false,
            args,
        });
    }
    let (of, field) = match (args.pop(), args.is_empty()) {
        (
            Some(Expr::Select {
                of,
                field,
                optional: false,
            }),
            true,
        ) => (*of, field),
        // Here it is a field, also where it would be a type elsewhere.
        (Some(Expr::Name(ref name)), true) if let Some((of, field)) = name.rsplit_once('.') => {
            (Expr::Name(of.to_owned()), field.to_owned())
        }
        _ => return Err("`has` takes a field, as in `has(self.field)`".to_owned()),
    };
    Ok(Expr::Has {
        of: Box::new(of),
        field,
    })
}

/// Calls a method or a function whose name has dots, such as `sets.contains`, or expands a macro.
fn method(of: Expr, name: String, mut args: Vec<Expr>) -> Expr {
    let qualified = path(&of).map(|path| format!("{path}.{name}"));
    if let Some(name) = qualified.filter(|name| types::is_declared(name)) {
        return Expr::Call {
            name,
            is_method: false,
            args,
        };
    }
    let fits = |&&(known, variables, parts): &&(&str, usize, usize)| {
        known == name
            && args.len() == variables + parts
            && args[..variables]
                .iter()
                .all(|arg| matches!(arg, Expr::Name(name) if !name.contains('.')))
    };
    // `a.map(x, y, z)` has one variable, `a.transformList(x, y, z)` two: the names differ.
    let Some((name, variables, _)) = MACROS.iter().find(fits) else {
        args.insert(0, of);
        return Expr::Call {
            name,
            is_method: true,
            args,
        };
    };
    let parts = args.split_off(*variables);
    let variables = args.into_iter().filter_map(|arg| match arg {
        Expr::Name(name) => Some(name),
        _ => None,
    });
    Expr::Macro {
        name,
        over: Box::new(of),
        variables: variables.collect(),
        parts,
    }
}

fn deeper(depth: usize) -> Result<usize, String> {
    match depth < DEPTH {
        true => Ok(depth + 1),
        false => Err(format!("the expression is nested more than {DEPTH} levels")),
    }
}

fn unexpected(token: &Token) -> String {
    match token {
        Token::End => "unexpected end".to_owned(),
        Token::Name(name) => format!("unexpected `{name}`"),
        Token::Sign(sign) => format!("unexpected `{sign}`"),
        _ => "unexpected literal".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_too_deep_or_too_long_is_refused() {
        for deep in [
            format!("{}1{}", "(".repeat(50_000), ")".repeat(50_000))
                .get(..20_000)
                .map(str::to_owned),
            Some(vec!["1"; 10_000].join("+")),
            Some(format!("a{}", ".b".repeat(10_000))),
            Some(format!("{}a", "[".repeat(20_000))),
            Some(format!("{}a", "a?b:".repeat(5_000))),
        ] {
            let error = parse(&deep.unwrap_or_default()).unwrap_err();
            assert!(error.contains("nested more than"), "{error}");
        }
        assert!(parse(&vec!["a"; 10_000].join("||")).is_ok(), "it is not nested");
        assert!(parse(&format!("{}a", "!".repeat(20_001))).is_ok());
        assert!(parse(&" ".repeat(40_000)).unwrap_err().contains("the limit"));
    }
}
