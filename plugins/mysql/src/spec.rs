//! The spec of the resource. The schema enforces its rules in the API server; [`MySqlClusterSpec::validate`] repeats
//! them for a CustomResourceDefinition without them.

use operator_plugin::{Defaults, Failure, Object, Quantity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A name that a Service may have, short enough for the hostnames made from it (63 with an ordinal).
pub(crate) const NAME_PATTERN: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
pub(crate) const NAME_MAX_LENGTH: usize = 52;
const MAX_REPLICAS: u32 = 99;

/// MySQL servers with a volume each, behind one headless Service.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.bufferPoolSize) || !has(self.resources) || !has(self.resources.memory) || \
             quantity(self.bufferPoolSize).isLessThan(quantity(self.resources.memory))",
    "message": "the buffer pool must be smaller than resources.memory",
    "fieldPath": ".bufferPoolSize",
}]))]
pub(crate) struct MySqlClusterSpec {
    /// The version of MySQL: a tag of the image `mysql`, such as 8.4.
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+){0,2}(-[a-z0-9]+)*$"), length(max = 64))]
    pub(crate) version: String,
    /// How many servers to run.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 99))]
    pub(crate) replicas: u32,
    /// The volume of each server.
    pub(crate) storage: Storage,
    /// The resources of each server, used for both requests and limits.
    #[serde(default)]
    pub(crate) resources: Resources,
    /// The memory in which each server keeps data and indexes (`innodb_buffer_pool_size`), such as 512Mi. The default is
    /// half of `resources.memory`, if that is set.
    #[schemars(
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"),
        length(max = 32)
    )]
    pub(crate) buffer_pool_size: Option<String>,
    /// The Secret with the password of the MySQL root user. If it is not set, the host generates the Secret
    /// `NAME-root`.
    pub(crate) root_password_secret: Option<SecretKey>,
}

pub(crate) fn one() -> u32 {
    1
}

impl Defaults for MySqlClusterSpec {
    fn set(&mut self) {
        if self.buffer_pool_size.is_none() {
            let memory = self.resources.memory.as_deref().map(str::parse::<Quantity>);
            // Less than a mebibyte is no useful pool.
            let half = memory.and_then(Result::ok).map(|memory| memory.value() >> 21);
            self.buffer_pool_size = half.filter(|half| *half > 0).map(|half| format!("{half}Mi"));
        }
    }
}

/// The volume of a server.
#[derive(Deserialize, Serialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
        "message": "a volume cannot shrink",
        "fieldPath": ".size",
    },
    {
        "rule": "has(self.class) == has(oldSelf.class) && (!has(self.class) || self.class == oldSelf.class)",
        "message": "the class of a volume cannot change",
        "fieldPath": ".class",
    },
]))]
pub(crate) struct Storage {
    /// Its size, such as 10Gi. It can grow, but not shrink.
    #[schemars(
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"),
        length(max = 32)
    )]
    pub(crate) size: String,
    /// The name of its StorageClass. The default is the cluster's default class. It cannot change.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) class: Option<String>,
}

/// Processor time and memory; a field that is not set is not limited.
#[derive(Default, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Resources {
    /// Processor time, such as 500m or 2.
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?m?$"))]
    pub(crate) cpu: Option<String>,
    /// Memory, such as 1Gi.
    #[schemars(
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"),
        length(max = 32)
    )]
    pub(crate) memory: Option<String>,
}

/// One key of a Secret in the cluster's namespace.
#[derive(Deserialize, Serialize, JsonSchema)]
pub(crate) struct SecretKey {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) name: String,
    /// The key in its data.
    #[serde(default = "password")]
    #[schemars(length(min = 1, max = 253))]
    pub(crate) key: String,
}

fn password() -> String {
    "password".to_owned()
}

impl MySqlClusterSpec {
    /// Repeats the checks of the schema.
    pub(crate) fn validate(&self, name: &str) -> Result<(), Failure> {
        let name_characters = name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if name.len() > NAME_MAX_LENGTH
            || !name_characters
            || !name.starts_with(|first: char| first.is_ascii_lowercase())
            || name.ends_with('-')
        {
            return Err(Failure::invalid(format!(
                "metadata.name: {name} must match {NAME_PATTERN} and have at most {NAME_MAX_LENGTH} characters, \
                 because the Service and the hostnames derive from it: create the resource under another name"
            )));
        }
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            let replicas = self.replicas;
            return Err(Failure::invalid(format!(
                "spec.replicas: {replicas} is not within 1 to {MAX_REPLICAS}"
            )));
        }
        let version_characters = self
            .version
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-');
        if !version_characters || !self.version.starts_with(|first: char| first.is_ascii_digit()) {
            let version = &self.version;
            return Err(Failure::invalid(format!(
                "spec.version: {version:?} is not a version; expected a value such as 8.4"
            )));
        }
        positive("storage.size", Some(&self.storage.size))?;
        positive("resources.cpu", self.resources.cpu.as_deref())?;
        positive("resources.memory", self.resources.memory.as_deref())?;
        positive("bufferPoolSize", self.buffer_pool_size.as_deref())?;
        if let (Some(pool), Some(memory)) = (&self.buffer_pool_size, &self.resources.memory)
            && let (Ok(pool), Ok(memory)) = (pool.parse::<Quantity>(), memory.parse::<Quantity>())
            && pool >= memory
        {
            return Err(Failure::invalid(format!(
                "spec.bufferPoolSize: {pool} is not less than the {memory} of spec.resources.memory"
            )));
        }
        Ok(())
    }
}

fn positive(field: &str, text: Option<&str>) -> Result<(), Failure> {
    let Some(text) = text else { return Ok(()) };
    match text.parse::<Quantity>() {
        Ok(quantity) if quantity.is_positive() => Ok(()),
        Ok(_) => Err(Failure::invalid(format!(
            "spec.{field}: {text} is not more than zero"
        ))),
        Err(error) => Err(Failure::invalid(format!("spec.{field}: {error}"))),
    }
}

impl SecretKey {
    /// Checks that the Secret exists and has the key. Never reveals the value.
    pub(crate) fn check(&self, secret: Option<&Object>) -> Result<(), Failure> {
        let Self { name, key } = self;
        let Some(secret) = secret else {
            return Err(Failure::retry(format!(
                "the Secret {name} that spec.rootPasswordSecret names does not exist"
            )));
        };
        match secret.get("/data").and_then(|data| data.get(key)) {
            Some(_) => Ok(()),
            None => Err(Failure::retry(format!(
                "Secret {name} has no key {key}, which spec.rootPasswordSecret names"
            ))),
        }
    }
}
