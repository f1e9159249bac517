//! What a plugin asks to read: checked against what it may read, and answered from a [`Source`].

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::{DynamicObject, Expression, Selector, SelectorExt};
use thiserror::Error;

use super::context::Context;
use super::evaluate::MAX_ITERATIONS;
use crate::config::ControllerConfig;
use crate::object::{ObjectName, name_problem, shorten};
use crate::plugin::contract::{Description, Kind, Need, Related};

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
    #[error("need {id:?}: {selector:?} is not a label selector: {problem}")]
    BadSelector {
        id: String,
        selector: String,
        problem: String,
    },
    #[error("two needs have the id {id:?}; each must have its own")]
    Twice { id: String },
    #[error(
        "the plugin asked for other objects {MAX_ITERATIONS} times in one pass; its needs must not depend on each other for ever"
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
        "the plugin has {count} needs; it may have {MAX_NEEDS}: use a label selector for many objects of a kind"
    )]
    TooMany { count: usize },
    #[error("need {id:?}: its {field} is {length} bytes long; it may be {limit}")]
    TooLong {
        id: String,
        field: &'static str,
        length: usize,
        limit: usize,
    },
}

/// How many needs a response may have: each may bring all objects of a kind into the request.
const MAX_NEEDS: usize = 32;
/// Bytes of a need's id, namespace and name, which are remembered with the parent.
const MAX_NAME: usize = 253;
/// Bytes of its label selector.
const MAX_SELECTOR: usize = 4096;

/// Whether needs are few and short enough to be remembered, and can be told apart.
///
/// # Errors
/// What is too much, or there twice.
pub fn admit(needs: &[Need]) -> Result<(), NeedError> {
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

/// Where the objects come from that a plugin asks to read.
pub trait Source: Sync {
    /// What may be read.
    fn rights(&self) -> Rights<'_>;
    /// Whether the objects of a kind are in namespaces; a kind that nobody knows is taken for one.
    fn is_namespaced(&self, kind: &Kind) -> bool;
    /// The objects that a need selects, as [`Related::objects`] has them.
    fn read(
        &self,
        wanted: &Wanted<'_>,
    ) -> impl Future<Output = Result<Vec<Arc<DynamicObject>>, NeedError>> + Send;
}

/// What a plugin may read.
#[derive(Clone, Copy, Debug)]
pub enum Rights<'a> {
    /// What its controller's configuration allows.
    Configured(&'a ControllerConfig),
    /// What it announces itself: there is no configuration, which alone can say what namespaces beside the parent's may
    /// be read.
    Announced(&'a Description),
}

/// A need that may be read.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The need.
    pub need: &'a Need,
    /// Its kind.
    pub kind: Kind,
    /// The namespace to look in; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its label selector.
    pub selector: Selector,
}

impl Wanted<'_> {
    /// What it selects cannot be read now.
    #[must_use]
    pub fn unreadable(&self, problem: String) -> NeedError {
        NeedError::Unreadable {
            id: self.need.id.clone(),
            problem,
        }
    }
}

/// Reads what the needs select.
///
/// # Errors
/// The first need that may not or cannot be read, or that makes no sense.
pub async fn answer(
    source: &impl Source,
    parent: &DynamicObject,
    needs: &[Need],
) -> Result<Vec<Related>, NeedError> {
    let mut related = Vec::with_capacity(needs.len());
    for need in needs {
        let namespaced = source.is_namespaced(&kind_of(need));
        let wanted = check(source.rights(), namespaced, parent, need)?;
        related.push(Related {
            id: need.id.clone(),
            objects: source.read(&wanted).await?,
        });
    }
    Ok(related)
}

/// Whether what a need asks for may be read, and makes sense.
///
/// # Errors
/// When it may not, or makes none.
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

/// The caches, as they are now. A watch that fails is told in its own words; that the watches work which a pass needs
/// anyway (`Context::watch_failure`), the caller has seen before.
impl Source for Context {
    fn rights(&self) -> Rights<'_> {
        Rights::Configured(&self.config)
    }

    fn is_namespaced(&self, kind: &Kind) -> bool {
        self.resources
            .get(kind)
            .is_none_or(|resource| resource.namespaced)
    }

    async fn read(&self, wanted: &Wanted<'_>) -> Result<Vec<Arc<DynamicObject>>, NeedError> {
        let Wanted {
            need, kind, selector, ..
        } = wanted;
        let namespace = wanted.namespace.as_deref();
        if let Some(problem) = self.watch_failure_of_read(kind, namespace) {
            return Err(wanted.unreadable(problem));
        }
        let objects = self.related(kind, namespace, need.name.as_deref(), selector);
        objects.ok_or_else(|| NeedError::NamespaceNotWatched {
            id: need.id.clone(),
            namespace: namespace.unwrap_or_default().to_owned(),
        })
    }
}

/// Whether an object is one that a parent's need selects.
#[must_use]
pub fn selects(need: &Need, parent: &ObjectName, kind: &Kind, object: &DynamicObject) -> bool {
    let namespace = need.namespace.as_ref().or(parent.namespace.as_ref());
    let empty = std::collections::BTreeMap::new();
    need.kind == kind.kind
        && need.api_version == kind.api_version
        && need
            .name
            .as_ref()
            .is_none_or(|name| object.metadata.name.as_ref() == Some(name))
        && (object.metadata.namespace.is_none() || object.metadata.namespace.as_ref() == namespace)
        && selector(need)
            .is_ok_and(|selector| selector.matches(object.metadata.labels.as_ref().unwrap_or(&empty)))
}

fn kind_of(need: &Need) -> Kind {
    Kind {
        api_version: need.api_version.clone(),
        kind: need.kind.clone(),
    }
}

/// The label selector of a need, or what is wrong with it.
fn selector(need: &Need) -> Result<Selector, String> {
    need.label_selector
        .as_deref()
        .map_or_else(|| Ok(Selector::default()), parse_selector)
}

/// Reads what `kubectl get -l` takes: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
fn parse_selector(text: &str) -> Result<Selector, String> {
    let mut expressions = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // A comma within parentheses belongs to the set.
        let mut depth = 0;
        let end = rest.find(|c: char| {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            c == ',' && depth <= 0
        });
        let (one, after) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
        expressions.push(parse_expression(one.trim())?);
        rest = after.trim_start();
    }
    Ok(expressions.into_iter().collect())
}

fn parse_expression(text: &str) -> Result<Expression, String> {
    let key = |key: &str| {
        let key = key.trim();
        let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if key.is_empty() || !key.chars().all(is_key) {
            return Err(format!("{key:?} is not a label's key"));
        }
        Ok(key.to_owned())
    };
    if let Some((left, right)) = text.split_once("!=") {
        return Ok(Expression::NotEqual(key(left)?, right.trim().to_owned()));
    }
    if let Some((left, right)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Expression::Equal(key(left)?, right.trim().to_owned()));
    }
    if let Some((left, set)) = text.split_once('(') {
        let set = set
            .trim_end()
            .strip_suffix(')')
            .ok_or("a set must end with ')'")?;
        let values = set.split(',').map(|value| value.trim().to_owned()).collect();
        let (left, operator) = left
            .trim_end()
            .rsplit_once(char::is_whitespace)
            .ok_or("a set needs `in` or `notin`")?;
        return match operator {
            "in" => Ok(Expression::In(key(left)?, values)),
            "notin" => Ok(Expression::NotIn(key(left)?, values)),
            other => Err(format!("{other:?} is neither `in` nor `notin`")),
        };
    }
    match text.strip_prefix('!') {
        Some(absent) => Ok(Expression::DoesNotExist(key(absent)?)),
        None => Ok(Expression::Exists(key(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_as_kubectl_reads_them() {
        let labels = |text: &str| {
            text.split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.into(), v.into()))
                .collect()
        };
        let cases = [
            ("", "a=1", true),
            ("a=1", "a=1", true),
            ("a==1,b!=2", "a=1,b=3", true),
            ("a=1,b!=2", "a=1,b=2", false),
            ("a in (1, 2),b", "a=2,b=", true),
            ("a notin (1,2)", "a=2", false),
            ("!a", "a=1", false),
            ("!a", "b=1", true),
            ("app.kubernetes.io/name", "b=1", false),
        ];
        for (selector, on, expected) in cases {
            let parsed = parse_selector(selector).unwrap();
            assert_eq!(parsed.matches(&labels(on)), expected, "{selector} on {on}");
        }
        for bad in ["=1", "a b", "a of (1)", "a in (1", "in (1)"] {
            assert!(parse_selector(bad).is_err(), "{bad}");
        }
    }
}
