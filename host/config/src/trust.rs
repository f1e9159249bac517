//! Which plugins a controller accepts: pins, and the keys of accepted signatures.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::identity::{Identity, Signer};
use super::keys::PublicKey;
use super::values::{Label, Text, Value, invalid, yaml};
use super::{Config, ConfigError};
use operator_host_core::digest::Digest;
use operator_host_core::files;

/// Bytes that the key file may have.
pub const KEYS_LIMIT: usize = 256 << 10;

/// A trusted key, or who may sign without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name, for users.
    pub name: String,
    /// Whose signatures it stands for.
    pub signer: Signer,
    /// The controllers that it signs for; `None`: all.
    pub controllers: Option<BTreeSet<String>>,
}

impl Key {
    /// Whether its signatures are accepted for a controller.
    pub fn signs_for(&self, controller: &str) -> bool {
        let controllers = self.controllers.as_ref();
        controllers.is_none_or(|all| all.contains(controller))
    }
}

/// The requirements for accepting a plugin. The default requires nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The only version that is accepted.
    pub sha256: Option<Digest>,
    /// One of these keys must have signed the plugin; an empty list accepts no plugin. `None`: no signature
    /// is required.
    pub keys: Option<Vec<Key>>,
}

/// The content of the `--signature-keys` file: the accepted keys, each for some controllers or for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys(Vec<Key>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawKeys {
    keys: Spanned<Vec<Spanned<RawKey>>>,
    trusted_root: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawKey {
    name: Text<Label>,
    key: Option<Text<PublicKey>>,
    identity: Option<String>,
    issuer: Option<String>,
    controllers: Option<Vec<Text<Label>>>,
}

impl Keys {
    /// Reads the file: YAML, or one public key in PEM that signs for all controllers.
    ///
    /// # Errors
    /// When the file cannot be read or is neither.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let bytes = files::read(file, KEYS_LIMIT).map_err(ConfigError::read("keys", file))?;
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(file, &text)
    }

    /// Parses the text of a file with trusted keys; `file` is for messages.
    ///
    /// # Errors
    /// When the text has another form.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        if text.trim_start().starts_with("-----BEGIN") {
            let key = <PublicKey as Value>::parse(text);
            let key = key.map_err(|message| invalid(file, Location::UNKNOWN, message))?;
            let signer = Signer::Key(key);
            let name = file.file_stem().unwrap_or_default().display().to_string();
            return Ok(Self(vec![Key {
                name,
                signer,
                controllers: None,
            }]));
        }
        let raw: RawKeys = yaml(file, text)?;
        if raw.keys.value.is_empty() {
            let message = "`keys` must name at least one key: without one every plugin would be refused";
            return Err(invalid(file, raw.keys.referenced, message));
        }
        let root = raw.trusted_root.map(|root| trusted_root(file, &root));
        let root = root.transpose()?;
        let mut keys: Vec<Key> = Vec::new();
        for raw in raw.keys.value {
            let (at, raw) = (raw.referenced, raw.value);
            let wrong = |message: String| invalid(file, at, message);
            let name = raw.name.0.0;
            if keys.iter().any(|key| key.name == name) {
                return Err(wrong(format!("there is already a key named {name:?}")));
            }
            let controllers = raw.controllers;
            if controllers.as_ref().is_some_and(Vec::is_empty) {
                let message = "`controllers` must name at least one controller; omit it to accept the key for all of them";
                return Err(wrong(message.to_owned()));
            }
            let signer = match (raw.key, raw.identity, raw.issuer) {
                (Some(key), None, None) => Signer::Key(key.0),
                (None, Some(name), Some(issuer)) => identity(name, issuer, root.as_ref()).map_err(wrong)?,
                _ => {
                    let message = "a signer has either a `key`, or an `identity` and its `issuer`";
                    return Err(wrong(message.to_owned()));
                }
            };
            keys.push(Key {
                name,
                signer,
                controllers: controllers.map(|all| all.into_iter().map(|it| it.0.0).collect()),
            });
        }
        Ok(Self(keys))
    }

    /// Returns the keys that sign for a controller.
    pub fn of(&self, controller: &str) -> Vec<Key> {
        let keys = self.0.iter().filter(|key| key.signs_for(controller));
        keys.cloned().collect()
    }

    /// Returns all keys.
    pub fn all(&self) -> Vec<Key> {
        self.0.clone()
    }
}

impl Value for PublicKey {
    fn parse(text: &str) -> Result<Self, String> {
        let message = "this is not a public key: expected PEM with an ed25519 or a P-256 key, as `openssl pkey -pubout` writes it, or the \
                       base64 of the 32 bytes of an ed25519 key";
        Self::parse(text).ok_or_else(|| message.to_owned())
    }
}

/// Reads the root of trust; its path is relative to the file that names it.
fn trusted_root(file: &Path, root: &Path) -> Result<Arc<str>, ConfigError> {
    let path = file.parent().unwrap_or(Path::new("")).join(root);
    let bytes = files::read(&path, KEYS_LIMIT).map_err(ConfigError::read("root of trust", &path))?;
    Ok(String::from_utf8_lossy(&bytes).into())
}

fn identity(name: String, issuer: String, root: Option<&Arc<str>>) -> Result<Signer, String> {
    if name.trim_end_matches('*').is_empty() {
        return Err("an `identity` names somebody: an e-mail address, or a URI".into());
    }
    let root = root.ok_or(
        "an `identity` needs a `trustedRoot`: a file with the authorities and logs to trust, such as Sigstore's trusted_root.json",
    )?;
    let identity = Identity::new(issuer, name, Arc::clone(root));
    let identity = identity.map_err(|error| format!("`trustedRoot` cannot be used: {error}"))?;
    Ok(Signer::Identity(identity))
}

impl Config {
    /// Returns the configuration with `keys`: every controller then accepts only plugins that one of its keys signed.
    #[must_use]
    pub fn trusting(mut self, keys: Option<&Keys>) -> Self {
        for controller in &mut self.controllers {
            controller.trust.keys = keys.map(|keys| keys.of(&controller.name));
        }
        self.keys = keys.cloned();
        self
    }

    /// Checks that the keys are outside the plugin folders: anyone who can write to such a folder could add a key of
    /// their own.
    ///
    /// # Errors
    /// When the keys are in such a folder.
    pub fn check_place_of_keys(&self, keys: &Path) -> Result<(), ConfigError> {
        // Check the file itself and the target of a link. A path that cannot be resolved is reported when the file is
        // read.
        let folder_of = |path: &Path| path.parent().unwrap_or(Path::new("")).join(".").canonicalize();
        let places = [folder_of(keys), keys.canonicalize()];
        for file in self.controllers.iter().filter_map(|it| it.plugin.file()) {
            let folder = file.parent().unwrap_or(Path::new(""));
            let beside = |place: &std::io::Result<PathBuf>| match (place, folder_of(file)) {
                (Ok(place), Ok(folder)) => place.starts_with(folder),
                _ => false,
            };
            if places.iter().any(beside) {
                return Err(ConfigError::KeysBesidePlugins {
                    keys: keys.to_owned(),
                    folder: folder.to_owned(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "MCowBQYDK2VwAyEALrXDLi9nRxGgSDM5coG4EylCc4GRo2n3Qz2x4CdaYxc=";
    const OTHER: &str = "MCowBQYDK2VwAyEArpxLG3KE2Y3OMrS798GZhadlZNfoKOkRgCwfH4Xfums=";

    fn parse(text: &str) -> Result<Keys, String> {
        Keys::parse(Path::new("keys.yaml"), text).map_err(|error| error.to_string())
    }

    fn names(keys: &[Key]) -> Vec<&str> {
        keys.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn a_controller_has_the_keys_for_all_and_those_that_name_it() {
        let data = format!("{{name: data, key: {OTHER}, controllers: [mysql]}}");
        let keys = parse(&format!("keys: [{{name: release, key: {KEY}}}, {data}]")).unwrap();
        assert_eq!(names(&keys.of("echo")), ["release"]);
        assert_eq!(names(&keys.of("mysql")), ["release", "data"]);
        // No key signs for it.
        let limited = parse(&format!("keys: [{data}]")).unwrap();
        assert_eq!(names(&limited.of("echo")), [""; 0]);
    }

    #[test]
    fn a_public_key_in_pem_is_a_file_of_one_key() {
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{KEY}\n-----END PUBLIC KEY-----\n");
        let keys = Keys::parse(Path::new("a/release.pem"), &pem).unwrap();
        assert_eq!(names(&keys.of("echo")), ["release"]);
        assert_eq!(keys.all()[0].signer, Signer::Key(PublicKey::parse(KEY).unwrap()));
    }

    #[test]
    fn who_signs_without_a_key_needs_a_root_of_trust_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.yaml");
        let text = "trustedRoot: trusted_root.json\nkeys: [{name: ci, identity: 'https://a.example.com/*', issuer: b}]";
        let root = include_str!("identity/trusted_root.json");
        std::fs::write(folder.path().join("trusted_root.json"), root).unwrap();
        let keys = Keys::parse(&file, text).unwrap();
        assert!(matches!(keys.all()[0].signer, Signer::Identity(_)));
        std::fs::write(folder.path().join("trusted_root.json"), "{}").unwrap();
        let error = Keys::parse(&file, text).unwrap_err().to_string();
        assert!(error.contains("`trustedRoot` cannot be used"), "{error}");
    }

    #[test]
    fn every_refusal_names_the_position_and_what_is_expected() {
        let either = "either a `key`, or an `identity` and its `issuer`";
        let identity = "keys: [{name: a, identity: b, issuer: c}]";
        for (text, expected) in [
            ("keys: []", "keys.yaml:1:7: `keys` must name at least one key"),
            ("keys: [{name: a, key: AAAA}]", "is not a public key"),
            ("-----BEGIN NOTHING-----", "is not a public key"),
            ("keys: [{name: A b, key: AAAA}]", "is not a name"),
            ("keys: [{name: a, for: [b], key: AAAA}]", "unknown field"),
            ("keys: [{name: a, identity: b}]", either),
            ("keys: [{name: a}]", either),
            ("keys: [{name: a, identity: '*', issuer: b}]", "names somebody"),
            (identity, "needs a `trustedRoot`"),
            (&*format!("trustedRoot: gone.json\n{identity}"), "gone.json"),
            (
                &*format!("keys: [{{name: a, key: {KEY}}}, {{name: a, key: {OTHER}}}]"),
                "already",
            ),
            (
                &*format!("keys: [{{name: a, key: {KEY}, controllers: []}}]"),
                "at least one",
            ),
            ("nothing", "keys.yaml:1:1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
