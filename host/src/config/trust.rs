//! Pins and signatures: which plugins a controller takes.

use std::path::Path;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ConfigError;
use super::values::invalid;
use crate::plugin::Digest;
use crate::plugin::trust::PublicKey;

/// Whose signature is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawSignatures {
    keys: Spanned<Vec<Spanned<String>>>,
}

impl RawSignatures {
    pub(super) fn validate(&self, file: &Path) -> Result<Vec<PublicKey>, ConfigError> {
        if self.keys.value.is_empty() {
            let message = "`keys` must name at least one key: without one nothing could be signed";
            return Err(invalid(file, self.keys.referenced, message));
        }
        let key = |text: &Spanned<String>| {
            PublicKey::parse(&text.value).ok_or_else(|| {
                let message = "this is no public ed25519 key: expected PEM, as `openssl pkey -pubout` writes it, or \
                               the base64 of its 32 bytes";
                invalid(file, text.referenced, message)
            })
        };
        self.keys.value.iter().map(key).collect()
    }
}

/// The digest of the only version that is taken.
pub(super) fn pin(file: &Path, text: Option<&Spanned<String>>) -> Result<Option<Digest>, ConfigError> {
    let parse = |text: &Spanned<String>| {
        text.value.parse().map_err(|()| {
            let message = format!("{:?} is no SHA-256: expected 64 hexadecimal digits", text.value);
            invalid(file, text.referenced, message)
        })
    };
    text.map(parse).transpose()
}
