//! Why a plugin's answer is not used.

use thiserror::Error;

use operator_host_contract::Kind;
use operator_host_core::object::{AFTER_ANNOTATION, ChildRef, LEAVE_ANNOTATION, NotServed, unreadable};

/// Kubernetes fills a Secret of this type with a token. Source: Kubernetes, "Secrets", service account tokens.
pub(super) const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// The annotation that names the ServiceAccount.
pub(super) const TOKEN_ANNOTATION: &str = "kubernetes.io/service-account.name";

/// A violation of the policy in a plugin's answer. `which` names the child as well as possible.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // The messages say what the fields hold.
pub enum Refusal {
    #[error(
        "{which}: a child must be a JSON object with `apiVersion`, `kind` and `metadata.name`; {missing} is missing"
    )]
    Incomplete { which: String, missing: &'static str },
    #[error("{which}: the plugin asked for it twice; an answer can contain a child once, in one version")]
    Twice { which: String },
    #[error(
        "{which}: the controller {controller:?} may not create objects of the kind {kind}; list it under its `children` in the configuration"
    )]
    KindNotAllowed {
        which: String,
        controller: String,
        kind: Kind,
    },
    #[error("{which}: {why}")]
    KindUnknown { which: String, why: NotServed },
    #[error(
        "{which}: children of {parent} may only be in its own namespace; owner references do not cross namespaces"
    )]
    OtherNamespace { which: String, parent: String },
    #[error(
        "{which}: the namespace {namespace:?} is not allowed; list it under `otherNamespaces` in the configuration, or let the plugin make it"
    )]
    NamespaceNotAllowed { which: String, namespace: String },
    #[error("{which}: the kind is namespaced and its parent is not; the plugin must name a namespace")]
    NoNamespace { which: String },
    #[error("{which}: a namespaced parent cannot own a cluster-scoped object")]
    ClusterScoped { which: String },
    #[error("{which}: only the host sets `metadata.ownerReferences`; leave it out")]
    OwnerGiven { which: String },
    #[error(
        "{which}: it has `metadata.finalizers`, so it stays until somebody removes them; leave them out, or list `finalizers` under `allow` of the controller {controller:?}"
    )]
    FinalizersGiven { which: String, controller: String },
    #[error(
        "{which}: it would hold the token of a ServiceAccount, which gives its readers that account's permissions; leave out the type `{TOKEN_TYPE}` and the annotation `{TOKEN_ANNOTATION}`, or list `serviceAccountTokens` under `allow` of the controller {controller:?}"
    )]
    TokenGiven { which: String, controller: String },
    #[error("{which}: {problem}")]
    BadValue { which: String, problem: String },
    #[error("{which}: the annotation `{LEAVE_ANNOTATION}`: {problem}")]
    BadLeave { which: String, problem: String },
    #[error("{which}: {name:?} cannot be its {field}: {problem}")]
    BadName {
        which: String,
        name: String,
        field: &'static str,
        problem: String,
    },
    #[error("{which} exists and belongs to {owner}; delete or rename one of the two")]
    OwnedByOther { which: String, owner: String },
    #[error(
        "{which} belongs to an earlier {parent}, which was deleted; it is recreated once the garbage collector has removed it"
    )]
    OfPredecessor {
        which: String,
        parent: String,
        child: Box<ChildRef>,
    },
    #[error(
        "{which} exists and was not created by this host; set `adopt: true` for the controller {controller:?}, or rename it, or delete it if nobody needs it"
    )]
    NotAdopted { which: String, controller: String },
    #[error(
        "{which} has the label and annotation of a child, but no owner reference: it was created by someone else, or while its kind was retained; set `adopt: true` for the controller {controller:?}, or delete it if nobody needs it"
    )]
    NotProved { which: String, controller: String },
    #[error("{}, or delete the child", unreadable(.which))]
    Unreadable { which: String },
    #[error("the generated Secret {which}: {problem}")]
    BadSecret { which: String, problem: String },
    #[error("the generated Secret {which}: {problem}")]
    SecretLost { which: String, problem: String },
    #[error("{which}: its annotation `{AFTER_ANNOTATION}` {problem}")]
    BadOrder { which: String, problem: String },
}

impl Refusal {
    /// Whether the reason is an existing object, not the plugin's answer.
    #[must_use]
    pub const fn is_obstacle(&self) -> bool {
        matches!(
            self,
            Self::OwnedByOther { .. }
                | Self::OfPredecessor { .. }
                | Self::NotAdopted { .. }
                | Self::NotProved { .. }
                | Self::Unreadable { .. }
        )
    }
}
