//! Controllers that decorate: their parents are the objects of a kind that others define and write.

use schemars::JsonSchema;
use serde::Deserialize;

use operator_host_contract::Kind;
use operator_host_core::field_path::{Step, WrittenPath};
use operator_host_core::object::{Selector, secret};

/// Which objects a controller decorates, and which of their changes concern it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decorates {
    /// The labels of the objects. It never selects all.
    pub selector: Selector,
    /// The paths below which the plugin may give its parents fields.
    pub fields: Vec<WrittenPath>,
    /// Whether a change of the status alone is a reason to reconcile.
    pub watch_status: bool,
}

/// The most kinds that one Controller decorates.
pub(super) const MAX_KINDS: usize = 8;
/// The most bytes of the last part of an annotation's key, where the live version of each kind is recorded.
const MAX_ID: usize = 63;

/// Returns a kind in all its versions, such as `Deployment.apps` or `Namespace`.
pub fn named(kind: &Kind) -> String {
    match kind.group() {
        "" => kind.kind.clone(),
        group => format!("{}.{group}", kind.kind),
    }
}

/// Returns what tells the controller for a further kind apart from the others.
pub(super) fn id(controller: &str, kind: &Kind) -> Result<String, String> {
    let id = format!("{controller}.{}", named(kind).to_lowercase());
    match id.len() <= MAX_ID {
        true => Ok(id),
        false => Err(format!(
            "{id:?}, which tells it apart, has more than {MAX_ID} characters: give the Controller a shorter name, or list this kind \
             first"
        )),
    }
}

/// A kind that a Controller decorates.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawDecorated {
    /// The group and version, such as `apps/v1`.
    api_version: String,
    /// The kind, such as `Deployment`.
    kind: String,
    /// The labels of the objects, as in `kubectl get -l`. It cannot be empty.
    selector: String,
    /// The fields of the objects that the plugin may set, such as `metadata.labels["example.com/tier"]` or
    /// `spec.template.spec.containers[name=app].image`, with all that is below them. None by default.
    #[serde(default)]
    fields: Vec<String>,
}

impl RawDecorated {
    pub(super) fn kind(&self) -> Kind {
        Kind::new(&*self.api_version, &*self.kind)
    }

    /// Validates the kind and the selector.
    pub(super) fn validate(self, watch_status: bool) -> Result<Decorates, (&'static str, String)> {
        if let Some(why) = refused(&self.kind()) {
            return Err(("kind", why));
        }
        let wrong = |why| format!("{:?} is not a label selector: {why}", self.selector);
        let selector = Selector::of(&self.selector).map_err(|why| ("selector", wrong(why)))?;
        if selector.selects_all() {
            let why = "an empty selector would select every object of the cluster: name a label that the objects have";
            return Err(("selector", why.to_owned()));
        }
        let fields = self.fields.iter().map(|text| field(text));
        let fields = fields.collect::<Result<_, _>>().map_err(|why| ("fields", why))?;
        Ok(Decorates {
            selector,
            fields,
            watch_status,
        })
    }
}

/// Parses the path of a field that a plugin may set.
fn field(text: &str) -> Result<WrittenPath, String> {
    let path: WrittenPath = text.parse()?;
    let names = path.steps.iter().map(|step| match step {
        Step::Field(name) => name.as_str(),
        Step::Element(_) => "",
    });
    let why = match names.collect::<Vec<_>>()[..] {
        ["metadata", "labels" | "annotations", key] if key.starts_with("operator-host.dev/") => {
            "is a mark of the host"
        }
        ["metadata", "labels" | "annotations", _] => return Ok(path),
        ["metadata", ..] => {
            "is not a label or an annotation: of the metadata name one, such as `metadata.labels[\"example.com/tier\"]`"
        }
        ["apiVersion" | "kind" | "status", ..] => "is not the plugin's to set",
        [_] => "is all of the object but its metadata: name a field below it",
        _ => return Ok(path),
    };
    Err(format!("{text:?} {why}"))
}

/// Returns why a kind cannot be decorated.
fn refused(kind: &Kind) -> Option<String> {
    let why = match (kind.group(), &*kind.kind) {
        _ if secret::is_secret_kind(kind) => {
            "the host would keep the values of every Secret in its memory, and give them to the plugin"
        }
        ("" | "events.k8s.io", "Event") | ("coordination.k8s.io", "Lease") => {
            "its objects change all the time, and the host writes some of them itself"
        }
        ("authentication.k8s.io" | "authorization.k8s.io", _) => "its objects are not stored",
        _ => return None,
    };
    Some(format!("{kind} cannot be decorated: {why}"))
}
