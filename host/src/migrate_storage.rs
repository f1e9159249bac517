//! Rewrites the stored resources of a kind in the version in which new ones are stored.
//!
//! An empty patch makes the API server read the resource, and write it again if the stored text is of another version. So
//! nothing that a user changes meanwhile is lost, and resources that are already migrated cost no write: an interrupted
//! migration can be started again. Only when every resource is written, the other versions are removed from
//! `status.storedVersions` of the definition, after which they may be removed from the definition itself.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::Status;
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;

use crate::cluster::client::{Pace, said};
use crate::cluster::objects::Objects;
use crate::cluster::refusal::is_missing_object;
use crate::object::{next_page, shorten};

/// Resources in one list.
const PAGE: u32 = 500;
/// Resources between two reports of the progress.
const STEP: usize = 100;
/// How often a resource is tried again that changes meanwhile, or that the API server is too busy to write.
const ATTEMPTS: u32 = 5;
/// How often a resource is tried again that nobody converts: the host may just start again.
const CONVERSION_ATTEMPTS: u32 = 2;
/// Maximum number of failures that are reported.
const SHOWN: usize = 10;
/// Maximum number of failures before the migration stops: they have one cause.
const MAX_FAILURES: usize = 100;
/// Maximum length of a failure, in bytes.
const MESSAGE: usize = 500;

/// Why a migration did not finish.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The definition cannot be read.
    #[error("cannot read the CustomResourceDefinition {name}: {}{}", said(error), match error {
        kube::Error::Api(status) if status.code == 404 => "; give its name as `kubectl get crd` shows it",
        _ => "",
    })]
    Definition {
        /// Its name.
        name: String,
        /// Why.
        error: kube::Error,
    },
    /// The definition has no storage version.
    #[error("the CustomResourceDefinition {0} has no storage version")]
    NoStorage(String),
    /// The storage version is not served, so nothing can be written in it.
    #[error(
        "the CustomResourceDefinition {name} does not serve its storage version {version}: serve it during the migration"
    )]
    NotServed {
        /// The name of the definition.
        name: String,
        /// The storage version.
        version: String,
    },
    /// A stored version has no schema any more, so the API server cannot read what is stored in it.
    #[error(
        "the CustomResourceDefinition {name} does not define the version {version}, in which resources may be stored: add \
         that version to the definition again, and start the migration again"
    )]
    NotDefined {
        /// The name of the definition.
        name: String,
        /// The stored version.
        version: String,
    },
    /// Nothing converts the stored resources, and the storage version lacks a field.
    #[error(
        "the migration would delete fields: the CustomResourceDefinition {name} has no conversion webhook, and {version} does \
         not allow {field}, which resources stored in {stored} may have; add the webhook (`operator-host crd --service`) or \
         the field"
    )]
    NotConverted {
        /// The name of the definition.
        name: String,
        /// The storage version.
        version: String,
        /// The earlier version.
        stored: String,
        /// The path of the field.
        field: String,
    },
    /// Nothing converts the stored resources, and a field has another type in the storage version.
    #[error(
        "the API server would refuse resources: the CustomResourceDefinition {name} has no conversion webhook, and {field} is \
         {types}; add the webhook (`operator-host crd --service`) or give the field one type"
    )]
    OtherType {
        /// The name of the definition.
        name: String,
        /// The path of the field.
        field: String,
        /// Its types, such as `an integer in v2 but a string in v1`.
        types: String,
    },
    /// A list failed.
    #[error("cannot list {name}: {}", said(error))]
    List {
        /// The name of the definition.
        name: String,
        /// Why.
        error: kube::Error,
    },
    /// Some resources could not be written.
    #[error(
        "{count} resources were not written{}, so the stored versions stay as they are:\n  {}\ncorrect them, and start the \
         migration again",
        match untried {
            0 => String::new(),
            untried => format!(", and {untried} were not tried"),
        },
        failures.join("\n  ")
    )]
    Resources {
        /// How many.
        count: usize,
        /// How many were left after too many failures.
        untried: usize,
        /// The first of them, each with the reason.
        failures: Vec<String>,
    },
    /// The definition was changed during the migration.
    #[error(
        "every resource is written in {version}, but the CustomResourceDefinition {name} was changed meanwhile: start the \
         migration again"
    )]
    Changed {
        /// The name of the definition.
        name: String,
        /// The storage version at the start.
        version: String,
    },
    /// The stored versions could not be written.
    #[error(
        "cannot write `status.storedVersions` of the CustomResourceDefinition {name}: {}; the migration needs the permission to \
         patch its status",
        said(error)
    )]
    Status {
        /// The name of the definition.
        name: String,
        /// Why.
        error: kube::Error,
    },
}

/// The result of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The storage version.
    pub version: String,
    /// The number of resources that were written, or that already had that version.
    pub resources: usize,
    /// The versions that are no longer stored.
    pub dropped: Vec<String>,
}

/// Migrates a kind, given the name of its definition, at most as fast as `pace` allows. Reports to
/// `progress` how many of how many resources are written.
///
/// # Errors
/// As described in [`MigrateError`].
pub async fn migrate(
    client: &Client,
    name: &str,
    pace: &Pace,
    progress: impl Fn(usize, usize),
) -> Result<Migrated, MigrateError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let read = async || {
        let definition = definitions.get(name).await;
        definition.map_err(|error| MigrateError::Definition {
            name: name.to_owned(),
            error,
        })
    };
    let definition = read().await?;
    let Some(version) = storage_version(&definition) else {
        return Err(MigrateError::NoStorage(name.to_owned()));
    };
    let others = stored(&definition).filter(|stored| *stored != version);
    let dropped: Vec<String> = others.map(str::to_owned).collect();
    if dropped.is_empty() {
        return Ok(Migrated {
            version: version.to_owned(),
            resources: 0,
            dropped,
        });
    }
    check(&definition, version, &dropped)?;
    // Before all the work: is the last step allowed?
    let write = async |definition: &CustomResourceDefinition, params: PatchParams| {
        // With the resource version: a definition whose storage version changes now is not touched.
        let status = json!({
            "metadata": { "resourceVersion": definition.metadata.resource_version },
            "status": { "storedVersions": [version] },
        });
        let written = definitions
            .patch_status(name, &params, &Patch::Merge(status))
            .await;
        written.map(drop)
    };
    let failed = |error| MigrateError::Status {
        name: name.to_owned(),
        error,
    };
    match write(&definition, PatchParams::default().dry_run()).await {
        Err(error) if is_forbidden(&error) => return Err(failed(error)),
        // For example an admission webhook without dry run, or a change a moment ago.
        Ok(()) | Err(_) => {}
    }
    let resources = rewrite(client, &definition, version, pace, &progress).await?;

    let now = read().await?;
    // The generation, too: the storage version may have been another one for a while.
    if now.metadata.uid != definition.metadata.uid
        || now.metadata.generation != definition.metadata.generation
    {
        return Err(MigrateError::Changed {
            name: name.to_owned(),
            version: version.to_owned(),
        });
    }
    write(&now, PatchParams::default()).await.map_err(failed)?;
    Ok(Migrated {
        version: version.to_owned(),
        resources,
        dropped,
    })
}

/// Checks that the migration can write every resource without a loss.
fn check(
    definition: &CustomResourceDefinition,
    version: &str,
    dropped: &[String],
) -> Result<(), MigrateError> {
    let (name, spec) = (definition.name_any(), &definition.spec);
    let find = |wanted: &str| spec.versions.iter().find(|version| version.name == wanted);
    if !find(version).is_some_and(|version| version.served) {
        let version = version.to_owned();
        return Err(MigrateError::NotServed { name, version });
    }
    let converts = spec
        .conversion
        .as_ref()
        .is_some_and(|conversion| conversion.strategy == "Webhook");
    let prunes = spec.preserve_unknown_fields != Some(true);
    // Serialization of a schema cannot fail.
    let schema = |wanted: &str| {
        let schema = find(wanted).and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
        serde_json::to_value(schema).unwrap_or_default()
    };
    for stored in dropped {
        if find(stored).is_none() {
            let version = stored.clone();
            return Err(MigrateError::NotDefined { name, version });
        }
        if !converts
            && prunes
            && let Some(loss) = lost(&schema(stored), &schema(version), "")
        {
            return Err(match loss {
                Loss::Field(field) => MigrateError::NotConverted {
                    name,
                    version: version.to_owned(),
                    stored: stored.clone(),
                    field,
                },
                Loss::Type { field, was, is } => MigrateError::OtherType {
                    name,
                    field,
                    types: format!("{is} in {version} but {was} in {stored}"),
                },
            });
        }
    }
    Ok(())
}

/// The first difference between two schemas that needs a conversion.
enum Loss {
    /// The path of a field that the new schema does not have.
    Field(String),
    /// The path of a field with another type, and both types.
    Type { field: String, was: String, is: String },
}

/// Returns the first field that one schema allows and another prunes, or gives a type that not all of its values have.
fn lost(before: &Value, after: &Value, path: &str) -> Option<Loss> {
    let shown = || {
        if path.is_empty() {
            "unknown fields".to_owned()
        } else {
            path.to_owned()
        }
    };
    let unknown = |schema: &Value| schema["x-kubernetes-preserve-unknown-fields"] == true;
    // The schema of the values of a map; `true` for any.
    let others = |schema: &Value| match &schema["additionalProperties"] {
        Value::Null | Value::Bool(false) if unknown(schema) => Value::Bool(true),
        Value::Bool(false) => Value::Null,
        others => others.clone(),
    };
    let into = |before: &Value, after: &Value, path: String| match (before, after) {
        (Value::Null, _) | (_, Value::Bool(true)) => None,
        (Value::Bool(_), Value::Object(_)) | (_, Value::Null) => Some(Loss::Field(path)),
        (before, after) => lost(before, after, &path),
    };
    let (was, is) = (&before["type"], &after["type"]);
    // Every integer is a number.
    let fits = was == is || was == "integer" && is == "number";
    if let (Some(was), Some(is), false) = (was.as_str(), is.as_str(), fits) {
        let article = |name: &str| {
            if name.starts_with(['a', 'i', 'o']) {
                "an"
            } else {
                "a"
            }
        };
        let type_ = |name: &str| format!("{} {name}", article(name));
        return Some(Loss::Type {
            field: shown(),
            was: type_(was),
            is: type_(is),
        });
    }
    let fields = |schema: &Value| schema["properties"].as_object().cloned().unwrap_or_default();
    let (had, has) = (fields(before), fields(after));
    let rest = others(after);
    // Every resource has them.
    let always = |name: &str| path.is_empty() && matches!(name, "apiVersion" | "kind" | "metadata");
    let field = had
        .iter()
        .filter(|(name, _)| !always(name))
        .find_map(|(name, field)| {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            into(field, has.get(name).unwrap_or(&rest), path)
        });
    field
        .or_else(|| into(&others(before), &rest, shown()))
        .or_else(|| into(&before["items"], &after["items"], format!("{path}[]")))
}

/// Writes every resource, and returns their number.
async fn rewrite(
    client: &Client,
    definition: &CustomResourceDefinition,
    version: &str,
    pace: &Pace,
    progress: &impl Fn(usize, usize),
) -> Result<usize, MigrateError> {
    let spec = &definition.spec;
    let resource = ApiResource {
        group: spec.group.clone(),
        version: version.to_owned(),
        api_version: format!("{}/{version}", spec.group),
        kind: spec.names.kind.clone(),
        plural: spec.names.plural.clone(),
    };
    let all = Objects::new(client.clone(), &resource, None);
    // Names first: the pages of one list must be read within minutes.
    let mut names = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = all
            .list_metadata(&page)
            .await
            .map_err(|error| MigrateError::List {
                name: definition.name_any(),
                error,
            })?;
        names.extend(
            list.items
                .iter()
                .map(|object| (object.namespace(), object.name_any())),
        );
        match next_page(&list.metadata) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    let (mut done, mut count, mut failures) = (0, 0, Vec::new());
    for (index, (namespace, name)) in names.iter().enumerate() {
        if index > 0 && index % STEP == 0 {
            progress(index, names.len());
        }
        pace.wait().await;
        let one = Objects::new(client.clone(), &resource, namespace.as_deref());
        let Err(error) = write(&one, name, pace).await else {
            done += 1;
            continue;
        };
        count += 1;
        if failures.len() < SHOWN {
            let namespace = namespace.as_ref().map(|namespace| format!("{namespace}/"));
            let message = shorten(&said(&error), MESSAGE);
            failures.push(format!("{}{name}: {message}", namespace.unwrap_or_default()));
        }
        if count >= MAX_FAILURES {
            break;
        }
    }
    match count {
        0 => Ok(done),
        count => Err(MigrateError::Resources {
            count,
            untried: names.len() - done - count,
            failures,
        }),
    }
}

/// Writes one resource. A deleted one is no error.
async fn write(api: &Objects, name: &str, pace: &Pace) -> Result<(), kube::Error> {
    let nothing = Patch::Merge(json!({}));
    for attempt in 1.. {
        match api.patch_metadata(name, &PatchParams::default(), &nothing).await {
            Err(kube::Error::Api(status)) if is_missing_object(&status, name) => return Ok(()),
            Err(kube::Error::Api(status)) if attempt < attempts(&status) => {
                tokio::time::sleep(std::time::Duration::from_secs(1 << attempt)).await;
                pace.wait().await;
            }
            result => return result.map(drop),
        }
    }
    Ok(())
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
}

/// Returns how often a resource is tried that is refused with this status.
fn attempts(status: &Status) -> u32 {
    match status.code {
        500.. if status.message.contains("conversion webhook") => CONVERSION_ATTEMPTS,
        409 | 429 | 500.. => ATTEMPTS,
        _ => 1,
    }
}

fn storage_version(definition: &CustomResourceDefinition) -> Option<&str> {
    let versions = definition.spec.versions.iter();
    versions
        .filter(|version| version.storage)
        .map(|version| version.name.as_str())
        .next()
}

fn stored(definition: &CustomResourceDefinition) -> impl Iterator<Item = &str> {
    let status = definition.status.iter();
    status
        .flat_map(|status| status.stored_versions.iter().flatten())
        .map(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;

    fn definition(strategy: &str, before: &Value, after: &Value) -> CustomResourceDefinition {
        let version = |name: &str, is_new: bool, spec: &Value| {
            let schema =
                json!({ "type": "object", "properties": { "metadata": { "type": "object" }, "spec": spec } });
            json!({ "name": name, "served": true, "storage": is_new, "schema": { "openAPIV3Schema": schema } })
        };
        let definition = json!({
            "metadata": { "name": "shops.example.com" },
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": { "kind": "Shop", "plural": "shops" },
                "conversion": { "strategy": strategy },
                "versions": [version("v1", false, before), version("v2", true, after)],
            },
        });
        serde_json::from_value(definition).unwrap()
    }

    #[test]
    fn fields_that_nothing_converts_are_not_deleted() {
        let text = json!({ "type": "string" });
        let object = |fields: Value| json!({ "type": "object", "properties": fields });
        let list = |items: Value| json!({ "type": "array", "items": items });
        let map = |values: Value| json!({ "type": "object", "additionalProperties": values });
        let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let number = |type_: &str| object(json!({ "n": { "type": type_ } }));
        let (a, ab) = (
            object(json!({ "a": text })),
            object(json!({ "a": text, "b": text })),
        );
        for (before, after, field) in [
            (&a, &a, None),
            (&a, &ab, None),
            (&ab, &a, Some("spec.b")),
            (&ab, &any, None),
            (&any, &ab, Some("spec")),
            (&ab, &map(text.clone()), None),
            (&map(text.clone()), &ab, Some("spec")),
            (&map(ab.clone()), &map(a.clone()), Some("spec")),
            (
                &object(json!({ "a": list(ab.clone()) })),
                &object(json!({ "a": list(a.clone()) })),
                Some("spec.a[].b"),
            ),
            (&number("integer"), &number("number"), None),
        ] {
            let checked = check(&definition("None", before, after), "v2", &["v1".to_owned()]);
            let found = checked.err().map(|error| error.to_string());
            match (field, &found) {
                (None, None) => {}
                (Some(field), Some(error)) => {
                    assert!(error.contains(&format!("does not allow {field}")), "{error}");
                }
                _ => panic!("{before} to {after}: {found:?}"),
            }
            assert!(check(&definition("Webhook", before, after), "v2", &["v1".to_owned()]).is_ok());
        }
    }

    #[test]
    fn values_of_another_type_are_not_written() {
        let object = |type_: &str| json!({ "type": "object", "properties": { "a": { "type": type_ } } });
        for (was, is, words) in [
            (
                "string",
                "integer",
                "spec.a is an integer in v2 but a string in v1",
            ),
            (
                "number",
                "integer",
                "spec.a is an integer in v2 but a number in v1",
            ),
            ("object", "array", "spec.a is an array in v2 but an object in v1"),
        ] {
            let checked = check(
                &definition("None", &object(was), &object(is)),
                "v2",
                &["v1".to_owned()],
            );
            let error = checked.unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("delete"), "{error}");
        }
    }

    #[test]
    fn an_error_is_the_message_of_the_api_server_and_the_name_is_doubted_only_when_it_is_unknown() {
        let error = |code: u16, message: &str| {
            let status =
                json!({ "status": "Failure", "code": code, "message": message, "reason": "Forbidden" });
            MigrateError::Definition {
                name: "shops".into(),
                error: kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())),
            }
            .to_string()
        };
        assert_eq!(
            error(403, "poor may not"),
            "cannot read the CustomResourceDefinition shops: poor may not"
        );
        assert!(error(404, "not found").ends_with("not found; give its name as `kubectl get crd` shows it"));
        assert!(error(500, "").ends_with("the API server answers 500"));
    }

    #[tokio::test]
    async fn a_permission_for_the_last_step_is_needed_before_the_first() {
        let text = json!({ "type": "string" });
        let mut definition = serde_json::to_value(definition("Webhook", &text, &text)).unwrap();
        definition["status"] = json!({ "storedVersions": ["v1", "v2"] });
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let requests = Arc::clone(&seen);
        let service = tower::service_fn(move |request: Request<Body>| {
            let asked = format!("{} {}", request.method(), request.uri());
            let (code, answer) = match asked.starts_with("GET") {
                true => (200, definition.clone()),
                false => {
                    let message = "poor cannot patch customresourcedefinitions/status";
                    (
                        403,
                        json!({ "kind": "Status", "status": "Failure", "code": 403, "message": message }),
                    )
                }
            };
            requests.lock().unwrap().push(asked);
            let body = Full::new(Bytes::from(answer.to_string()));
            async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()) }
        });
        let client = Client::new(service, "default");
        let migrated = migrate(&client, "shops.example.com", &Pace::new(100, 1), |_, _| {}).await;
        let error = migrated.unwrap_err().to_string();
        assert!(
            error.contains("shops.example.com: poor cannot patch")
                && error.ends_with("permission to patch its status"),
            "{error}"
        );
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/shops.example.com";
        assert_eq!(
            *seen.lock().unwrap(),
            [format!("GET {path}"), format!("PATCH {path}/status?&dryRun=All")]
        );
    }

    #[test]
    fn only_defined_and_served_versions_are_migrated() {
        let text = json!({ "type": "string" });
        let mut definition = definition("Webhook", &text, &text);
        let gone = check(&definition, "v2", &["v0".to_owned()]).unwrap_err();
        assert!(matches!(gone, MigrateError::NotDefined { version, .. } if version == "v0"));
        definition.spec.versions[1].served = false;
        let away = check(&definition, "v2", &["v1".to_owned()]).unwrap_err();
        assert!(matches!(away, MigrateError::NotServed { version, .. } if version == "v2"));
    }

    #[test]
    fn only_a_missing_resource_is_deleted_and_a_conversion_is_not_tried_for_long() {
        let status = |code: u16, message: &str, name: &str| -> Status {
            let status = json!({ "code": code, "message": message, "details": { "name": name } });
            serde_json::from_value(status).unwrap()
        };
        assert!(is_missing_object(&status(404, "", "a"), "a"));
        assert!(!is_missing_object(
            &status(404, "the server could not find the requested resource", ""),
            "a"
        ));
        assert_eq!(
            attempts(&status(500, "conversion webhook for Shop failed", "")),
            CONVERSION_ATTEMPTS
        );
        assert_eq!(attempts(&status(503, "", "")), ATTEMPTS);
        assert_eq!(attempts(&status(422, "", "")), 1);
    }
}
