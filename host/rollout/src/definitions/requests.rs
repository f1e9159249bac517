//! The requests about one definition: reads it, tries an apply, applies, and waits until the API server serves it.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::PatchParams;
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::time::Instant;

use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::ResolvedKind;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_core::crd::definition::{is_served, versions};
use operator_host_core::object::NamespacedName;

/// How long an applied definition may take to be served.
const LIMIT: Duration = Duration::from_secs(30);
/// The first wait before it is read again. It doubles.
const FIRST_POLL: Duration = Duration::from_millis(50);
/// The longest of these waits.
const MAX_POLL: Duration = Duration::from_secs(1);
/// After a change, each API server builds the storage of the kind again, and nothing shows when that is done.
const SETTLE: Duration = Duration::from_secs(1);

/// The definition of this name.
pub(super) struct Requests<'a> {
    client: &'a Client,
    reader: Writer,
    resource: ResolvedKind,
    pub(super) name: NamespacedName,
}

/// Returns the parameters of an apply.
fn params(manager: &str, force: bool) -> PatchParams {
    PatchParams {
        force,
        ..PatchParams::apply(manager)
    }
}

impl<'a> Requests<'a> {
    pub(super) fn new(client: &'a Client, name: &str) -> Self {
        let definitions = ResolvedKind::built_in::<CustomResourceDefinition>(false, true);
        Self::of(client, definitions, name)
    }

    /// The requests about another cluster-scoped object.
    pub(super) fn of(client: &'a Client, resource: ResolvedKind, name: &str) -> Self {
        Self {
            client,
            reader: client.clone().into(),
            resource,
            name: NamespacedName::new(None, name),
        }
    }

    /// Returns the installed definition; `None` when there is none.
    pub(super) async fn read(&self) -> Result<Option<Value>, ApiError> {
        let client = ResourceClient::new(&self.reader, &self.resource);
        let found = client.read(&self.name).await?;
        Ok(found.as_ref().map(value))
    }

    /// Returns what an apply would make of the definition.
    pub(super) async fn try_apply(
        &self,
        body: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, ApiError> {
        let client = ResourceClient::new(&self.reader, &self.resource);
        let params = params(manager, force).dry_run();
        let result = client.apply(&self.name, body, &params).await?;
        Ok(value(&result))
    }

    /// Applies the definition.
    pub(super) async fn apply(
        &self,
        writer: &Writer,
        body: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, ApiError> {
        let client = ResourceClient::new(writer, &self.resource);
        let result = client.apply(&self.name, body, &params(manager, force)).await?;
        Ok(value(&result))
    }

    /// Changes the definition with a JSON merge patch.
    pub(super) async fn merge(&self, writer: &Writer, body: &Value, manager: &str) -> Result<(), ApiError> {
        let client = ResourceClient::new(writer, &self.resource);
        client.merge(&self.name, body, manager).await.map(drop)
    }

    /// Waits until the API server serves all served versions of a definition, which was changed at that time.
    pub(super) async fn served(
        &self,
        applied: &Value,
        changed: Option<std::time::Instant>,
    ) -> Result<(), String> {
        let end = Instant::now() + LIMIT;
        let mut poll = FIRST_POLL;
        loop {
            let Some(missing) = self.missing(applied).await else {
                if let Some(changed) = changed {
                    tokio::time::sleep(SETTLE.saturating_sub(changed.elapsed())).await;
                }
                return Ok(());
            };
            if Instant::now() >= end {
                return Err(format!("after {} s, {missing}", LIMIT.as_secs()));
            }
            tokio::time::sleep(poll).await;
            poll = MAX_POLL.min(poll * 2);
        }
    }

    /// Returns what is missing until the definition is served.
    async fn missing(&self, applied: &Value) -> Option<String> {
        let definition = match self.read().await {
            Ok(Some(definition)) => definition,
            Ok(None) => return Some("it is not there any more".to_owned()),
            Err(error) => return Some(error.to_string()),
        };
        for (type_, is_needed) in [("NamesAccepted", false), ("Established", true)] {
            let conditions = definition["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            match conditions.find(|condition| condition["type"] == type_) {
                Some(condition) if condition["status"] == "True" => {}
                Some(condition) if condition["status"] == "False" => {
                    let message = condition["message"].as_str().unwrap_or_default();
                    return Some(format!("it is not {type_}: {message}"));
                }
                _ if is_needed => return Some(format!("it is not {type_}")),
                _ => {}
            }
        }
        let spec = &applied["spec"];
        let group = spec["group"].as_str().unwrap_or_default();
        let plural = &spec["names"]["plural"];
        for version in versions(applied).filter(|version| is_served(version)) {
            let version = format!("{group}/{}", version["name"].as_str().unwrap_or_default());
            let served = self.client.list_api_group_resources(&version).await;
            if !served.is_ok_and(|list| list.resources.iter().any(|it| *plural == it.name)) {
                let plural = plural.as_str().unwrap_or_default();
                return Some(format!("the API server does not serve {plural} in {version}"));
            }
        }
        None
    }
}

fn value(object: &DynamicObject) -> Value {
    // Serialization of a resource cannot fail.
    serde_json::to_value(object).unwrap_or_default()
}
