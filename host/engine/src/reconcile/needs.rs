//! Checks what a plugin asks to read against what it may read, and reads it from [`RelatedObjects`].

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use thiserror::Error;

use operator_host_config::ControllerConfig;
use operator_host_contract::{Description, Kind, Need, Related};
use operator_host_core::object::{
    ChildRef, Selector, is_namespace, is_unreadable, name_problem, object_name_problem, unreadable,
};
use operator_host_core::text::shorten;
use operator_host_desired::ownership::home;

/// Why a need cannot be answered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NeedError {
    /// It cannot be read now.
    #[error("{0}")]
    Unreadable(String),
    /// The plugin or the configuration must change.
    #[error("{0}")]
    Refused(String),
}

impl NeedError {
    /// Creates the error of a plugin whose needs differ after each call.
    pub(super) fn unsettled() -> Self {
        Self::Refused(format!(
            "the needs did not settle: the plugin asked for different objects after each of {} calls",
            MAX_NEED_ROUNDS + 1
        ))
    }
}

/// How often a plugin may ask for other objects in one evaluation.
pub const MAX_NEED_ROUNDS: usize = 4;
/// Maximum number of needs per response: each may add all objects of a kind to the request.
const MAX_NEEDS: usize = 32;
/// Maximum number of names in a need.
const MAX_NAMES: usize = 256;
/// Maximum size of a need's id, namespace and name in bytes; they are remembered with the parent.
const MAX_NAME: usize = 253;
/// Maximum size of each of its selectors in bytes.
const MAX_SELECTOR: usize = 4096;

/// Checks that needs are few and short enough to be remembered, and have unique ids.
///
/// # Errors
/// When there are too many, or one is too long or a duplicate.
pub fn validate(needs: &[Need]) -> Result<(), NeedError> {
    if needs.len() > MAX_NEEDS {
        let count = needs.len();
        return Err(NeedError::Refused(format!(
            "the plugin has {count} needs; the limit is {MAX_NEEDS}: use a label selector for many objects of a kind"
        )));
    }
    for (index, need) in needs.iter().enumerate() {
        let fields = [
            ("id", Some(&need.id), MAX_NAME),
            ("API version", Some(&need.api_version), MAX_NAME),
            ("kind", Some(&need.kind), MAX_NAME),
            ("namespace", need.namespace.as_ref(), MAX_NAME),
            ("name", need.name.as_ref(), MAX_NAME),
            (
                "namespace selector",
                need.namespace_selector.as_ref(),
                MAX_SELECTOR,
            ),
            ("label selector", need.label_selector.as_ref(), MAX_SELECTOR),
        ];
        let names = need.names.iter().map(|name| ("names", Some(name), MAX_NAME));
        for (field, text, limit) in fields.into_iter().chain(names) {
            let length = text.map_or(0, String::len);
            if length > limit {
                let id = shorten(&need.id, MAX_NAME);
                let problem = format!("its {field} has {length} bytes; the limit is {limit}");
                return Err(NeedError::Refused(format!("need {id:?}: {problem}")));
            }
        }
        if need.names.len() > MAX_NAMES {
            let problem = format!("it has {} `names`; the limit is {MAX_NAMES}", need.names.len());
            return Err(refused(need, &problem));
        }
        if needs[..index].iter().any(|other| other.id == need.id) {
            let id = &need.id;
            let why = format!("two needs have the id {id:?}; each must have its own");
            return Err(NeedError::Refused(why));
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
    /// Returns the names of the namespaces that a selector picks, of which the controller may not be allowed to read all.
    fn namespaces(
        &self,
        wanted: &Wanted<'_>,
        selector: &Selector,
    ) -> impl Future<Output = Result<BTreeSet<String>, NeedError>> + Send;
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
    /// The namespace to read; `None` for a cluster-scoped kind, and for every namespace.
    pub namespace: Option<String>,
    /// The parent's namespace.
    own: Option<String>,
    /// Its label selector.
    pub selector: Selector,
    /// The names of the namespaces that its namespace selector picks; `None` when it has none.
    pub namespaces: Option<BTreeSet<String>>,
}

impl Wanted<'_> {
    /// Reports whether an object is in its namespaces, and may be read: what is about every namespace is about those that the
    /// controller may read.
    pub fn reaches(&self, config: &ControllerConfig, object: &DynamicObject) -> bool {
        let namespace = object.metadata.namespace.as_deref();
        !self.need.is_everywhere()
            || self.is_picked(namespace) && is_readable(config, self.own.as_deref(), namespace)
    }

    /// Reports whether its namespace selector, if it has one, picks a namespace.
    pub fn is_picked(&self, namespace: Option<&str>) -> bool {
        let picked = self.namespaces.as_ref();
        picked.is_none_or(|picked| namespace.is_some_and(|namespace| picked.contains(namespace)))
    }

    /// Creates the error for a need that cannot be read now.
    pub fn unreadable(&self, problem: &str) -> NeedError {
        NeedError::Unreadable(format!("need {:?}: {problem}", self.need.id))
    }

    /// Creates the error for a need that may not or cannot be read.
    pub fn refused(&self, problem: &str) -> NeedError {
        refused(self.need, problem)
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
        let mut wanted = check(source.rights(), namespaced, parent, need)?;
        if let Some(selector) = &need.namespace_selector {
            let selector = parsed(need, selector)?;
            wanted.namespaces = Some(source.namespaces(&wanted, &selector).await?);
        }
        let objects = source.read(&wanted).await?;
        if let Some(object) = objects.iter().find(|object| is_unreadable(object)) {
            return Err(wanted.refused(&unreadable(&ChildRef::of(object).to_string())));
        }
        let id = need.id.clone();
        related.push(Related { id, objects });
    }
    Ok(related)
}

/// Reports whether the plugin of a parent in the namespace `own` may read objects in `namespace`; `None` means no namespace.
pub fn is_readable(config: &ControllerConfig, own: Option<&str>, namespace: Option<&str>) -> bool {
    let others = &config.rules.other_namespaces;
    namespace.is_none_or(|namespace| own == Some(namespace) || others.contains(namespace))
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
    let refused = |problem: String| Err(refused(need, &problem));
    let kind = kind_of(need);
    match rights {
        Rights::Configured(config) if !config.reads.contains(&kind) => {
            return refused(format!(
                "the controller {:?} may not read the kind {kind}; list it under its `reads` in the configuration",
                config.name
            ));
        }
        Rights::Announced(description) if !description.reads.contains(&kind) => {
            return refused(format!("`describe` does not list the kind {kind} under `reads`"));
        }
        Rights::Configured(_) | Rights::Announced(_) => {}
    }
    if need.name.is_some() && !need.names.is_empty() {
        return refused("it has both `name` and `names`: leave one out".to_owned());
    }
    if need.namespace_selector.is_some() && (need.namespace.is_some() || !namespaced) {
        return refused(match namespaced {
            true => "it has both `namespace` and `namespaceSelector`: leave one out".to_owned(),
            false => format!("{kind} is not namespaced, so it cannot have a `namespaceSelector`"),
        });
    }
    let names = need.name.iter().chain(&need.names);
    let place = need.namespace.iter().filter(|_| !need.is_everywhere());
    let names = names.map(|name| (name, object_name_problem(name)));
    for (name, problem) in names.chain(place.map(|name| (name, name_problem(name)))) {
        if let Some(problem) = problem {
            let name = shorten(name, 100);
            return refused(format!("{name:?} cannot be a name: {problem}"));
        }
    }
    let own = match rights {
        Rights::Configured(config) => home(config.scope(), parent).map(str::to_owned),
        Rights::Announced(description) if is_namespace(&description.parent) => parent.metadata.name.clone(),
        Rights::Announced(_) => parent.namespace(),
    };
    let namespace = match namespaced && !need.is_everywhere() {
        true => need.namespace.clone().or_else(|| own.clone()),
        false => None,
    };
    if namespaced && namespace.is_none() && !need.is_everywhere() {
        return refused(format!(
            "{kind} is namespaced and the parent is not: the plugin must name a namespace, or `*` for every one"
        ));
    }
    if let (Some(namespace), Rights::Configured(config)) = (&namespace, rights)
        && !is_readable(config, own.as_deref(), Some(namespace))
    {
        return refused(format!(
            "the namespace {namespace:?} may not be read; list it under `otherNamespaces` in the configuration"
        ));
    }
    let selector = parsed(need, need.label_selector.as_deref().unwrap_or_default())?;
    Ok(Wanted {
        need,
        kind,
        namespace,
        own,
        selector,
        namespaces: None,
    })
}

fn parsed(need: &Need, selector: &str) -> Result<Selector, NeedError> {
    let wrong = |problem| refused(need, &format!("{selector:?} is not a label selector: {problem}"));
    Selector::of(selector).map_err(wrong)
}

fn refused(need: &Need, problem: &str) -> NeedError {
    NeedError::Refused(format!("need {:?}: {problem}", need.id))
}

pub(super) fn kind_of(need: &Need) -> Kind {
    Kind::new(need.api_version.clone(), need.kind.clone())
}
