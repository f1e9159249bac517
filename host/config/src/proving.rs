//! How a controller proves a new version of its plugin before the version becomes live.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ConfigError;
use super::values::{duration, invalid};
use operator_host_core::object::Selector;
use operator_host_delivery::Prefix;

/// What a new version of the plugin must prove before it becomes live, and the exceptions.
#[derive(Clone, Debug, PartialEq)]
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
    /// The objects that a proved version reconciles first; without any it becomes live for all at once.
    pub stages: Vec<StageConfig>,
}

/// One stage of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct StageConfig {
    /// The objects of this stage, besides those of the stages before.
    pub objects: StageObjects,
    /// How long they must be no less ready than before.
    pub wait: Duration,
}

/// The objects of a stage.
#[derive(Clone, Debug, PartialEq)]
pub enum StageObjects {
    /// So many.
    Count(usize),
    /// So many of a hundred.
    Percent(u8),
    /// Those with these labels.
    Labeled(Selector),
}

/// Default of [`StageConfig::wait`].
pub(super) const DEFAULT_STAGE_WAIT: Duration = Duration::from_secs(60);

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
    stages: Vec::new(),
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
    /// The objects that a proved version reconciles first, stage by stage. A stage whose objects become less ready than before
    /// and than the others returns them to the live version, and holds the new one back. Default: all at once.
    #[schemars(with = "Vec<RawStage>")]
    stages: Vec<Spanned<RawStage>>,
}

/// One stage: `objects`, `percent` or `selector`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawStage {
    /// So many objects, chosen by a hash of their UIDs.
    #[schemars(with = "Option<u32>", range(min = 1))]
    objects: Option<usize>,
    /// So many of a hundred, chosen in the same way.
    #[schemars(with = "Option<u8>", range(min = 1, max = 100))]
    percent: Option<i64>,
    /// The objects with these labels, such as `canary=true`.
    selector: Option<String>,
    /// How long they must be no less ready than before. Default: `60s`.
    #[schemars(with = "Option<String>")]
    wait: Option<Spanned<String>>,
}

impl RawStage {
    fn validate(self, file: &Path) -> Result<StageConfig, Result<ConfigError, String>> {
        let objects = match (self.objects, self.percent, self.selector) {
            (Some(count), None, None) if count > 0 => StageObjects::Count(count),
            (None, Some(percent), None) => match u8::try_from(percent) {
                Ok(part @ 1..=100) => StageObjects::Percent(part),
                _ => {
                    return Err(Err(format!(
                        "the `percent` of a stage must be from 1 to 100, not {percent}"
                    )));
                }
            },
            (None, None, Some(text)) => StageObjects::Labeled(Selector::of(&text).map_err(Err)?),
            _ => {
                let message =
                    "a stage has one of `objects` (at least 1), `percent` (from 1 to 100) and `selector`";
                return Err(Err(message.to_owned()));
            }
        };
        let wait = duration(file, self.wait.as_ref(), DEFAULT_STAGE_WAIT).map_err(Ok)?;
        Ok(StageConfig { objects, wait })
    }
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
        let stages = self.stages.into_iter().map(|stage| {
            let at = stage.referenced;
            stage
                .value
                .validate(file)
                .map_err(|error| error.unwrap_or_else(|text| invalid(file, at, text)))
        });
        Ok(ProvingConfig {
            mode: self.mode.unwrap_or(DEFAULT_PROVING.mode),
            max_deletions,
            objects: count(self.objects, "objects", DEFAULT_PROVING.objects, 1_000_000)?,
            keep: count(self.keep, "keep", DEFAULT_PROVING.keep, 100)?,
            promote: promote.transpose()?,
            pin: None,
            stages: stages.collect::<Result<_, _>>()?,
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
        let text = "{mode: off, maxDeletions: 0%, objects: 3, keep: 1, promote: 'sha256:0123456789ab', \
                    stages: [{objects: 1}, {percent: 10, wait: 10m}, {selector: canary=true}]}";
        let expected = ProvingConfig {
            mode: ProvingMode::Off,
            max_deletions: 0,
            objects: 3,
            keep: 1,
            promote: Some(Prefix::parse("0123456789ab").unwrap()),
            pin: None,
            stages: vec![
                StageConfig {
                    objects: StageObjects::Count(1),
                    wait: DEFAULT_STAGE_WAIT,
                },
                StageConfig {
                    objects: StageObjects::Percent(10),
                    wait: Duration::from_secs(600),
                },
                StageConfig {
                    objects: StageObjects::Labeled(Selector::of("canary=true").unwrap()),
                    wait: DEFAULT_STAGE_WAIT,
                },
            ],
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
            ("{stages: [{objects: 0}]}", "a stage has one of"),
            ("{stages: [{objects: 1, percent: 1}]}", "a stage has one of"),
            ("{stages: [{percent: 101}]}", "must be from 1 to 100, not 101"),
            ("{stages: [{percent: -1}]}", "must be from 1 to 100, not -1"),
            ("{stages: [{percent: 900}]}", "must be from 1 to 100, not 900"),
            (
                "{stages: [{selector: 'a=b='}]}",
                "cannot follow a part of a selector",
            ),
            ("{stages: [{percent: 1, wait: soon}]}", "is not a duration"),
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
