//! The types of expressions, and the signatures of the API server's functions.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use super::names;
use super::value::Fields;

/// The signatures of the functions and operators that Kubernetes 1.36 declares for rules, by name. A semicolon stands after
/// the value that has a method; `A` and `B` are any type.
static SIGNATURES: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
    let mut all: HashMap<&str, Vec<&str>> = HashMap::new();
    let lines = include_str!("signatures.txt").lines();
    for (name, signature) in lines.filter_map(|line| line.split_once('(')) {
        all.entry(name).or_default().push(signature);
    }
    all
});

/// The types that expressions name.
const NAMED: [(&str, &str); 16] = [
    ("bool", "bool"),
    ("bytes", "bytes"),
    ("double", "double"),
    ("google.protobuf.Duration", "duration"),
    ("google.protobuf.Timestamp", "timestamp"),
    ("int", "int"),
    ("kubernetes.URL", "kubernetes.URL"),
    ("list", "list(dyn)"),
    ("map", "map(dyn, dyn)"),
    ("net.CIDR", "net.CIDR"),
    ("net.IP", "net.IP"),
    ("null_type", "null"),
    ("optional_type", "optional_type(dyn)"),
    ("string", "string"),
    ("type", "type(dyn)"),
    ("uint", "uint"),
];

/// Returns the type that a name stands for, with that name.
pub(super) fn named(name: &str) -> Option<(&'static str, Type<'static>)> {
    let (name, type_) = NAMED.iter().find(|(known, _)| *known == name)?;
    Some((name, read(type_, 0).0))
}

/// Whether the API server has a function.
pub(super) fn is_declared(name: &str) -> bool {
    SIGNATURES.contains_key(name)
}

/// A type. `'s` is the lifetime of a schema.
#[derive(Clone, Debug)]
pub(super) enum Type<'s> {
    Dyn,
    Simple(&'static str),
    Object(&'s Value, Fields),
    List(Arc<Type<'s>>),
    Map(Arc<Type<'s>>, Arc<Type<'s>>),
    Optional(Arc<Type<'s>>),
    /// A type as a value.
    Kind(Arc<Type<'s>>),
    Var(usize),
}

impl PartialEq for Type<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, Self::Dyn) => true,
            (Self::Simple(a), Self::Simple(b)) => a == b,
            (Self::Object(a, of_a), Self::Object(b, of_b)) => std::ptr::eq(*a, *b) && of_a == of_b,
            (Self::List(a), Self::List(b))
            | (Self::Optional(a), Self::Optional(b))
            | (Self::Kind(a), Self::Kind(b)) => a == b,
            (Self::Map(a, of_a), Self::Map(b, of_b)) => a == b && of_a == of_b,
            (Self::Var(a), Self::Var(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn | Self::Var(_) => f.write_str("dyn"),
            Self::Simple(name) => f.write_str(name),
            Self::Object(..) => f.write_str("object"),
            Self::List(of) => write!(f, "list({of})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Optional(of) => write!(f, "optional_type({of})"),
            Self::Kind(of) => write!(f, "type({of})"),
        }
    }
}

impl<'s> Type<'s> {
    /// Returns the type of the values of a schema; `None` if rules cannot see them.
    pub(super) fn of(schema: &'s Value, is_root: bool) -> Option<Self> {
        if schema["x-kubernetes-int-or-string"] == true {
            return Some(Self::Dyn);
        }
        let is_embedded = |schema: &Value| schema["x-kubernetes-embedded-resource"] == true;
        Some(match schema["type"].as_str()? {
            "array" => {
                let items = schema.get("items")?;
                Self::List(Arc::new(Self::of(items, is_embedded(items))?))
            }
            "object" => match schema
                .get("additionalProperties")
                .filter(|values| values.is_object())
            {
                Some(values) => Self::Map(
                    Arc::new(Self::Simple("string")),
                    Arc::new(Self::of(values, is_embedded(values))?),
                ),
                None if is_root || is_embedded(schema) => Self::Object(schema, Fields::Resource),
                None => Self::Object(schema, Fields::Declared),
            },
            "string" => Self::Simple(match schema["format"].as_str() {
                Some("byte") => "bytes",
                Some("duration") => "duration",
                Some("date" | "date-time") => "timestamp",
                _ => "string",
            }),
            "boolean" => Self::Simple("bool"),
            "number" => Self::Simple("double"),
            "integer" => Self::Simple("int"),
            _ => return None,
        })
    }

    /// Returns the type of a field.
    pub(super) fn field(schema: &'s Value, found: &names::Found<'s>) -> Option<Self> {
        match found {
            names::Found::Text => Some(Self::Simple("string")),
            names::Found::Metadata => Some(Self::Object(schema, Fields::Metadata)),
            names::Found::Declared(_, schema) => Self::of(schema, false),
        }
    }
}

/// What is known of the types that are not written down.
#[derive(Clone, Debug, Default)]
pub(super) struct Inference<'s> {
    vars: Vec<Option<Type<'s>>>,
    /// The variables that were set, with what was known of them before.
    trail: Vec<(usize, Option<Type<'s>>)>,
}

impl<'s> Inference<'s> {
    pub(super) fn fresh(&mut self) -> Type<'s> {
        Type::Var(self.reserve(1))
    }

    /// Makes this many variables, and returns the number of the first.
    pub(super) fn reserve(&mut self, count: usize) -> usize {
        let first = self.vars.len();
        self.vars.resize(first + count, None);
        first
    }

    pub(super) fn set(&mut self, var: &Type<'s>, type_: Type<'s>) {
        if let Type::Var(index) = var {
            let before = self.vars[*index].replace(type_);
            self.trail.push((*index, before));
        }
    }

    /// Returns where [`Self::undo`] goes back to.
    pub(super) const fn mark(&self) -> (usize, usize) {
        (self.vars.len(), self.trail.len())
    }

    pub(super) fn undo(&mut self, (vars, trail): (usize, usize)) {
        for (index, before) in self.trail.drain(trail..).rev() {
            self.vars[index] = before;
        }
        self.vars.truncate(vars);
    }

    /// Returns a type with all that is known of it.
    pub(super) fn resolved(&self, type_: &Type<'s>) -> Type<'s> {
        let inner = |of: &Arc<Type<'s>>| Arc::new(self.resolved(of));
        match type_ {
            Type::Var(index) => match self.vars.get(*index) {
                Some(Some(known)) => self.resolved(known),
                _ => type_.clone(),
            },
            Type::List(of) => Type::List(inner(of)),
            Type::Map(key, value) => Type::Map(inner(key), inner(value)),
            Type::Optional(of) => Type::Optional(inner(of)),
            Type::Kind(of) => Type::Kind(inner(of)),
            other => other.clone(),
        }
    }

    /// Makes two types one, if they can be.
    pub(super) fn unify(&mut self, a: &Type<'s>, b: &Type<'s>) -> bool {
        let nullable = |type_: &Type<'s>| match type_ {
            Type::Object(..) | Type::Optional(_) => true,
            Type::Simple(name) => !["bool", "bytes", "double", "int", "string", "uint"].contains(name),
            _ => false,
        };
        match (a, b) {
            (Type::Var(a), Type::Var(b)) if a == b => true,
            (Type::Var(index), other) | (other, Type::Var(index)) => match self.vars[*index].clone() {
                None => {
                    let other = self.resolved(other);
                    if other != Type::Var(*index) {
                        self.set(&Type::Var(*index), other);
                    }
                    true
                }
                Some(known) => {
                    let fits = self.unify(&known, other);
                    if fits && self.resolved(other) == Type::Dyn {
                        self.set(&Type::Var(*index), Type::Dyn);
                    }
                    fits
                }
            },
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::Kind(_), Type::Kind(_)) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.unify(a, b),
            (Type::Map(a, of_a), Type::Map(b, of_b)) => self.unify(a, b) && self.unify(of_a, of_b),
            (Type::Simple("null"), other) | (other, Type::Simple("null")) => {
                *other == Type::Simple("null") || nullable(other)
            }
            (a, b) => a == b,
        }
    }
}

/// Returns the signatures of a function or a method.
pub(super) fn signatures(name: &str, is_method: bool) -> impl Iterator<Item = &'static str> {
    let all = SIGNATURES.get(name).into_iter().flatten().copied();
    all.filter(move |signature| signature.contains(';') == is_method)
}

/// Returns the types of the arguments, with the value that has a method, and of the result. `first` is the number of the
/// variable `A`.
pub(super) fn arguments_and_result(
    signature: &'static str,
    first: usize,
) -> (Vec<Type<'static>>, Type<'static>) {
    let (mut arguments, mut rest) = (Vec::new(), signature);
    loop {
        rest = rest.trim_start_matches([',', ';', ' ']);
        if let Some(result) = rest.strip_prefix("): ") {
            return (arguments, read(result, first).0);
        }
        let (type_, after) = read(rest, first);
        arguments.push(type_);
        rest = after;
    }
}

/// Reads a type, and returns what follows it.
fn read(text: &'static str, first: usize) -> (Type<'static>, &'static str) {
    let end = text.find(['(', ')', ',', ';']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if let [letter @ b'A'..=b'Z'] = name.as_bytes() {
        return (Type::Var(first + usize::from(letter - b'A')), rest);
    }
    let Some(inner) = rest.strip_prefix('(') else {
        let type_ = if name == "dyn" {
            Type::Dyn
        } else {
            Type::Simple(name)
        };
        return (type_, rest);
    };
    let (of, rest) = read(inner, first);
    let of = Arc::new(of);
    let (type_, rest) = match name {
        "list" => (Type::List(of), rest),
        "optional_type" => (Type::Optional(of), rest),
        "type" => (Type::Kind(of), rest),
        _ => {
            let (value, rest) = read(rest.trim_start_matches([',', ' ']), first);
            (Type::Map(of, Arc::new(value)), rest)
        }
    };
    (type_, rest.strip_prefix(')').unwrap_or(rest))
}
