//! Secrets of the cluster: whose values go into bodies, and into which values of answers go.

use std::collections::BTreeMap;

use kube::api::ApiResource;
use kube::core::DynamicObject;
use serde_json::{Value, json};
use thiserror::Error;

use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::ResolvedKind;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::external::{ENDPOINT_LABEL, FIELD_MANAGER};
use operator_host_core::object::secret::decoded;
use operator_host_core::object::{NamespacedName, controller_of, is_config_map_key, label, name_problem};

/// What a placeholder begins with.
const BEGIN: &str = "{{secret ";
/// What it ends with.
const END: &str = "}}";
/// The most Secrets of one body.
const MAX_SECRETS: usize = 16;

/// Why a Secret cannot be used.
#[derive(Debug, Error)]
pub(crate) enum SecretError {
    #[error("the Secret {0} {1}")]
    Unusable(NamespacedName, String),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("`spec.set.body` or `spec.unset.body`: {0}")]
    Placeholder(&'static str),
}

/// Returns the resource of Secrets.
pub(crate) fn resource() -> ResolvedKind {
    ResolvedKind {
        api: ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&()),
        namespaced: true,
        has_status: false,
    }
}

/// Reads and writes Secrets, one at a time: this process watches none.
pub(crate) struct Secrets<'a>(pub(crate) ResourceClient<'a>);

impl<'a> Secrets<'a> {
    pub(crate) const fn new(writer: &'a Writer, resource: &'a ResolvedKind) -> Self {
        Self(ResourceClient::new(writer, resource))
    }

    pub(crate) async fn read(&self, namespace: &str, name: &str) -> Result<Secret, SecretError> {
        let name = named(namespace, name);
        match self.0.get(&name).await? {
            Some(object) => Ok(Secret { name, object }),
            None => Err(SecretError::Unusable(name, "does not exist".to_owned())),
        }
    }
}

/// A Secret that was read.
pub(crate) struct Secret {
    name: NamespacedName,
    object: DynamicObject,
}

impl Secret {
    /// Returns a value, which must be text.
    pub(crate) fn value(&self, key: &str) -> Result<String, SecretError> {
        let value = decoded(&self.object.data["data"][key]).and_then(|bytes| String::from_utf8(bytes).ok());
        value.ok_or_else(|| self.unusable(&format!("has no text under the key {key:?}")))
    }

    pub(crate) fn unusable(&self, why: &str) -> SecretError {
        SecretError::Unusable(self.name.clone(), why.to_owned())
    }

    fn version(&self) -> String {
        let metadata = &self.object.metadata;
        let of = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{}/{}", of(&metadata.uid), of(&metadata.resource_version))
    }
}

/// A body whose placeholders are filled in.
#[derive(Default)]
pub(crate) struct Filled {
    pub(crate) body: Option<Vec<u8>>,
    /// The versions of the Secrets that were used, by their names.
    pub(crate) versions: BTreeMap<String, String>,
}

/// Fills in the placeholders of a body from Secrets of a namespace that are labelled for an endpoint.
pub(crate) async fn fill(
    body: Option<&Value>,
    secrets: &Secrets<'_>,
    namespace: &str,
    endpoint: &str,
) -> Result<Filled, SecretError> {
    let Some(body) = body else {
        return Ok(Filled::default());
    };
    let (mut body, mut found) = (body.clone(), BTreeMap::new());
    each_text(&mut body, &mut |text| {
        for part in parts(text) {
            if let Part::Secret(name, _) = part? {
                found.insert(name.to_owned(), None);
            }
        }
        Ok(())
    })?;
    if found.len() > MAX_SECRETS {
        return Err(SecretError::Placeholder("it names more than 16 Secrets"));
    }
    for (name, secret) in &mut found {
        let read = secrets.read(namespace, name).await?;
        if label(&read.object, ENDPOINT_LABEL) != Some(endpoint) {
            return Err(read.unusable(&format!(
                "may not be sent to the endpoint {endpoint}: it does not have the label {ENDPOINT_LABEL}={endpoint}"
            )));
        }
        *secret = Some(read);
    }
    each_text(&mut body, &mut |text| {
        let mut filled = String::new();
        for part in parts(text) {
            match part? {
                Part::Text(text) => filled.push_str(text),
                Part::Secret(name, key) => {
                    let secret = found.get(name).and_then(Option::as_ref);
                    let secret = secret.ok_or(SecretError::Placeholder("a placeholder is not known"))?;
                    filled.push_str(&secret.value(key)?);
                }
            }
        }
        *text = filled;
        Ok(())
    })?;
    let versions = found
        .iter()
        .filter_map(|(name, secret)| Some((name.clone(), secret.as_ref()?.version())));
    Ok(Filled {
        versions: versions.collect(),
        body: serde_json::to_vec(&body).ok(),
    })
}

/// Reports whether a body names a Secret, or tries to.
pub(crate) fn has_placeholder(body: &Value) -> bool {
    body.to_string().contains(BEGIN)
}

/// Calls a function for each text of a body.
fn each_text(
    value: &mut Value,
    act: &mut dyn FnMut(&mut String) -> Result<(), SecretError>,
) -> Result<(), SecretError> {
    match value {
        Value::String(text) => act(text),
        Value::Array(values) => values.iter_mut().try_for_each(|value| each_text(value, act)),
        Value::Object(fields) => fields.values_mut().try_for_each(|value| each_text(value, act)),
        _ => Ok(()),
    }
}

#[derive(Debug, PartialEq)]
enum Part<'a> {
    Text(&'a str),
    Secret(&'a str, &'a str),
}

/// Divides a text at its placeholders.
fn parts(text: &str) -> impl Iterator<Item = Result<Part<'_>, SecretError>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(after) = rest.strip_prefix(BEGIN) else {
            let (before, after) = rest.split_at(rest.find(BEGIN).unwrap_or(rest.len()));
            rest = after;
            return Some(Ok(Part::Text(before)));
        };
        let Some((inner, after)) = after.split_once(END) else {
            rest = "";
            return Some(Err(SecretError::Placeholder("`{{secret` without `}}`")));
        };
        rest = after;
        let known = inner
            .split_once('/')
            .filter(|(name, key)| name_problem(name).is_none() && is_config_map_key(key));
        let wrong = SecretError::Placeholder("expected `{{secret NAME/KEY}}`");
        Some(known.map(|(name, key)| Part::Secret(name, key)).ok_or(wrong))
    })
}

/// Writes values into a Secret that an External owns.
pub(crate) async fn save(
    secrets: &Secrets<'_>,
    external: &DynamicObject,
    namespace: &str,
    name: &str,
    entries: &BTreeMap<String, String>,
) -> Result<(), SecretError> {
    let place = named(namespace, name);
    let uid = external.metadata.uid.as_deref().unwrap_or_default();
    let existing = secrets.0.get(&place).await?;
    let is_own = |object: &DynamicObject| controller_of(object).is_some_and(|owner| owner.uid == uid);
    if existing.as_ref().is_some_and(|object| !is_own(object)) {
        let why =
            "exists and is not owned by this External: delete it, or name another one in `spec.save.secret`";
        return Err(SecretError::Unusable(place, why.to_owned()));
    }
    let is_so = |object: &DynamicObject| {
        let value = |key: &String| decoded(&object.data["data"][key]);
        let count = object.data["data"].as_object().map_or(0, serde_json::Map::len);
        count == entries.len()
            && entries
                .iter()
                .all(|(key, text)| value(key).as_deref() == Some(text.as_bytes()))
    };
    if existing.as_ref().is_some_and(is_so) {
        return Ok(());
    }
    let types = external.types.clone().unwrap_or_default();
    let data: BTreeMap<_, _> = entries
        .iter()
        .map(|(key, text)| (key, json!(k8s_openapi::ByteString(text.clone().into_bytes()))))
        .collect();
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "ownerReferences": [{
                "apiVersion": types.api_version, "kind": types.kind, "name": external.metadata.name, "uid": uid,
                "controller": true,
            }],
        },
        "data": data,
    });
    match existing {
        None => secrets.0.apply_new(&place, body, FIELD_MANAGER).await?,
        Some(existing) => {
            body["metadata"]["uid"] = existing.metadata.uid.into();
            let params = kube::api::PatchParams::apply(FIELD_MANAGER).force();
            secrets.0.apply(&place, &body, &params).await?
        }
    };
    Ok(())
}

fn named(namespace: &str, name: &str) -> NamespacedName {
    NamespacedName {
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_divided_at_its_placeholders() {
        let of = |text| {
            parts(text)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| error.to_string())
        };
        let expected = [
            Part::Text("a "),
            Part::Secret("user", "password"),
            Part::Text("{{b}}"),
        ];
        assert_eq!(of("a {{secret user/password}}{{b}}").unwrap(), expected);
        assert_eq!(
            of("{{ secret user/password }}").unwrap().len(),
            1,
            "other templates are text"
        );
        for bad in [
            "{{secret user/password",
            "{{secret user}}",
            "{{secret ../x}}",
            "{{secret a/b/c}}",
            "{{secret  a/b}}",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
