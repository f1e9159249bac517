//! Credentials in a Docker configuration file, such as a mounted Secret of type `kubernetes.io/dockerconfigjson`.

use std::collections::BTreeMap;
use std::path::Path;

use hyper::header::HeaderValue;
use k8s_openapi::ByteString;
use serde::Deserialize;

use crate::Problem;
use operator_host_config::reference::Reference;
use operator_host_core::files;
use operator_host_core::text::base64;

/// Bytes that the file may have.
const LIMIT: usize = 1 << 20;
/// The name of Docker Hub in references, and the key of its credentials.
pub(super) const HUB: &str = "docker.io";
const HUB_KEY: &str = "index.docker.io/v1";

#[derive(Deserialize)]
struct RawFile {
    #[serde(default)]
    auths: BTreeMap<String, RawEntry>,
}

#[derive(Deserialize)]
struct RawEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// Returns the header with the name and the password for a repository in a Docker configuration file: those of the entry
/// with the longest path that the repository begins with, as the kubelet does. `None`: the file has none for it.
///
/// # Errors
/// When the file cannot be read or has another format. The messages never contain credentials.
pub(super) fn find(file: &Path, reference: &Reference) -> Result<Option<HeaderValue>, Problem> {
    let name = file.display();
    let text = files::read(file, LIMIT)
        .map_err(|error| Problem(format!("cannot read the credentials {name}: {error}")))?;
    // The error of serde_json would show a value of another type, but never a string's contents.
    let raw: RawFile = serde_json::from_slice(&text).map_err(|error| {
        Problem(format!(
            "the credentials {name} are not a Docker configuration ({{\"auths\": …}}): line {}, column {}",
            error.line(),
            error.column()
        ))
    })?;
    let matching = raw.auths.iter();
    let matching = matching.filter_map(|(key, entry)| Some((matching_path(key, reference)?, key, entry)));
    let Some((_, key, entry)) = matching.max_by_key(|(length, ..)| *length) else {
        return Ok(None);
    };
    entry.header().map(Some).ok_or_else(|| {
        Problem(format!(
            "the credentials {name} have an entry for {key} without a name and a password in `auth`"
        ))
    })
}

impl RawEntry {
    fn header(&self) -> Option<HeaderValue> {
        let pair = match self.auth.as_ref().filter(|auth| !auth.is_empty()) {
            Some(auth) => String::from_utf8(base64(auth)?).ok()?,
            None => format!("{}:{}", self.username.as_ref()?, self.password.as_ref()?),
        };
        pair.contains(':').then(|| basic(pair.trim_end_matches('\0')))?
    }
}

fn basic(pair: &str) -> Option<HeaderValue> {
    let encoded = serde_json::to_value(ByteString(pair.into())).ok()?;
    let mut header = HeaderValue::from_str(&format!("Basic {}", encoded.as_str()?)).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// Returns the length of the path in an entry's key, if the entry is for this repository.
fn matching_path(key: &str, reference: &Reference) -> Option<usize> {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest);
    let key = key.trim_end_matches('/');
    if reference.registry == HUB && (key == HUB_KEY || key == "index.docker.io") {
        return Some(0);
    }
    let (registry, path) = key.split_once('/').unwrap_or((key, ""));
    // Older tools wrote the version of the interface behind the registry.
    let path = if path == "v1" || path == "v2" { "" } else { path };
    let rest = reference.repository.strip_prefix(path)?;
    let is_part = path.is_empty() || rest.is_empty() || rest.starts_with('/');
    (registry == reference.registry && is_part).then_some(path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, reference: &str) -> Result<Option<HeaderValue>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        std::fs::write(&file, text).unwrap();
        super::find(&file, &reference.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_entry_of_the_registry_with_the_longest_path_counts() {
        let text = r#"{"auths": {
            "r.example.com": {"auth": "dXNlcjpwYXNzOndvcmQ="},
            "r.example.com/team": {"username": "team", "password": "t"},
            "https://other:5000/v2/": {"username": "other", "password": "o"},
            "https://index.docker.io/v1/": {"username": "hub", "password": "h"}
        }, "credsStore": "desktop"}"#;
        let (user, team) = (basic("user:pass:word"), basic("team:t"));
        assert_eq!(user.as_ref().unwrap(), "Basic dXNlcjpwYXNzOndvcmQ=");
        assert_eq!(find(text, "r.example.com/echo:1"), Ok(user.clone()));
        assert_eq!(find(text, "r.example.com/team/echo:1"), Ok(team));
        assert_eq!(find(text, "r.example.com/teams/echo:1"), Ok(user));
        assert_eq!(find(text, "other:5000/echo:1"), Ok(basic("other:o")));
        assert_eq!(find(text, "docker.io/team/echo:1"), Ok(basic("hub:h")));
        // Neither another port nor a name that ends alike.
        assert_eq!(find(text, "r.example.com:5000/echo:1"), Ok(None));
        assert_eq!(find(text, "xr.example.com/echo:1"), Ok(None));
        assert_eq!(find("{}", "r/echo:1"), Ok(None));
    }

    #[test]
    fn what_is_wrong_with_the_file_is_said_without_what_is_in_it() {
        for text in [
            r#"{"auths": {"r": "c2VjcmV0"}}"#,
            r#"{"auths": {"r": {"auth": "c2VjcmV0"}}}"#,
            r#"{"auths": {"r": {"auth": "%c2VjcmV0"}}}"#,
            r#"{"auths": {"r": {"username": "c2VjcmV0"}}}"#,
            r#""c2VjcmV0"#,
        ] {
            let error = find(text, "r/echo:1").unwrap_err();
            assert!(
                error.contains("config.json") && !error.contains("c2VjcmV0") && !error.contains("secret"),
                "{error}"
            );
        }
        assert!(!format!("{:?}", basic("name:secret")).contains("c2VjcmV0"));
    }
}
