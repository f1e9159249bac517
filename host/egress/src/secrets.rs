//! Secrets of the cluster: whose values go into bodies, and into which values of answers go. They are read and written one at a
//! time: this process watches none.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use kube::api::PatchParams;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::status::Stop;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::endpoints::Endpoint;
use operator_host_config::external::{ENDPOINT_LABEL, FIELD_MANAGER};
use operator_host_core::object::secret::decoded;
use operator_host_core::object::{NamespacedName, controller_of, is_config_map_key, label, name_problem};

/// What a placeholder begins with.
const BEGIN: &str = "{{secret ";
/// What it ends with.
const END: &str = "}}";
/// The most Secrets of one body.
const MAX_SECRETS: usize = 16;

/// Reads a Secret.
pub(crate) async fn read(
    secrets: &ResourceClient<'_>,
    namespace: &str,
    name: &str,
) -> Result<DynamicObject, Stop> {
    let name = NamespacedName::new(Some(namespace.to_owned()), name);
    let found = secrets.get(&name).await?;
    found.ok_or_else(|| Stop::refused("SecretUnusable", format!("the Secret {name} does not exist")))
}

/// Returns a value of a Secret, which must be text.
pub(crate) fn value(secret: &DynamicObject, key: &str) -> Result<String, Stop> {
    let value = decoded(&secret.data["data"][key]).and_then(|bytes| String::from_utf8(bytes).ok());
    value.ok_or_else(|| unusable(secret, &format!("has no text under the key {key:?}")))
}

/// Says why a Secret cannot be used.
pub(crate) fn unusable(secret: &DynamicObject, why: &str) -> Stop {
    let name = NamespacedName::of(secret);
    Stop::refused("SecretUnusable", format!("the Secret {name} {why}"))
}

/// Fills in the placeholders of a body from Secrets of a namespace that are labelled for an endpoint. Returns also the versions of
/// the Secrets by their names.
pub(crate) async fn fill(
    body: Option<&Value>,
    secrets: &ResourceClient<'_>,
    namespace: &str,
    endpoint: &Endpoint,
) -> Result<(Option<Vec<u8>>, BTreeMap<String, String>), Stop> {
    let (endpoint, limit) = (endpoint.name.as_str(), endpoint.max_body);
    let Some(body) = body else {
        return Ok((None, BTreeMap::new()));
    };
    // JSON escapes no part of a placeholder.
    let (body, mut names) = (body.to_string(), BTreeSet::new());
    filled(&body, |name, _| {
        names.insert(name.to_owned());
        Ok(String::new())
    })?;
    if names.len() > MAX_SECRETS {
        return Err(misplaced("it names more than 16 Secrets"));
    }
    let mut found = BTreeMap::new();
    for name in names {
        let secret = read(secrets, namespace, &name).await?;
        if label(&secret, ENDPOINT_LABEL) != Some(endpoint) {
            let why = format!(
                "may not be sent to the endpoint {endpoint}: it does not have the label {ENDPOINT_LABEL}={endpoint}"
            );
            return Err(unusable(&secret, &why));
        }
        found.insert(name, secret);
    }
    // A short placeholder may stand for a long value, many times.
    let mut room = limit;
    let body = filled(&body, |name, key| {
        // It is within quotes.
        let value = json!(value(&found[name], key)?).to_string();
        let left = room.checked_sub(value.len() - 2);
        room = left.ok_or_else(|| Stop::body_too_large(limit))?;
        Ok(value[1..value.len() - 1].to_owned())
    })?;
    let versions = found.into_iter().map(|(name, secret)| {
        let (uid, version) = (secret.metadata.uid, secret.metadata.resource_version);
        let version = format!("{}/{}", uid.unwrap_or_default(), version.unwrap_or_default());
        (name, version)
    });
    Ok((Some(body.into_bytes()), versions.collect()))
}

/// Reports whether a body names a Secret, or tries to.
pub(crate) fn has_placeholder(body: &Value) -> bool {
    body.to_string().contains(BEGIN)
}

/// Replaces the placeholders of a text by what a function returns for the name and the key in each.
fn filled(text: &str, mut of: impl FnMut(&str, &str) -> Result<String, Stop>) -> Result<String, Stop> {
    let (mut rest, mut whole) = (text, String::new());
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (inner, after) = after
            .split_once(END)
            .ok_or_else(|| misplaced("`{{secret` without `}}`"))?;
        let (name, key) = inner
            .split_once('/')
            .filter(|(name, key)| name_problem(name).is_none() && is_config_map_key(key))
            .ok_or_else(|| misplaced("expected `{{secret NAME/KEY}}`"))?;
        whole += before;
        whole += &of(name, key)?;
        rest = after;
    }
    Ok(whole + rest)
}

fn misplaced(why: &str) -> Stop {
    let why = format!("`spec.set.body` or `spec.unset.body`: {why}");
    Stop::stalled("InvalidSpec", why)
}

/// Writes values into a Secret that an External owns.
pub(crate) async fn save(
    secrets: &ResourceClient<'_>,
    external: &DynamicObject,
    namespace: &str,
    name: &str,
    entries: BTreeMap<String, String>,
) -> Result<(), Stop> {
    let place = NamespacedName::new(Some(namespace.to_owned()), name);
    let uid = external.metadata.uid.as_deref().unwrap_or_default();
    let encoded = |(key, text): (String, String)| (key, json!(ByteString(text.into_bytes())));
    let data: Map<_, _> = entries.into_iter().map(encoded).collect();
    let existing = secrets.get(&place).await?;
    if let Some(existing) = &existing {
        if controller_of(existing).is_none_or(|owner| owner.uid != uid) {
            let why = "exists and is not owned by this External: delete it, or name another one in `spec.save.secret`";
            return Err(unusable(existing, why));
        }
        if existing.data["data"].as_object().unwrap_or(&Map::new()) == &data {
            return Ok(());
        }
    }
    let types = external.types.clone().unwrap_or_default();
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
        None => secrets.apply_new(&place, body, FIELD_MANAGER).await?,
        Some(existing) => {
            body["metadata"]["uid"] = existing.metadata.uid.into();
            let params = PatchParams::apply(FIELD_MANAGER).force();
            secrets.apply(&place, &body, &params).await?
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_divided_at_its_placeholders() {
        let of = |text| filled(text, |name, key| Ok(format!("<{name} {key}>")));
        let text = of("a {{secret user/password}}{{b}}").unwrap();
        assert_eq!(text, "a <user password>{{b}}");
        let other = "{{ secret user/password }}";
        assert_eq!(of(other).unwrap(), other, "other templates are text");
        let bad = "{{secret user/password|{{secret user}}|{{secret ../x}}|{{secret a/b/c}}|{{secret  a/b}}";
        for bad in bad.split('|') {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
