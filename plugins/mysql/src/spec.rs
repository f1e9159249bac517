//! The spec of the resource. The schema enforces its rules in the API server.

use operator_plugin::{Defaults, Failure, FieldError, Object, Parent, Quantity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::MySqlClusterStatus;

/// A name that a Service may have, short enough for the hostnames made from it (63 with an ordinal).
pub(crate) const NAME_PATTERN: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
pub(crate) const NAME_MAX_LENGTH: usize = 52;

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
    /// How many servers a drain of nodes may stop at the same time, which a PodDisruptionBudget ensures. If it is not set,
    /// there is none. It needs Kubernetes 1.21.
    #[schemars(range(min = 1, max = 99))]
    pub(crate) max_unavailable: Option<u32>,
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

/// Checks what the schema cannot: quantities.
pub(crate) fn validate(
    parent: &Parent<MySqlClusterSpec, MySqlClusterStatus>,
    _old: Option<&Parent<MySqlClusterSpec, MySqlClusterStatus>>,
) -> Vec<FieldError> {
    let spec = &parent.spec;
    let mut errors = Vec::new();
    let mut wrong = |path: &str, message: String| errors.push(FieldError::new(path, message));
    for (path, text) in [
        ("spec.storage.size", Some(&spec.storage.size)),
        ("spec.resources.cpu", spec.resources.cpu.as_ref()),
        ("spec.resources.memory", spec.resources.memory.as_ref()),
        ("spec.bufferPoolSize", spec.buffer_pool_size.as_ref()),
    ] {
        match text.map(|text| (text, text.parse::<Quantity>())) {
            Some((text, Ok(quantity))) if !quantity.is_positive() => {
                wrong(path, format!("{text} is not more than zero"));
            }
            Some((_, Err(error))) => wrong(path, error.to_string()),
            Some((_, Ok(_))) | None => {}
        }
    }
    if let (Some(pool), Some(memory)) = (&spec.buffer_pool_size, &spec.resources.memory)
        && let (Ok(pool), Ok(memory)) = (pool.parse::<Quantity>(), memory.parse::<Quantity>())
        && pool >= memory
    {
        wrong(
            "spec.bufferPoolSize",
            format!("{pool} is not less than the {memory} of spec.resources.memory"),
        );
    }
    errors
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
