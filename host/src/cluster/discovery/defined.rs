//! Whether a CustomResourceDefinition serves a kind, and what its schema of the status has. Of all other kinds somebody
//! else writes the status.

use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use super::{DISCOVERY_TIMEOUT, Discovery, KindError, ResolvedKind};
use crate::backoff::MAX_RETRY_AFTER;
use crate::cluster::client::chain;
use crate::cluster::refusal::{asked_delay, refusal};
use crate::crd::{definition, pruned};
use crate::plugin::contract::Kind;

/// The fields of a condition that the host sets.
const CONDITION: [&str; 6] = [
    "type",
    "status",
    "reason",
    "message",
    "lastTransitionTime",
    "observedGeneration",
];

/// The fields of a status that the host sets, as far as the schema has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusFields {
    /// The fields of an element of `conditions`, in the order of [`CONDITION`]. Without `type` and `status` there are none.
    condition: [bool; CONDITION.len()],
    /// `observedGeneration`.
    observed_generation: bool,
}

impl StatusFields {
    /// Both, for a definition that the host may not read.
    pub const ALL: Self = Self {
        condition: [true; CONDITION.len()],
        observed_generation: true,
    };

    /// Returns those that an API server with this schema of the resource keeps.
    #[must_use]
    pub fn of(schema: &Value) -> Self {
        let keeps = |status: Value| pruned::first(&json!({ "status": status }), schema).is_none();
        Self {
            condition: CONDITION.map(|field| keeps(json!({ "conditions": [{ field: "" }] }))),
            observed_generation: keeps(json!({ "observedGeneration": 1 })),
        }
    }

    /// Whether it has conditions.
    #[must_use]
    pub const fn has_conditions(&self) -> bool {
        self.condition[0] && self.condition[1]
    }

    /// Removes the other fields from a status that the host has composed. An API server refuses an apply that has them.
    pub fn restrict(&self, status: &mut Map<String, Value>) {
        if !self.observed_generation {
            status.remove("observedGeneration");
        }
        if !self.has_conditions() {
            status.remove("conditions");
        }
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
            condition.retain(|name, _| {
                let mut known = CONDITION.iter().zip(self.condition);
                known.all(|(field, is_there)| field != name || is_there)
            });
        }
    }
}

/// The fields; `None` when no definition serves the kind. Or why they are not known, and when to ask again.
pub(super) type Answer = Result<Option<StatusFields>, (String, Option<Duration>)>;

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
        let is_enough = |answer: &Answer, age: Duration| match answer {
            Ok(fields) => fields.is_some(),
            Err((_, retry_after)) => age < retry_after.unwrap_or_default().min(MAX_RETRY_AFTER),
        };
        let plural = &resource.api.plural;
        let ask = || ask(self.client.clone(), kind.clone(), plural.clone());
        let key = format!("{}/{plural}", kind.api_version);
        match self.defined.get(&key, is_enough, ask).await {
            Ok(Some(fields)) => Ok(fields),
            Ok(None) => Err(KindError::NotDefined(kind.clone())),
            Err((message, retry_after)) => Err(KindError::Discovery {
                kind: kind.clone(),
                message,
                retry_after,
            }),
        }
    }
}

async fn ask(client: Client, kind: Kind, plural: String) -> Answer {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    // The host may list definitions, since it watches them.
    let one = ListParams::default().fields(&format!("metadata.name={plural}.{}", kind.group()));
    let found = match tokio::time::timeout(DISCOVERY_TIMEOUT, definitions.list(&one)).await {
        Ok(Ok(list)) => list.items.into_iter().next(),
        // A host without that right: its group shows that the kind is not one of Kubernetes' own.
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => return Ok(Some(StatusFields::ALL)),
        Ok(Err(kube::Error::Api(status))) => return Err((refusal(&status, None), asked_delay(&status))),
        Ok(Err(other)) => return Err((chain(&other), None)),
        Err(_elapsed) => return Err((format!("no answer within {DISCOVERY_TIMEOUT:?}"), None)),
    };
    let found = found.map(serde_json::to_value).transpose();
    let found = found.map_err(|error| (error.to_string(), None))?;
    let name = kind.api_version.rsplit('/').next().unwrap_or_default();
    let version = found.as_ref().and_then(|found| definition::version(found, name));
    let version = version.filter(|version| definition::is_served(version));
    Ok(version.map(|version| StatusFields::of(definition::schema_of(version))))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn only_what_the_schema_keeps_is_written() {
        let status = json!({ "phase": "x", "observedGeneration": 1, "conditions": [
            { "type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "t", "observedGeneration": 1, "mine": 1 },
        ] });
        let written = |schema: &Value| {
            let mut status = status.as_object().unwrap().clone();
            StatusFields::of(schema).restrict(&mut status);
            Value::Object(status)
        };
        let of = |properties: Value| {
            let schema = json!({ "type": "object", "properties": properties });
            written(&json!({ "type": "object", "properties": { "status": schema } }))
        };
        let open = json!({ "x-kubernetes-preserve-unknown-fields": true });
        assert_eq!(written(&open), status);
        assert_eq!(written(&json!({ "properties": { "status": open } })), status);
        let none = json!({ "phase": "x" });
        assert_eq!(of(json!({})), none);
        assert_eq!(written(&json!({ "type": "object" })), none);
        let text = json!({ "type": "string" });
        let conditions = |items: &Value| json!({ "type": "array", "items": items });
        let all = json!({ "observedGeneration": { "type": "integer" }, "conditions": conditions(&open) });
        assert_eq!(of(all), status);
        // Conditions of another form, and some with fewer fields.
        assert_eq!(of(json!({ "conditions": conditions(&text) })), none);
        let fields =
            json!({ "type": "object", "properties": { "type": text, "status": text, "reason": text } });
        let fewer = json!({ "phase": "x", "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "mine": 1 }] });
        assert_eq!(of(json!({ "conditions": conditions(&fields) })), fewer);
    }

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
        let none = StatusFields {
            condition: [false; CONDITION.len()],
            observed_generation: false,
        };
        for (code, answer, expected) in [
            (200, with(json!([])), None),
            (200, with(json!([definition(false)])), None),
            (200, with(json!([definition(true)])), Some(none)),
            (403, forbidden, Some(StatusFields::ALL)),
        ] {
            let service = tower::service_fn(move |request: Request<Body>| {
                assert!(
                    request
                        .uri()
                        .query()
                        .is_some_and(|query| query.contains("things.g.dev"))
                );
                let body = Body::from(answer.to_string().into_bytes());
                async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()) }
            });
            let kinds = Discovery::new(Client::new(service, "default"), Arc::new(Metrics::unread()));
            let kind = Kind {
                api_version: "g.dev/v1".into(),
                kind: "Thing".into(),
            };
            let resource = ResolvedKind {
                api: kube::core::ApiResource::from_gvk_with_plural(&super::super::gvk(&kind), "things"),
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
