//! The Controllers that decorate an object, as their own status tells.

use kube::api::DynamicObject;
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use super::kinds::Kinds;
use operator_host_cluster::objects::Objects;
use operator_host_contract::Kind;
use operator_host_core::managed_fields::applied_by;
use operator_host_core::object::{FIELD_MANAGER_PREFIX, NamespacedName, Selector};

/// A Controller that decorates the object.
#[derive(Debug, PartialEq)]
pub(super) struct Decorator {
    /// The name of the Controller.
    pub(super) name: String,
    /// The reason for which the object is not ready, if the Controller names it among the first. The Events have the message.
    pub(super) problem: Option<String>,
    /// Whether fields of the object are the Controller's.
    pub(super) has_fields: bool,
}

impl Decorator {
    /// Says in one line what it does.
    pub(super) fn line(&self) -> String {
        let fields = match self.has_fields {
            true => " (sets fields of it)",
            false => "",
        };
        let problem = self.problem.as_deref();
        let problem = problem.unwrap_or("no problem among the first that it names");
        format!("Controller {}{fields}: {problem}", self.name)
    }
}

/// Returns the Controllers that decorate an object; none where the cluster does not have the kind.
pub(super) async fn find(
    client: &Client,
    kinds: &Kinds,
    object: &DynamicObject,
) -> kube::Result<Vec<Decorator>> {
    let Ok(served) = kinds.find("controllers.operator-host.dev") else {
        return Ok(Vec::new());
    };
    let controllers = Objects::new(client.clone(), &served.api, None);
    let controllers = controllers.list(&Default::default()).await?.items;
    let decorators = controllers.iter().filter_map(|it| decorator(it, object));
    Ok(decorators.collect())
}

fn decorator(controller: &DynamicObject, object: &DynamicObject) -> Option<Decorator> {
    let types = object.types.as_ref()?;
    let kind = Kind::new(&*types.api_version, &*types.kind);
    let decorates = controller.data["spec"]["decorates"].as_array()?;
    let is_it = |it: &&Value| {
        let text = |field: &str| it[field].as_str().unwrap_or_default();
        let selector = Selector::of(text("selector"));
        kind.is_version_of(&Kind::new(text("apiVersion"), text("kind")))
            && selector.is_ok_and(|selector| selector.matches(object.labels()))
    };
    decorates.iter().find(is_it)?;
    let name = controller.name_any();
    let place = NamespacedName::of(object).to_string();
    let first = controller.data["status"]["objects"]["first"].as_array();
    let mut first = first.into_iter().flatten();
    let problem = first.find(|it| it["name"] == *place && it["kind"] == *types.kind);
    let managed = object.metadata.managed_fields.as_deref().unwrap_or_default();
    Some(Decorator {
        problem: problem.map(|it| it["reason"].as_str().unwrap_or_default().to_owned()),
        has_fields: applied_by(managed, &format!("{FIELD_MANAGER_PREFIX}{name}")).is_some(),
        name,
    })
}
