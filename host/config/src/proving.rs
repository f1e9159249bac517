//! How a controller proves a new version of its plugin before the version becomes live.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{AtMost, Text, Value};
use operator_host_core::digest::Prefix;
use operator_host_core::object::Selector;

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
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawStage")]
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
const DEFAULT_STAGE_WAIT: Duration = Duration::from_secs(60);

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
    max_deletions: Option<Text<Percent>>,
    /// The number of objects on which a new version is proved. Default: 1000.
    #[schemars(with = "Option<u32>")]
    objects: Option<AtMost<1_000_000>>,
    /// The number of former live versions to keep. Default: 5.
    #[schemars(with = "Option<u8>")]
    keep: Option<AtMost<100>>,
    /// The beginning of the digest of a version that becomes live whatever its proof shows.
    promote: Option<Text<Prefix>>,
    /// The objects that a proved version reconciles first, stage by stage. A stage whose objects become less ready than before
    /// and than the others returns them to the live version, and holds the new one back. Default: all at once.
    #[schemars(with = "Vec<RawStage>")]
    stages: Vec<StageConfig>,
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
    selector: Option<Text<Selector>>,
    /// How long they must be no less ready than before. Default: `60s`.
    wait: Option<Text<Duration>>,
}

impl TryFrom<RawStage> for StageConfig {
    type Error = String;

    fn try_from(raw: RawStage) -> Result<Self, String> {
        let objects = match (raw.objects, raw.percent, raw.selector) {
            (Some(count), None, None) if count > 0 => StageObjects::Count(count),
            (None, Some(percent), None) => match u8::try_from(percent) {
                Ok(part @ 1..=100) => StageObjects::Percent(part),
                _ => {
                    return Err(format!(
                        "the `percent` of a stage must be from 1 to 100, not {percent}"
                    ));
                }
            },
            (None, None, Some(selector)) => StageObjects::Labeled(selector.0),
            _ => {
                let why =
                    "a stage has one of `objects` (at least 1), `percent` (from 1 to 100) and `selector`";
                return Err(why.to_owned());
            }
        };
        let wait = raw.wait.map_or(DEFAULT_STAGE_WAIT, |it| it.0);
        Ok(Self { objects, wait })
    }
}

impl RawProving {
    pub(super) fn has_stages(&self) -> bool {
        !self.stages.is_empty()
    }
}

impl From<RawProving> for ProvingConfig {
    fn from(raw: RawProving) -> Self {
        Self {
            mode: raw.mode.unwrap_or(DEFAULT_PROVING.mode),
            max_deletions: raw
                .max_deletions
                .map_or(DEFAULT_PROVING.max_deletions, |it| it.0.0),
            objects: raw.objects.map_or(DEFAULT_PROVING.objects, |it| it.0),
            keep: raw.keep.map_or(DEFAULT_PROVING.keep, |it| it.0),
            promote: raw.promote.map(|it| it.0),
            pin: None,
            stages: raw.stages,
        }
    }
}

struct Percent(u8);

impl Value for Percent {
    fn parse(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
        let number = number.filter(|number| *number <= 100).map(Self);
        number.ok_or_else(|| {
            format!("{text:?} is not a percentage: expected a value from `0%` to `100%`, such as `20%`")
        })
    }
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
            ("{objects: 0}", "must be from 1 to 1000000"),
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
