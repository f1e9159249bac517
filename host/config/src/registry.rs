//! The section `registry`: how the registries that plugins come from are asked.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Places;
use super::location::{ConfigMapKey, Location};
use super::object::MAX_LENGTH;
use super::reference::{Reference, SCHEME, is_registry};
use super::values::{Text, Value, text};
use operator_host_contract::is_dns_label;
use operator_host_core::object::{is_config_map_key, name_problem};

/// Default of [`RegistryConfig::interval`].
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(300);
/// Default of [`RegistryConfig::timeout`].
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// How registries are asked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegistryConfig {
    /// How often the host looks whether a tag names another manifest.
    #[serde(deserialize_with = "interval")]
    pub interval: Duration,
    /// The time to pull one layer. A whole look has twice this time.
    #[serde(deserialize_with = "text")]
    pub timeout: Duration,
    /// A Docker configuration file with credentials. It is read again when a registry asks for them.
    pub credentials: Option<PathBuf>,
    /// PEM with certificate authorities that are trusted in addition to those of the system.
    pub certificate_authorities: Option<PathBuf>,
    /// The registries that are asked without TLS.
    #[serde(deserialize_with = "hosts")]
    pub plain_http: BTreeSet<String>,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            interval: DEFAULT_INTERVAL,
            timeout: DEFAULT_TIMEOUT,
            credentials: None,
            certificate_authorities: None,
            plain_http: BTreeSet::new(),
        }
    }
}

/// The shortest interval: a registry is not asked more often.
const SHORTEST: Duration = Duration::from_secs(1);

impl RegistryConfig {
    /// Returns the same with paths that start at a folder.
    pub(super) fn relative_to(mut self, folder: &Path) -> Self {
        let files = [&mut self.credentials, &mut self.certificate_authorities];
        for path in files.into_iter().flatten() {
            *path = folder.join(&path);
        }
        self
    }
}

fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match text(deserializer)? {
        interval if interval < SHORTEST => Err(D::Error::custom(format!(
            "`registry.interval` must be at least {SHORTEST:?}"
        ))),
        interval => Ok(interval),
    }
}

fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let hosts = Vec::<Text<Host>>::deserialize(deserializer)?;
    Ok(hosts.into_iter().map(|it| it.0.0).collect())
}

struct Host(String);

impl Value for Host {
    fn parse(text: &str) -> Result<Self, String> {
        match is_registry(text) {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(format!(
                "{text:?} is not a registry: expected a host, or a host and a port, such as `registry.example.com:5000`"
            )),
        }
    }
}

/// The field `plugin` of a controller.
pub(super) enum RawPlugin {
    File(String),
    Artifact(Reference),
    ConfigMap(ConfigMapKey),
}

/// As serde derives it for an untagged enum, but the error about a wrong field names the field.
impl<'de> Deserialize<'de> for RawPlugin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = RawPlugin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "the path of a file, `oci://` with a repository, or `{configMap: {name: …}}` with `namespace` and `key` if \
                     needed",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawPlugin, E> {
                if text.len() > MAX_LENGTH {
                    return Err(E::custom(format!("it has more than {MAX_LENGTH} bytes")));
                }
                match text.starts_with(SCHEME) {
                    true => text.parse().map(RawPlugin::Artifact).map_err(E::custom),
                    false => Ok(RawPlugin::File(text.to_owned())),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawPlugin, A::Error> {
                let raw = RawConfigMapPlugin::deserialize(MapAccessDeserializer::new(map))?;
                let key = raw.config_map.key().map_err(A::Error::custom)?;
                Ok(RawPlugin::ConfigMap(key))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// A structural schema has no type for "a text or an object", so only this host checks the field.
impl JsonSchema for RawPlugin {
    fn schema_name() -> Cow<'static, str> {
        "Plugin".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawConfigMapPlugin {
    config_map: RawConfigMap,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawConfigMap {
    name: String,
    /// `None` is the host's own.
    namespace: Option<String>,
    /// `None` is the name without `-plugin` at its end, and `.wasm`.
    key: Option<String>,
}

impl RawPlugin {
    pub(super) fn location(self, places: &Places) -> Location {
        match self {
            Self::File(file) => Location::File(places.folder.join(file)),
            Self::Artifact(reference) => Location::Registry {
                reference,
                settings: Arc::clone(&places.registry),
            },
            Self::ConfigMap(key) => Location::ConfigMap(key),
        }
    }
}

impl RawConfigMap {
    fn key(self) -> Result<ConfigMapKey, String> {
        let Self { name, namespace, key } = self;
        if let Some(problem) = name_problem(&name) {
            return Err(format!("{name:?} cannot be the name of a ConfigMap: {problem}"));
        }
        if let Some(wrong) = namespace.as_ref().filter(|namespace| !is_dns_label(namespace)) {
            return Err(format!("{wrong:?} cannot be a namespace"));
        }
        let key = key.unwrap_or_else(|| format!("{}.wasm", name.strip_suffix("-plugin").unwrap_or(&name)));
        if !is_config_map_key(&key) {
            return Err(format!(
                "{key:?} cannot be a key of a ConfigMap: only letters, digits, '-', '_' and '.' can"
            ));
        }
        Ok(ConfigMapKey { namespace, name, key })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const CONTROLLER: &str =
        "controllers: [{name: echo, parent: {apiVersion: my-operator.dev/v1, kind: Echo}, plugin: PLUGIN}]";

    fn parse(registry: &str, plugin: &str) -> Result<Location, String> {
        let text = format!("registry: {registry}\n{}", CONTROLLER.replace("PLUGIN", plugin));
        let config =
            Config::parse(Path::new("/etc/config.yaml"), &text).map_err(|error| error.to_string())?;
        Ok(config.controllers[0].plugin.clone())
    }

    #[test]
    fn a_plugin_in_a_registry_has_the_settings_of_the_section() {
        let registry = "{interval: 1m, timeout: 10s, credentials: c.json, certificateAuthorities: /ca.pem, plainHttp: \
                        ['Localhost:5000']}";
        let location = parse(registry, "oci://r.example.com/team/echo:1").unwrap();
        let Location::Registry { settings, .. } = &location else {
            panic!("{location:?}");
        };
        assert_eq!(location.to_string(), "oci://r.example.com/team/echo:1");
        assert_eq!(settings.interval, Duration::from_secs(60));
        assert_eq!(settings.timeout, Duration::from_secs(10));
        assert_eq!(settings.credentials, Some("/etc/c.json".into()));
        assert_eq!(settings.certificate_authorities, Some("/ca.pem".into()));
        assert!(settings.plain_http.contains("localhost:5000"));
        let Location::Registry { settings, .. } = parse("{}", "oci://r/echo:1").unwrap() else {
            panic!("a file");
        };
        assert_eq!(*settings, RegistryConfig::default());
    }

    #[test]
    fn every_refusal_names_the_position_and_what_is_expected() {
        let neither =
            "2:90: \"oci://r/echo\" is not a reference to an artifact: it has neither a tag nor a digest";
        for (registry, name, expected) in [
            ("{}", "echo", neither),
            ("{}", "Echo:1", "is not a repository"),
            (
                "{interval: 10ms}",
                "a:1",
                "1:22: `registry.interval` must be at least 1s",
            ),
            ("{timeout: soon}", "a:1", "is not a duration"),
            (
                "{plainHttp: ['http://r']}",
                "a:1",
                "1:24: \"http://r\" is not a registry",
            ),
            ("{password: x}", "a:1", "unknown field"),
        ] {
            let error = parse(registry, &format!("oci://r/{name}")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
