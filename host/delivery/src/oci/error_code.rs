//! The error codes of registries, with what they mean in the words of the host. What a registry itself says about an
//! error is not shown: it may quote the request, with its credentials.
//!
//! Source: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#error-codes>.

const CODES: [(&str, &str); 15] = [
    ("BLOB_UNKNOWN", "it does not have these contents"),
    ("BLOB_UPLOAD_INVALID", "it does not take this upload"),
    ("BLOB_UPLOAD_UNKNOWN", "it does not know this upload"),
    ("DENIED", "the credentials do not allow this"),
    ("DIGEST_INVALID", "the digest and the contents differ"),
    (
        "MANIFEST_BLOB_UNKNOWN",
        "it does not have what the manifest names",
    ),
    ("MANIFEST_INVALID", "it does not take this manifest"),
    ("MANIFEST_UNKNOWN", "the repository has no such tag or digest"),
    ("NAME_INVALID", "it does not allow this name of a repository"),
    ("NAME_UNKNOWN", "it has no such repository"),
    ("SIZE_INVALID", "the size and the contents differ"),
    ("TAG_INVALID", "it does not allow this tag"),
    ("TOOMANYREQUESTS", "it has too many requests"),
    ("UNAUTHORIZED", "it wants other credentials"),
    ("UNSUPPORTED", "it does not support this"),
];

/// Returns a code that registries use and what it means; `None` for any other text.
pub(super) fn known(code: &str) -> Option<(&'static str, &'static str)> {
    CODES.into_iter().find(|(known, _)| *known == code)
}
