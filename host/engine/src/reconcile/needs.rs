//! Checks what a plugin asks to read against what it may read, and reads it from [`RelatedObjects`].

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use thiserror::Error;

use operator_host_config::ControllerConfig;
use operator_host_contract::{Description, Kind, Need, Related};
use operator_host_core::object::{ChildRef, Selector, is_unreadable, name_problem, shorten, unreadable};
use operator_host_desired::selectors::selector;

/// Why a need cannot be answered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)] // The messages say what the fields hold.
pub enum NeedError {
    #[error(
        "need {id:?}: the controller {controller:?} may not read the kind {kind}; list it under its `reads` in the configuration"
    )]
    KindNotAllowed {
        id: String,
        controller: String,
        kind: Kind,
    },
    #[error("need {id:?}: `describe` does not list the kind {kind} under `reads`")]
    KindNotAnnounced { id: String, kind: Kind },
    #[error(
        "need {id:?}: the namespace {namespace:?} may not be read; list it under `otherNamespaces` in the configuration"
    )]
    NamespaceNotAllowed { id: String, namespace: String },
    #[error(
        "need {id:?}: the namespace {namespace:?} is not watched; list it under `namespaces` in the configuration"
    )]
    NamespaceNotWatched { id: String, namespace: String },
    #[error("need {id:?}: {problem}")]
    Unreadable { id: String, problem: String },
    #[error("need {id:?}: {}", unreadable(.object))]
    TooDeep { id: String, object: String },
    #[error("need {id:?}: {selector:?} is not a label selector: {problem}")]
    BadSelector {
        id: String,
        selector: String,
        problem: String,
    },
    #[error("two needs have the id {id:?}; each must have its own")]
    Twice { id: String },
    #[error(
        "the needs did not settle: the plugin asked for different objects after each of {} calls", MAX_NEED_ROUNDS + 1
    )]
    Unsettled,
    #[error("need {id:?}: {kind} is namespaced and the parent is not: the plugin must name a namespace")]
    NoNamespace { id: String, kind: Kind },
    #[error("need {id:?}: {name:?} cannot be a name: {problem}")]
    BadName {
        id: String,
        name: String,
        problem: String,
    },
    #[error(
        "the plugin has {count} needs; the limit is {MAX_NEEDS}: use a label selector for many objects of a kind"
    )]
    TooMany { count: usize },
    #[error("need {id:?}: its {field} has {length} bytes; the limit is {limit}")]
    TooLong {
        id: String,
        field: &'static str,
        length: usize,
        limit: usize,
    },
}

/// How often a plugin may ask for other objects in one evaluation.
pub const MAX_NEED_ROUNDS: usize = 4;
/// Maximum number of needs per response: each may add all objects of a kind to the request.
const MAX_NEEDS: usize = 32;
/// Maximum size of a need's id, namespace and name in bytes; they are remembered with the parent.
const MAX_NAME: usize = 253;
/// Maximum size of its label selector in bytes.
const MAX_SELECTOR: usize = 4096;

/// Checks that needs are few and short enough to be remembered, and have unique ids.
///
/// # Errors
/// When there are too many, or one is too long or a duplicate.
pub fn validate(needs: &[Need]) -> Result<(), NeedError> {
    if needs.len() > MAX_NEEDS {
        return Err(NeedError::TooMany { count: needs.len() });
    }
    for (index, need) in needs.iter().enumerate() {
        let fields = [
            ("id", Some(&need.id), MAX_NAME),
            ("API version", Some(&need.api_version), MAX_NAME),
            ("kind", Some(&need.kind), MAX_NAME),
            ("namespace", need.namespace.as_ref(), MAX_NAME),
            ("name", need.name.as_ref(), MAX_NAME),
            ("label selector", need.label_selector.as_ref(), MAX_SELECTOR),
        ];
        for (field, text, limit) in fields {
            let length = text.map_or(0, String::len);
            if length > limit {
                return Err(NeedError::TooLong {
                    id: shorten(&need.id, MAX_NAME),
                    field,
                    length,
                    limit,
                });
            }
        }
        if needs[..index].iter().any(|other| other.id == need.id) {
            return Err(NeedError::Twice { id: need.id.clone() });
        }
    }
    Ok(())
}

/// Provides the objects that a plugin asks to read.
pub trait RelatedObjects: Sync {
    /// Returns what may be read.
    fn rights(&self) -> Rights<'_>;
    /// Reports whether a kind is namespaced; true for an unknown kind.
    fn is_namespaced(&self, kind: &Kind) -> bool;
    /// Returns the objects that a need selects, in the form of [`Related::objects`].
    fn read(
        &self,
        wanted: &Wanted<'_>,
    ) -> impl Future<Output = Result<Vec<Arc<DynamicObject>>, NeedError>> + Send;
}

/// What a plugin may read.
#[derive(Clone, Copy, Debug)]
pub enum Rights<'a> {
    /// As the controller's configuration allows.
    Configured(&'a ControllerConfig),
    /// What the plugin's description lists. Without a configuration, only the parent's namespace may be read.
    Announced(&'a Description),
}

/// A need that passed the check.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The need.
    pub need: &'a Need,
    /// Its kind.
    pub kind: Kind,
    /// The namespace to read; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its label selector.
    pub selector: Selector,
}

impl Wanted<'_> {
    /// Creates the error for a need that cannot be read now.
    #[must_use]
    pub fn unreadable(&self, problem: String) -> NeedError {
        NeedError::Unreadable {
            id: self.need.id.clone(),
            problem,
        }
    }
}

/// Reads the objects of all needs.
///
/// # Errors
/// The first need that is forbidden, invalid or cannot be read.
pub async fn read_all(
    source: &impl RelatedObjects,
    parent: &DynamicObject,
    needs: &[Need],
) -> Result<Vec<Related>, NeedError> {
    let mut related = Vec::with_capacity(needs.len());
    for need in needs {
        let namespaced = source.is_namespaced(&kind_of(need));
        let wanted = check(source.rights(), namespaced, parent, need)?;
        let (id, objects) = (need.id.clone(), source.read(&wanted).await?);
        if let Some(object) = objects.iter().find(|object| is_unreadable(object)) {
            let object = ChildRef::of(object).to_string();
            return Err(NeedError::TooDeep { id, object });
        }
        related.push(Related { id, objects });
    }
    Ok(related)
}

/// Checks that a need is allowed and valid.
///
/// # Errors
/// When it is forbidden or invalid.
pub fn check<'a>(
    rights: Rights<'_>,
    namespaced: bool,
    parent: &DynamicObject,
    need: &'a Need,
) -> Result<Wanted<'a>, NeedError> {
    let id = need.id.clone();
    let kind = kind_of(need);
    match rights {
        Rights::Configured(config) if !config.reads.contains(&kind) => {
            return Err(NeedError::KindNotAllowed {
                id,
                controller: config.name.clone(),
                kind,
            });
        }
        Rights::Announced(description) if !description.reads.contains(&kind) => {
            return Err(NeedError::KindNotAnnounced { id, kind });
        }
        Rights::Configured(_) | Rights::Announced(_) => {}
    }
    for name in need.name.iter().chain(&need.namespace) {
        if let Some(problem) = name_problem(name) {
            let name = shorten(name, 100);
            return Err(NeedError::BadName { id, name, problem });
        }
    }
    let own = parent.namespace();
    let namespace = if namespaced {
        need.namespace.clone().or_else(|| own.clone())
    } else {
        None
    };
    if namespaced && namespace.is_none() {
        return Err(NeedError::NoNamespace { id, kind });
    }
    if let (Some(namespace), Rights::Configured(config)) = (&namespace, rights)
        && own.as_ref() != Some(namespace)
        && !config.other_namespaces.contains(namespace)
    {
        return Err(NeedError::NamespaceNotAllowed {
            id,
            namespace: namespace.clone(),
        });
    }
    let selector = selector(need).map_err(|problem| NeedError::BadSelector {
        id,
        selector: need.label_selector.clone().unwrap_or_default(),
        problem,
    })?;
    Ok(Wanted {
        need,
        kind,
        namespace,
        selector,
    })
}

/// Returns the kind of the objects that a need selects.
pub(super) fn kind_of(need: &Need) -> Kind {
    Kind {
        api_version: need.api_version.clone(),
        kind: need.kind.clone(),
    }
}
