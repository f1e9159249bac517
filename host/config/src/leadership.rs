//! The part of the configuration that defines which of several replicas works.

use std::time::Duration;

use serde::Deserialize;

use super::values::{Label, Text, Value};
use operator_host_contract::is_dns_label;

/// Which of several replicas works, and when another takes over.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawLease")]
pub struct LeadershipConfig {
    /// Which replicas work.
    pub mode: LeadershipMode,
    /// The namespace of the Lease; `None`: the host's namespace, or that of the kubeconfig.
    pub namespace: Option<String>,
    /// The name of the Lease.
    pub name: String,
    /// The durations of the leader election.
    pub timing: Timing,
}

/// Which replicas work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeadershipMode {
    /// There is one replica; no Lease is used.
    #[default]
    None,
    /// One replica does all the work, and the others stand by.
    Single,
}

/// The longest duration that is accepted; no host writes a longer one.
pub const MAX_DURATION: Duration = Duration::from_secs(600);

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A lease that was not renewed for this time is taken by another replica. Whole seconds.
    pub duration: Duration,
    /// A leader that could not renew for this time stops writing. Shorter than `duration`.
    pub renew_deadline: Duration,
    /// How often a leader renews. Shorter than `renew_deadline`.
    pub retry_period: Duration,
}

/// The defaults of client-go.
pub const DEFAULT_TIMING: Timing = Timing {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};
/// Default of [`LeadershipConfig::name`].
pub const DEFAULT_LEASE: &str = "operator-host";

impl Default for LeadershipConfig {
    fn default() -> Self {
        Self {
            mode: LeadershipMode::None,
            namespace: None,
            name: DEFAULT_LEASE.to_owned(),
            timing: DEFAULT_TIMING,
        }
    }
}

/// The section `lease`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawLease {
    namespace: Option<Text<Label>>,
    name: Option<Text<LeaseName>>,
    duration: Option<Text<Duration>>,
    renew_deadline: Option<Text<Duration>>,
    retry_period: Option<Text<Duration>>,
}

struct LeaseName(String);

/// The length that the API server accepts.
const MAX_NAME: usize = 253;

impl Value for LeaseName {
    fn parse(text: &str) -> Result<Self, String> {
        if text.len() <= MAX_NAME && text.split('.').all(is_dns_label) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "{text:?} cannot be the name of a Lease: expected at most {MAX_NAME} lower-case letters, digits, '-' and '.'"
        ))
    }
}

impl TryFrom<RawLease> for LeadershipConfig {
    type Error = String;

    fn try_from(raw: RawLease) -> Result<Self, String> {
        let or = |given: Option<Text<Duration>>, default| given.map_or(default, |it| it.0);
        let timing = Timing {
            duration: or(raw.duration, DEFAULT_TIMING.duration),
            renew_deadline: or(raw.renew_deadline, DEFAULT_TIMING.renew_deadline),
            retry_period: or(raw.retry_period, DEFAULT_TIMING.retry_period),
        };
        if let Some(problem) = problem(&timing) {
            return Err(problem);
        }
        Ok(Self {
            mode: LeadershipMode::None,
            namespace: raw.namespace.map(|namespace| namespace.0.0),
            name: raw.name.map_or_else(|| DEFAULT_LEASE.to_owned(), |name| name.0.0),
            timing,
        })
    }
}

/// Checks the durations together. The rules are client-go's, plus an upper limit.
fn problem(timing: &Timing) -> Option<String> {
    let Timing {
        duration,
        renew_deadline,
        retry_period,
    } = *timing;
    if duration.subsec_nanos() != 0 || duration > MAX_DURATION {
        return Some(format!(
            "`lease.duration` ({duration:?}) must be whole seconds, at most {MAX_DURATION:?}"
        ));
    }
    if duration <= renew_deadline {
        return Some(format!(
            "`lease.duration` ({duration:?}) must be longer than `lease.renewDeadline` ({renew_deadline:?})"
        ));
    }
    if renew_deadline <= retry_period.mul_f64(1.2) {
        return Some(format!(
            "`lease.renewDeadline` ({renew_deadline:?}) must be longer than 1.2 times `lease.retryPeriod` ({retry_period:?})"
        ));
    }
    (retry_period < Duration::from_millis(100))
        .then(|| format!("`lease.retryPeriod` ({retry_period:?}) must be at least 100ms"))
}
