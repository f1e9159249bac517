//! Why a plugin's answer is not used.

use std::fmt::Display;

use thiserror::Error;

use operator_host_contract::Kind;
use operator_host_core::object::ChildRef;

/// A violation of the policy in a plugin's answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{which}{problem}")]
pub struct Refusal {
    /// The child, as well as it can be named.
    pub which: String,
    /// What is wrong, as the sentence goes on after that.
    problem: String,
    /// Where the reason lies.
    pub cause: Cause,
    /// The object that is in the way. Of a generated Secret, the Secret, also when it is gone.
    pub there: Option<Box<ChildRef>>,
}

/// Where the reason of a refusal lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// In the answer.
    Answer,
    /// In the configuration: the controller may not create this kind.
    NotAllowed(Kind),
    /// An object that exists is in the way.
    Obstacle,
    /// A child of an earlier parent of the same name is in the way.
    Predecessor,
    /// The values of a generated Secret are lost.
    SecretLost,
}

impl Refusal {
    /// Creates the refusal of an answer.
    pub(super) fn new(which: &(impl ToString + ?Sized), problem: impl Display) -> Self {
        Self {
            which: which.to_string(),
            problem: format!(": {problem}"),
            cause: Cause::Answer,
            there: None,
        }
    }

    /// Creates the refusal because of an object in the way. `problem` is the rest of a sentence that begins with `which`.
    pub(super) fn obstacle(which: &impl ToString, problem: &str, there: &ChildRef) -> Self {
        Self {
            problem: problem.to_owned(),
            ..Self::new(which, "").because(Cause::Obstacle).about(there)
        }
    }

    pub(super) fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    pub(super) fn about(mut self, there: &ChildRef) -> Self {
        self.there = Some(Box::new(there.clone()));
        self
    }

    /// Whether the reason is an existing object, not the plugin's answer.
    pub const fn is_obstacle(&self) -> bool {
        matches!(self.cause, Cause::Obstacle | Cause::Predecessor)
    }
}
