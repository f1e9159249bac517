//! What can be asked for: the controllers or one of them, the Lease, the objects of one controller, or one object with its
//! tree. As JSON.

mod object;
mod objects;
mod overview;

use serde::Serialize;
use serde_json::json;

use super::Sources;
use operator_host_cluster::cache::WatchState;
use operator_host_cluster::kind_reflectors::KindReflectors;
use operator_host_contract::Kind;
use operator_host_core::object::NamespacedName;

/// What to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// All controllers.
    Overview,
    /// The Lease, and which replica leads.
    Lease,
    /// One controller, by its name.
    Controller(String),
    /// A page of the objects of one controller.
    Objects(Page),
    /// One object.
    Object(One),
}

/// A page of the objects of one controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    controller: String,
    /// Part of the names to show; empty for all.
    filter: String,
    /// Whether to show only those that are not ready.
    problems: bool,
    /// The last name of the page before.
    after: Option<NamespacedName>,
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct One {
    controller: String,
    name: NamespacedName,
    /// Number of children to show.
    children: usize,
}

/// Number of children that are shown at first, and at most.
const CHILDREN: usize = 100;
const MAX_CHILDREN: usize = 2000;
impl View {
    /// Parses the query of a request. An error is for people.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let parameters: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let find = |wanted: &str| {
            let (_, value) = parameters.iter().find(|(name, _)| name == wanted)?;
            Some(value.as_ref()).filter(|value: &&str| !value.is_empty())
        };
        let required = |wanted: &str| find(wanted).ok_or_else(|| format!("the query has no `{wanted}`"));
        let number = |wanted: &str| {
            let number = find(wanted).map(str::parse::<u64>).transpose();
            number.map_err(|_| format!("`{wanted}` must be a whole number, from 0"))
        };
        match find("view").unwrap_or("overview") {
            "overview" => Ok(Self::Overview),
            "lease" => Ok(Self::Lease),
            "controller" => Ok(Self::Controller(required("controller")?.to_owned())),
            "objects" => Ok(Self::Objects(Page {
                controller: required("controller")?.to_owned(),
                filter: find("filter").unwrap_or_default().to_lowercase(),
                problems: find("problems").is_some(),
                after: find("after").map(NamespacedName::parse),
            })),
            "object" => Ok(Self::Object(One {
                controller: required("controller")?.to_owned(),
                name: NamespacedName::parse(required("name")?),
                children: match number("children")? {
                    Some(number) => usize::try_from(number).unwrap_or(MAX_CHILDREN).min(MAX_CHILDREN),
                    None => CHILDREN,
                },
            })),
            other => Err(format!("there is no view {other:?}")),
        }
    }

    /// Returns the view as JSON, and whether there is something to show. This may take a while where a controller has
    /// many objects, so it does not belong on a thread that serves others.
    pub(super) fn json(&self, sources: &Sources) -> (bool, String) {
        match self {
            Self::Overview => answer(&Ok(overview::overview(sources))),
            Self::Lease => answer(&Ok(
                json!({ "identity": sources.identity, "lease": *sources.lease.borrow() }),
            )),
            Self::Controller(name) => answer(&overview::one(sources, name)),
            Self::Objects(page) => answer(&objects::objects(sources, page)),
            Self::Object(one) => answer(&object::object(sources, one)),
        }
    }
}

fn answer(result: &Result<impl Serialize, String>) -> (bool, String) {
    let text = match result {
        Ok(value) => serde_json::to_string(value),
        Err(error) => serde_json::to_string(&json!({ "error": error })),
    };
    // All keys are strings, and all numbers are finite.
    (result.is_ok(), text.unwrap_or_default())
}

/// Returns why objects of a kind are missing, for one watch that fails and for one that has not listed yet. The other
/// watches often fail for the same reason.
fn incomplete(kind: &Kind, watches: &KindReflectors) -> Vec<String> {
    let states: Vec<_> = watches.all().iter().map(|watch| watch.state_now()).collect();
    let failing = states.iter().filter_map(|state| match state {
        WatchState::Failing(why) => Some(why.as_str()),
        WatchState::Starting | WatchState::Synced => None,
    });
    let starting = states.iter().filter(|state| **state == WatchState::Starting);
    let starting = starting.map(|_| "the first list is in progress");
    let text = |all: Vec<&str>| {
        let others = match all.len() {
            0 | 1 => String::new(),
            number => format!(" (and {} more namespaces)", number - 1),
        };
        all.first().map(|why| format!("{kind}: {why}{others}"))
    };
    let texts = [text(failing.collect()), text(starting.collect())];
    texts.into_iter().flatten().collect()
}

fn not_running(controller: &str) -> String {
    format!(
        "the controller {controller:?} does not run here: its kind is not served, or it is not configured"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_what_to_show() {
        assert_eq!(View::parse(""), Ok(View::Overview));
        assert_eq!(View::parse("view=lease"), Ok(View::Lease));
        assert_eq!(
            View::parse("view=object&controller=echo&name=shop%2Fa&children=9999999"),
            Ok(View::Object(One {
                controller: "echo".into(),
                name: NamespacedName::parse("shop/a"),
                children: MAX_CHILDREN,
            }))
        );
        assert_eq!(
            View::parse("view=objects&controller=echo&filter=Caf%C3%A9+x&problems=1&after=a/b"),
            Ok(View::Objects(Page {
                controller: "echo".into(),
                filter: "café x".into(),
                problems: true,
                after: Some(NamespacedName::parse("a/b")),
            }))
        );
    }

    #[test]
    fn a_bad_query_is_refused_in_words() {
        for (query, words) in [
            ("view=objects", "no `controller`"),
            ("view=controller", "no `controller`"),
            ("view=object&controller=a", "no `name`"),
            ("view=object&name=a", "no `controller`"),
            ("view=secrets", "no view \"secrets\""),
            ("view=%ff", "no view"),
            ("view=%zz", "no view \"%zz\""),
            (
                "view=object&controller=a&name=b&children=-1",
                "`children` must be a whole number",
            ),
        ] {
            let error = View::parse(query).unwrap_err();
            assert!(error.contains(words), "{query}: {error}");
        }
    }
}
