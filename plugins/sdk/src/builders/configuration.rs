//! ConfigMap, Secret, ServiceAccount and PersistentVolumeClaim.

use serde_json::json;

use super::{builder, object};
use crate::kinds::{CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, SECRET, SERVICE_ACCOUNT};

builder! {
    /// A ConfigMap.
    ConfigMap
}

impl ConfigMap {
    /// Creates an empty ConfigMap.
    pub fn new(name: impl Into<String>) -> Self {
        Self(object(CONFIG_MAP, name.into()))
    }

    /// Adds an entry.
    pub fn entry(self, key: &str, text: impl Into<String>) -> Self {
        self.with(&["data", key], text.into().into())
    }
}

builder! {
    /// A Secret with values that the plugin knows.
    ///
    /// A plugin cannot make a password: its random numbers are predictable. To have the host generate the values of some
    /// keys, name the same Secret in [`Response::generate`](crate::Response::generate), too.
    Secret
}

impl Secret {
    /// Creates an empty Secret of the type `Opaque`.
    pub fn new(name: impl Into<String>) -> Self {
        Self(object(SECRET, name.into()))
    }

    /// Sets another type, such as `kubernetes.io/basic-auth`. The API server does not let the type of an existing
    /// Secret change.
    pub fn of_type(self, type_: &str) -> Self {
        self.with(&["type"], type_.into())
    }

    /// Adds an entry. It is written under `data`, in base64: server-side apply does not remove entries of
    /// `stringData`.
    pub fn entry(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.with(&["data", key], base64(value.as_ref()).into())
    }
}

/// Encodes bytes in base64 with padding. Source: RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index| u32::from(group.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit > group.len() {
                '='
            } else {
                char::from(ALPHABET[index as usize])
            });
        }
    }
    text
}

builder! {
    /// A ServiceAccount.
    ServiceAccount
}

impl ServiceAccount {
    /// Creates a ServiceAccount.
    pub fn new(name: impl Into<String>) -> Self {
        Self(object(SERVICE_ACCOUNT, name.into()))
    }
}

builder! {
    /// A PersistentVolumeClaim.
    PersistentVolumeClaim
}

impl PersistentVolumeClaim {
    /// Creates a claim of this size, such as `10Gi`, for pods on one node at a time (`ReadWriteOnce`).
    pub fn new(name: impl Into<String>, size: impl Into<String>) -> Self {
        Self(object(PERSISTENT_VOLUME_CLAIM, name.into()))
            .with(&["spec", "accessModes"], json!(["ReadWriteOnce"]))
            .with(&["spec", "resources", "requests", "storage"], size.into().into())
    }

    /// Sets the storage class. The default is that of the cluster.
    pub fn storage_class(self, name: impl Into<String>) -> Self {
        self.with(&["spec", "storageClassName"], name.into().into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn entries_of_secrets_are_in_base64_and_those_of_config_maps_are_not() {
        let secret = Secret::new("s")
            .of_type("kubernetes.io/basic-auth")
            .entry("username", "root")
            .entry("bytes", [0, 255]);
        assert_eq!(
            Value::from(secret),
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" },
                "type": "kubernetes.io/basic-auth", "data": { "username": "cm9vdA==", "bytes": "AP8=" },
            })
        );
        let settings = ConfigMap::new("c").entry("app.toml", "port = 1");
        assert_eq!(Value::from(settings)["data"], json!({ "app.toml": "port = 1" }));
    }

    #[test]
    fn base64_is_padded_to_groups_of_four() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("12", "MTI="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_claim_asks_for_its_size() {
        let claim = PersistentVolumeClaim::new("data", "1Gi").storage_class("fast");
        assert_eq!(
            Value::from(claim)["spec"],
            json!({
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
                "storageClassName": "fast",
            })
        );
    }
}
