//! Whether a CustomResourceDefinition serves a kind, and what its schema of the status has. Of all other kinds somebody
//! else writes the status.

use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, Client};

use operator_host_schema::status::StatusFields;

use super::{Discovery, Failure, KindError, ResolvedKind, answer};
use operator_host_contract::Kind;
use operator_host_core::crd::definition;

/// The fields; `None` when no definition serves the kind.
pub(super) type DefinedStatus = Result<Option<StatusFields>, Failure>;

impl Discovery {
    /// Returns what the definition of a kind says about its status.
    ///
    /// # Errors
    /// When no definition serves the kind, or the API server does not answer.
    pub(super) async fn status_fields(
        &self,
        kind: &Kind,
        resource: &ResolvedKind,
    ) -> Result<StatusFields, KindError> {
        let is_enough = |answer: &DefinedStatus, age: Duration| match answer {
            Ok(fields) => fields.is_some(),
            Err(failure) => failure.counts(age),
        };
        let plural = &resource.api.plural;
        let ask = || ask(self.client.clone(), kind.clone(), plural.clone());
        let key = format!("{}/{plural}", kind.api_version);
        match self.defined.get(&key, is_enough, ask).await {
            Ok(Some(fields)) => Ok(fields),
            Ok(None) => Err(KindError::NotDefined(kind.clone())),
            Err(failure) => Err(failure.about(kind)),
        }
    }
}

async fn ask(client: Client, kind: Kind, plural: String) -> DefinedStatus {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    // The host may list definitions, since it watches them.
    let one = ListParams::default().fields(&format!("metadata.name={plural}.{}", kind.group()));
    let found = match answer(definitions.list(&one)).await {
        Ok(list) => list.items.into_iter().next(),
        // A host without that right: its group shows that the kind is not one of Kubernetes' own.
        Err(failure) if failure.code == 403 => return Ok(Some(StatusFields::all())),
        Err(failure) => return Err(failure),
    };
    let found = found.map(serde_json::to_value).transpose();
    let found = found.map_err(|error| Failure::new(error.to_string()))?;
    let name = kind.api_version.rsplit('/').next().unwrap_or_default();
    let version = found.as_ref().and_then(|found| definition::version(found, name));
    let version = version.filter(|version| definition::is_served(version));
    Ok(version.map(|version| StatusFields::of(definition::schema_of(version))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::answering;
    use operator_host_telemetry::metrics::Metrics;

    #[tokio::test]
    async fn a_kind_that_no_definition_serves_is_refused_and_one_that_may_not_be_read_is_not() {
        let versions = |served: bool| {
            let schema = json!({ "openAPIV3Schema": { "type": "object" } });
            json!([{ "name": "v1", "served": served, "storage": true, "schema": schema }])
        };
        let with = |items: Value| {
            json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinitionList",
            "metadata": {}, "items": items })
        };
        let definition = |served: bool| {
            let names = json!({ "kind": "Thing", "plural": "things" });
            json!({ "metadata": { "name": "things.g.dev" },
                "spec": { "group": "g.dev", "scope": "Namespaced", "names": names, "versions": versions(served) } })
        };
        let forbidden = json!({ "kind": "Status", "code": 403, "status": "Failure", "message": "forbidden", "reason": "Forbidden" });
        let none = StatusFields::of(&json!({ "type": "object" }));
        for (code, answer, expected) in [
            (200, with(json!([])), None),
            (200, with(json!([definition(false)])), None),
            (200, with(json!([definition(true)])), Some(none)),
            (403, forbidden, Some(StatusFields::all())),
        ] {
            let client = answering(move |uri| {
                assert!(uri.contains("things.g.dev"), "{uri}");
                (code, answer.clone())
            });
            let kinds = Discovery::new(client, Arc::new(Metrics::unread()));
            let kind = Kind::new("g.dev/v1", "Thing");
            let resource = ResolvedKind {
                api: kube::core::ApiResource::from_gvk_with_plural(
                    &super::super::gvk_of("g.dev/v1", "Thing"),
                    "things",
                ),
                namespaced: true,
                has_status: true,
            };
            match (kinds.status_fields(&kind, &resource).await, expected) {
                (Ok(fields), Some(expected)) => assert_eq!(fields, expected),
                (Err(KindError::NotDefined(refused)), None) => assert_eq!(refused, kind),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }
}
