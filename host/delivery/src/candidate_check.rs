//! The interface between a plugin's slot and the check of a loaded candidate before it becomes live.
//!
//! This module does not know any objects. The rollout runs the proof, and the
//! [`super::registry::Slot`] follows its result.

use tokio::sync::watch;

use operator_host_core::digest::{Digest, Prefix};
use operator_host_runtime::Plugin;

/// The cluster operators' orders for one controller's plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// These versions become live whatever a proof shows.
    pub promote: Vec<Prefix>,
    /// Only this version may be live.
    pub pin: Option<Prefix>,
    /// The generation of the definition. A candidate is examined again when it changes.
    pub definition: Option<i64>,
    /// How many times this replica began to lead and found another version recorded than its live one. The slot then
    /// decides again, as at a start.
    pub overtaken: u64,
}

/// Which version of one controller's plugin was live last, by the record in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recorded {
    /// None was live yet.
    #[default]
    Nothing,
    /// This one.
    Version(Digest),
    /// The record cannot be read, for this reason.
    Unknown(String),
}

/// An order about a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// To promote it.
    Promote,
    /// To pin it.
    Pin,
}

impl Orders {
    pub(super) fn forces(&self, digest: &Digest) -> bool {
        self.promote.iter().any(|prefix| prefix.matches(digest))
    }

    /// Reports whether this version is pinned.
    pub fn pins(&self, digest: &Digest) -> bool {
        self.pin.as_ref().is_some_and(|prefix| prefix.matches(digest))
    }
}

/// Why a candidate does not become live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// Machine-readable reason in CamelCase.
    pub reason: &'static str,
    /// What would happen, to which object, and what to do next. For the host's operators only, because it can
    /// name objects of all users.
    pub message: String,
    /// The version and what to do next, without any object names.
    pub advice: String,
    /// As the message, without what is said about single objects: for those who may see the controller, and not its objects.
    pub summary: String,
    /// The first differences between the two versions' answers; bounded, possibly empty. They can contain
    /// objects of all users.
    pub diff: String,
    /// The first affected objects.
    pub objects: Vec<Blamed>,
}

impl HeldBack {
    /// Creates a reason without advice and differences. `summary` says nothing about single objects: the message names the first
    /// of them.
    pub fn new(reason: &'static str, summary: String, objects: Vec<Blamed>) -> Self {
        let message = match objects.first() {
            Some(first) if first.message != summary => {
                format!("{summary}: {}: {}", first.object, first.message)
            }
            _ => summary.clone(),
        };
        Self {
            reason,
            message,
            advice: String::new(),
            summary,
            diff: String::new(),
            objects,
        }
    }
}

/// The reason of [`HeldBack`] when no version matches the pin.
pub const UNMATCHED_PIN: &str = "PinMatchesNothing";

/// One object that is a reason to hold a candidate back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blamed {
    /// `namespace/name` or `name`.
    pub object: String,
    /// What the candidate would do to it.
    pub message: String,
    /// The differences between the two versions' answers about it; bounded, possibly empty.
    pub diff: String,
}

impl Blamed {
    /// Creates a reason without differences.
    pub fn new(object: &impl ToString, message: impl Into<String>) -> Self {
        Self {
            object: object.to_string(),
            message: message.into(),
            diff: String::new(),
        }
    }
}

/// The result of a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofResult {
    /// The candidate may become live.
    Proved {
        /// What it was tested on, and the result.
        on: String,
        /// The first differences between the two versions' answers; bounded, often empty.
        diff: String,
    },
    /// The candidate may become live without a comparison, for this reason.
    NotCompared(String),
    /// The candidate must not become live.
    HeldBack(Box<HeldBack>),
}

/// Reports the progress of a proof, for users.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// Proves the candidates of one controller. What is not implemented is as without a cluster: nothing is recorded, installed,
/// known of an order, or announced.
#[async_trait::async_trait]
pub trait CandidateCheck: Send + Sync {
    /// Returns the current orders; `None` until they are known.
    fn orders(&self) -> watch::Receiver<Option<Orders>>;

    /// Compares a candidate with the live version, or without one examines it alone. Waits until there are objects to do so.
    /// Dropping the future ends the proof. `say` reports what is going on meanwhile.
    async fn prove(&self, live: Option<&Plugin>, candidate: &Plugin, say: Progress<'_>) -> ProofResult;

    /// Returns which version the cluster records as live, once that is known.
    async fn recorded(&self) -> Recorded {
        Recorded::Nothing
    }

    /// Records a version that is about to become live, if this replica leads. `over` is what was recorded when the version
    /// was accepted.
    async fn accept(&self, _version: &Plugin, _over: &Recorded) {}

    /// Takes the candidate back from the objects that have it already. A proof that is dropped does not: the same candidate may be
    /// proved again at once.
    fn withdraw(&self) {}

    /// Installs the definition of a candidate that becomes live by an order, as far as nothing is lost by it.
    async fn install(&self, _candidate: &Plugin) {}

    /// Returns who gave an order about the version with this digest, if that is known.
    async fn who(&self, _order: OrderKind, _digest: &Digest) -> Option<String> {
        None
    }

    /// Returns how to give an order about a version; without a version, how to take it back.
    fn how_to(&self, order: OrderKind, digest: Option<&Digest>) -> String;

    /// Reports a held-back candidate to its users; `None`: no candidate is held back any more.
    fn announce(&self, _held: Option<&HeldBack>) {}
}
