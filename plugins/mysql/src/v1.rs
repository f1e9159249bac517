//! The spec in version v1, in which a volume had a size only.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{self, Resources, SecretKey, Storage};

/// MySQL servers with a volume each, behind one headless Service.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MySqlClusterSpec {
    /// The version of MySQL: a tag of the image `mysql`, such as 8.4.
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+){0,2}(-[a-z0-9]+)*$"), length(max = 64))]
    version: String,
    /// How many servers to run.
    #[serde(default = "spec::one")]
    #[schemars(range(min = 1, max = 99))]
    replicas: u32,
    /// The size of each server's volume, such as 10Gi. It can grow, but not shrink.
    #[schemars(
        regex(pattern = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"),
        length(max = 32),
        extend("x-kubernetes-validations" = [{
            "rule": "quantity(self).compareTo(quantity(oldSelf)) >= 0",
            "message": "a volume cannot shrink",
        }])
    )]
    storage_size: String,
    /// The resources of each server, used for both requests and limits.
    #[serde(default)]
    resources: Resources,
    /// The Secret with the password of the MySQL root user. If it is not set, the host generates the Secret
    /// `NAME-root`.
    root_password_secret: Option<SecretKey>,
}

impl From<MySqlClusterSpec> for spec::MySqlClusterSpec {
    fn from(old: MySqlClusterSpec) -> Self {
        Self {
            version: old.version,
            replicas: old.replicas,
            storage: Storage {
                size: old.storage_size,
                class: None,
            },
            resources: old.resources,
            buffer_pool_size: None,
            max_unavailable: None,
            root_password_secret: old.root_password_secret,
        }
    }
}

impl From<spec::MySqlClusterSpec> for MySqlClusterSpec {
    fn from(new: spec::MySqlClusterSpec) -> Self {
        Self {
            version: new.version,
            replicas: new.replicas,
            storage_size: new.storage.size,
            resources: new.resources,
            root_password_secret: new.root_password_secret,
        }
    }
}
