//! Credentials in a Docker configuration file, such as a mounted Secret of type `kubernetes.io/dockerconfigjson`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

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

/// How to authenticate to a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A user's name and password.
    User {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
    /// A token for the registry itself.
    Token(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

#[derive(Deserialize)]
struct RawFile {
    #[serde(default)]
    auths: BTreeMap<String, RawEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
struct RawEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    registrytoken: Option<String>,
}

impl Credentials {
    /// Finds the credentials for a repository in a Docker configuration file: those of the entry with the longest path
    /// that the repository begins with, as the kubelet does. `None`: the file has none for it.
    ///
    /// # Errors
    /// When the file cannot be read or has another format. The messages never contain credentials.
    pub fn find(file: &Path, reference: &Reference) -> Result<Option<Self>, Problem> {
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
        let best = raw
            .auths
            .iter()
            .filter_map(|(key, entry)| Some((matching(key, reference)?, key, entry)))
            .max_by_key(|(length, ..)| *length);
        let Some((_, key, entry)) = best else {
            return Ok(None);
        };
        entry.credentials().map(Some).ok_or_else(|| {
            Problem(format!(
                "the credentials {name} have an entry for {key} without a name and a password in `auth`"
            ))
        })
    }
}

impl RawEntry {
    fn credentials(&self) -> Option<Credentials> {
        if let Some(token) = self.registrytoken.as_ref().filter(|token| !token.is_empty()) {
            return Some(Credentials::Token(token.clone()));
        }
        if let Some(auth) = self.auth.as_ref().filter(|auth| !auth.is_empty()) {
            let text = String::from_utf8(base64(auth)?).ok()?;
            let (name, password) = text.split_once(':')?;
            return Some(Credentials::User {
                name: name.to_owned(),
                password: password.trim_end_matches('\0').to_owned(),
            });
        }
        Some(Credentials::User {
            name: self.username.clone()?,
            password: self.password.clone()?,
        })
    }
}

/// Returns the length of the path in an entry's key, if the entry is for this repository.
fn matching(key: &str, reference: &Reference) -> Option<usize> {
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

    fn find(text: &str, reference: &str) -> Result<Option<Credentials>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        std::fs::write(&file, text).unwrap();
        Credentials::find(&file, &reference.parse().unwrap()).map_err(|error| error.to_string())
    }

    fn user(name: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::User {
            name: name.into(),
            password: password.into(),
        })
    }

    #[test]
    fn the_entry_of_the_registry_with_the_longest_path_counts() {
        // dXNlcjpwYXNzOndvcmQ= is user:pass:word
        let text = r#"{"auths": {
            "r.example.com": {"auth": "dXNlcjpwYXNzOndvcmQ="},
            "r.example.com/team": {"username": "team", "password": "t"},
            "https://other:5000/v2/": {"registrytoken": "abc"},
            "https://index.docker.io/v1/": {"username": "hub", "password": "h"}
        }, "credsStore": "desktop"}"#;
        assert_eq!(find(text, "r.example.com/echo:1"), Ok(user("user", "pass:word")));
        assert_eq!(find(text, "r.example.com/team/echo:1"), Ok(user("team", "t")));
        assert_eq!(
            find(text, "r.example.com/teams/echo:1"),
            Ok(user("user", "pass:word"))
        );
        assert_eq!(
            find(text, "other:5000/echo:1"),
            Ok(Some(Credentials::Token("abc".into())))
        );
        assert_eq!(find(text, "docker.io/team/echo:1"), Ok(user("hub", "h")));
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
        assert!(!format!("{:?}", user("name", "c2VjcmV0")).contains("c2VjcmV0"));
    }
}
