//! The types of expressions, and the signatures of the API server's functions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::names;
use super::value::Fields;

/// The functions and operators that Kubernetes 1.36 declares for rules. A semicolon stands after the value that has a
/// method; `A` and `B` are any type.
const SIGNATURES: &str = include_str!("signatures.txt");

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

    /// Returns the type that a name stands for.
    pub(super) fn named(name: &str) -> Option<Self> {
        const SIMPLE: [&str; 10] = [
            "bool",
            "bytes",
            "double",
            "int",
            "string",
            "uint",
            "net.IP",
            "net.CIDR",
            "kubernetes.URL",
            "type",
        ];
        let dyn_ = || Arc::new(Self::Dyn);
        Some(match name {
            "list" => Self::List(dyn_()),
            "map" => Self::Map(dyn_(), dyn_()),
            "null_type" => Self::Simple("null"),
            "optional_type" => Self::Optional(dyn_()),
            "type" => Self::Kind(dyn_()),
            "google.protobuf.Duration" => Self::Simple("duration"),
            "google.protobuf.Timestamp" => Self::Simple("timestamp"),
            _ => Self::Simple(SIMPLE.iter().find(|known| **known == name)?),
        })
    }

    /// Returns a type of a signature with other variables.
    pub(super) fn shifted(&self, by: usize) -> Self {
        let inner = |of: &Arc<Self>| Arc::new(of.shifted(by));
        match self {
            Self::Var(index) => Self::Var(index + by),
            Self::List(of) => Self::List(inner(of)),
            Self::Map(key, value) => Self::Map(inner(key), inner(value)),
            Self::Optional(of) => Self::Optional(inner(of)),
            Self::Kind(of) => Self::Kind(inner(of)),
            other => other.clone(),
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

/// A signature of a function.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) is_method: bool,
    /// With the value that has the method.
    pub(super) args: Vec<Type<'static>>,
    pub(super) result: Type<'static>,
    /// The number of its variables.
    pub(super) vars: usize,
}

/// Returns all signatures by the names of their functions.
pub(super) fn signatures() -> HashMap<&'static str, Vec<Signature>> {
    let mut all: HashMap<&'static str, Vec<Signature>> = HashMap::new();
    for line in SIGNATURES.lines() {
        let Some((name, rest)) = line.split_once('(') else {
            continue;
        };
        let Some((args, result)) = rest.rsplit_once("): ") else {
            continue;
        };
        // `A` and `B`.
        let has_vars = rest
            .split(|c: char| !c.is_alphanumeric() && c != '.')
            .any(|word| word.len() == 1);
        let (of, args) = args
            .split_once(';')
            .map_or((None, args), |(of, args)| (Some(of), args));
        let mut types: Vec<Type<'static>> = of.map(|of| read(of).0).into_iter().collect();
        let mut rest = args.trim();
        while !rest.is_empty() {
            let (type_, after) = read(rest);
            types.push(type_);
            rest = after.trim_start_matches([',', ' ']);
        }
        let signature = Signature {
            is_method: of.is_some(),
            args: types,
            result: read(result).0,
            vars: if has_vars { 2 } else { 0 },
        };
        all.entry(name).or_default().push(signature);
    }
    all
}

/// Reads a type, and returns what follows it.
fn read(text: &'static str) -> (Type<'static>, &'static str) {
    let end = text.find(['(', ')', ',']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if let [letter @ b'A'..=b'Z'] = name.as_bytes() {
        return (Type::Var(usize::from(letter - b'A')), rest);
    }
    let Some(inner) = rest.strip_prefix('(') else {
        let type_ = if name == "dyn" {
            Type::Dyn
        } else {
            Type::Simple(name)
        };
        return (type_, rest);
    };
    let (first, rest) = read(inner);
    let first = Arc::new(first);
    let (type_, rest) = match name {
        "list" => (Type::List(first), rest),
        "optional_type" => (Type::Optional(first), rest),
        "type" => (Type::Kind(first), rest),
        _ => {
            let (second, rest) = read(rest.trim_start_matches([',', ' ']));
            (Type::Map(first, Arc::new(second)), rest)
        }
    };
    (type_, rest.strip_prefix(')').unwrap_or(rest))
}
