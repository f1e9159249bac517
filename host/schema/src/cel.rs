//! Evaluates the rules in CEL (`x-kubernetes-validations`) of a structural schema, as the API server does.
//!
//! What the evaluator does not know, such as a function of a newer
//! Kubernetes, is reported and left to the API server. Rules come from plugins: the size and the depth of an expression
//! are limited, and what an evaluation may cost.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules>.

mod check;
mod defaults;
mod eval;
mod functions;
mod lexer;
mod libraries;
mod names;
mod operators;
mod parser;
mod patterns;
pub(crate) mod re2;
pub(crate) mod rules;
mod strings;
pub(crate) mod time;
mod types;
pub(crate) mod url;
mod value;

pub use defaults::fill_defaults;
pub use rules::{RuleVerdict, problems, validate};

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EvalError {
    /// The evaluation fails, such as for a key that is not there.
    Error(String),
    /// No operator or function takes these types.
    Overload,
    /// A function that this evaluator does not have.
    Unknown(String),
    /// It costs too much.
    Cost,
}

impl EvalError {
    fn overflow() -> Self {
        Self::Error("integer overflow".to_owned())
    }

    fn unsigned_overflow() -> Self {
        Self::Error("unsigned integer overflow".to_owned())
    }

    fn time_overflow() -> Self {
        Self::Error("timestamp overflow".to_owned())
    }
}
