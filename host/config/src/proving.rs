//! How a controller proves a new version of its plugin before the version becomes live.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ConfigError;
use super::values::invalid;
use operator_host_delivery::Prefix;

/// What a new version of the plugin must prove before it becomes live, and the exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvingConfig {
    /// Whether a new version must prove anything.
    pub mode: ProvingMode,
    /// The percentage of children that a new version may delete. It may never omit a child of a kind that is retained.
    pub max_deletions: u8,
    /// The number of objects to prove a new version on, at least 1; a sample when there are more.
    pub objects: usize,
    /// The number of former live versions to keep for a return.
    pub keep: usize,
    /// The version that becomes live whatever its proof shows: the beginning of its digest.
    pub promote: Option<Prefix>,
    /// The only version that may be live, by order of a Controller; the file pins with `sha256`.
    pub pin: Option<Prefix>,
}

/// Whether a new version is proved before it becomes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ProvingMode {
    /// Prove a new version, and hold it back when it does worse than the live one.
    Enforce,
    /// Use every version that loads.
    Off,
}

/// Default of [`super::ControllerConfig::proving`].
pub const DEFAULT_PROVING: ProvingConfig = ProvingConfig {
    mode: ProvingMode::Enforce,
    max_deletions: 20,
    objects: 1000,
    keep: 5,
    promote: None,
    pin: None,
};

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawProving {
    /// Whether a new version is proved. Default: `enforce`.
    mode: Option<ProvingMode>,
    /// The share of children that a new version may delete. Default: `20%`.
    #[schemars(with = "Option<String>")]
    max_deletions: Option<Spanned<String>>,
    /// The number of objects on which a new version is proved. Default: 1000.
    #[schemars(with = "Option<u32>")]
    objects: Option<Spanned<usize>>,
    /// The number of former live versions to keep. Default: 5.
    #[schemars(with = "Option<u8>")]
    keep: Option<Spanned<usize>>,
    /// The beginning of the digest of a version that becomes live whatever its proof shows.
    #[schemars(with = "Option<String>")]
    promote: Option<Spanned<String>>,
}

impl RawProving {
    pub(super) fn validate(self, file: &Path) -> Result<ProvingConfig, ConfigError> {
        let max_deletions = match self.max_deletions {
            None => DEFAULT_PROVING.max_deletions,
            Some(text) => percent(&text.value).ok_or_else(|| {
                let message = format!(
                    "{:?} is not a percentage: expected a value from `0%` to `100%`, such as `20%`",
                    text.value
                );
                invalid(file, text.referenced, message)
            })?,
        };
        let count = |given: Option<Spanned<usize>>, name: &str, default, max| match given {
            None => Ok(default),
            Some(n) if (1..=max).contains(&n.value) => Ok(n.value),
            Some(n) => Err(invalid(
                file,
                n.referenced,
                format!("`{name}` must be from 1 to {max}"),
            )),
        };
        let promote = self.promote.map(|text| {
            Prefix::parse(&text.value).map_err(|message| invalid(file, text.referenced, message))
        });
        Ok(ProvingConfig {
            mode: self.mode.unwrap_or(DEFAULT_PROVING.mode),
            max_deletions,
            objects: count(self.objects, "objects", DEFAULT_PROVING.objects, 1_000_000)?,
            keep: count(self.keep, "keep", DEFAULT_PROVING.keep, 100)?,
            promote: promote.transpose()?,
            pin: None,
        })
    }
}

fn percent(text: &str) -> Option<u8> {
    let number: u8 = text.strip_suffix('%')?.parse().ok()?;
    (number <= 100).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ControllerConfig};
    use super::*;

    fn proving(text: &str) -> Result<ControllerConfig, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("echo.wasm"), b"").unwrap();
        let file = format!(
            "controllers:\n  - name: echo\n    parent: {{apiVersion: my-operator.dev/v1, kind: Echo}}\n    \
             plugin: echo.wasm\n    proving: {text}\n"
        );
        let config = Config::parse(&folder.path().join("config.yaml"), &file);
        let mut config = config.map_err(|error| error.to_string())?;
        Ok(config.controllers.remove(0))
    }

    #[test]
    fn unset_fields_of_proving_have_their_defaults() {
        assert_eq!(proving("{}").unwrap().proving, DEFAULT_PROVING);
        let text = "{mode: off, maxDeletions: 0%, objects: 3, keep: 1, promote: 'sha256:0123456789ab'}";
        let expected = ProvingConfig {
            mode: ProvingMode::Off,
            max_deletions: 0,
            objects: 3,
            keep: 1,
            promote: Some(Prefix::parse("0123456789ab").unwrap()),
            pin: None,
        };
        assert_eq!(proving(text).unwrap().proving, expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        let cases = [
            ("{maxDeletions: 101%}", "such as `20%`"),
            ("{maxDeletions: '20'}", "such as `20%`"),
            ("{objects: 0}", "`objects` must be from 1"),
            ("{promote: latest}", "8 to 64 hexadecimal digits"),
            ("{mode: maybe}", "maybe"),
        ];
        for (text, expected) in cases {
            let error = proving(text).unwrap_err();
            assert!(
                error.contains(":5:") && error.contains(expected),
                "{text}: {error}"
            );
        }
    }
}
