//! How a controller proves a new version of its plugin before the version becomes live.

use std::time::Duration;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::values::{AtMost, Text, read_as};
use operator_host_core::digest::Prefix;
use operator_host_core::object::Selector;

/// What a new version of the plugin must prove before it becomes live, and the exceptions.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProvingConfig {
    /// Whether a new version is proved. Default: `enforce`.
    pub mode: ProvingMode,
    /// The share of children that a new version may delete. Default: `20%`.
    // It may never omit a child of a kind that is retained.
    #[serde(deserialize_with = "percent")]
    #[schemars(with = "String")]
    pub max_deletions: u8,
    /// The number of objects on which a new version is proved. Default: 1000.
    // A sample when there are more.
    #[serde(deserialize_with = "read_as::<AtMost<1_000_000>, _, _>")]
    #[schemars(with = "u32")]
    pub objects: usize,
    /// The number of former live versions to keep. Default: 5.
    #[serde(deserialize_with = "read_as::<AtMost<100>, _, _>")]
    #[schemars(with = "u8")]
    pub keep: usize,
    /// The beginning of the digest of a version that becomes live whatever its proof shows.
    #[serde(deserialize_with = "promote")]
    #[schemars(with = "Option<String>")]
    pub promote: Option<Prefix>,
    /// The only version that may be live, by order of a Controller; the file pins with `sha256`.
    #[serde(skip)]
    pub pin: Option<Prefix>,
    /// The objects that a proved version reconciles first, stage by stage. A stage whose objects become less ready than before
    /// and than the others returns them to the live version, and holds the new one back. Default: all at once.
    #[schemars(with = "Vec<RawStage>")]
    pub stages: Vec<StageConfig>,
}

impl Default for ProvingConfig {
    fn default() -> Self {
        DEFAULT_PROVING
    }
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

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
    number.filter(|number| *number <= 100).ok_or_else(|| {
        D::Error::custom(format!(
            "{text:?} is not a percentage: expected a value from `0%` to `100%`, such as `20%`"
        ))
    })
}

fn promote<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Prefix>, D::Error> {
    let prefix = Option::<Text<Prefix>>::deserialize(deserializer)?;
    Ok(prefix.map(|it| it.0))
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
        let stage = |objects, wait| StageConfig { objects, wait };
        let canaries = Selector::of("canary=true").unwrap();
        let expected = ProvingConfig {
            mode: ProvingMode::Off,
            max_deletions: 0,
            objects: 3,
            keep: 1,
            promote: Some(Prefix::parse("0123456789ab").unwrap()),
            pin: None,
            stages: vec![
                stage(StageObjects::Count(1), DEFAULT_STAGE_WAIT),
                stage(StageObjects::Percent(10), Duration::from_secs(600)),
                stage(StageObjects::Labeled(canaries), DEFAULT_STAGE_WAIT),
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
            ("{stages: [{selector: 'a=b='}]}", "cannot follow a part of a"),
            ("{stages: [{percent: 1, wait: soon}]}", "is not a duration"),
        ];
        for (text, expected) in cases {
            let error = proving(text).unwrap_err();
            let is_so = error.contains(":5:") && error.contains(expected);
            assert!(is_so, "{text}: {error}");
        }
    }
}
