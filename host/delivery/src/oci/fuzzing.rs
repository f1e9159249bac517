//! What a registry says in headers, for fuzz targets only.

use super::challenge::Challenge;
use super::transport;

/// Returns the URL of the token server in a `WWW-Authenticate` header, and the service to name there; `None` if the
/// header asks for no token.
#[must_use]
pub fn token_server(header: &str) -> Option<(String, Option<String>)> {
    match Challenge::parse([header].into_iter())? {
        Challenge::Bearer { realm, service } => Some((realm, service)),
        Challenge::Basic => None,
    }
}

/// Returns a registry's words as they are shown.
#[must_use]
pub fn words(text: &str) -> String {
    transport::words(text)
}
