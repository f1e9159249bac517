//! The part of the configuration that defines which of several replicas works.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::ConfigError;
use super::values::{dns_label, duration, invalid};
use operator_host_contract::is_dns_label;

/// Which of several replicas works, and when another takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
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

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RawLease {
    namespace: Option<Spanned<String>>,
    name: Option<Spanned<String>>,
    duration: Option<Spanned<String>>,
    renew_deadline: Option<Spanned<String>>,
    retry_period: Option<Spanned<String>>,
}

/// The length that the API server accepts.
const MAX_NAME: usize = 253;

impl RawLease {
    pub(super) fn validate(self, file: &Path, mode: LeadershipMode) -> Result<LeadershipConfig, ConfigError> {
        if let Some(namespace) = &self.namespace {
            dns_label(file, namespace, "a namespace")?;
        }
        if let Some(name) = &self.name
            && !(name.value.len() <= MAX_NAME && name.value.split('.').all(is_dns_label))
        {
            let message = format!(
                "{:?} cannot be the name of a Lease: expected at most {MAX_NAME} lower-case letters, digits, '-' and '.'",
                name.value
            );
            return Err(invalid(file, name.referenced, message));
        }
        let time = |given: &Option<Spanned<String>>, default| duration(file, given.as_ref(), default);
        let timing = Timing {
            duration: time(&self.duration, DEFAULT_TIMING.duration)?,
            renew_deadline: time(&self.renew_deadline, DEFAULT_TIMING.renew_deadline)?,
            retry_period: time(&self.retry_period, DEFAULT_TIMING.retry_period)?,
        };
        let given = [&self.duration, &self.renew_deadline, &self.retry_period];
        if let (Some(problem), Some(at)) = (problem(&timing), given.into_iter().flatten().next()) {
            return Err(invalid(file, at.referenced, problem));
        }
        Ok(LeadershipConfig {
            mode,
            namespace: self.namespace.map(|namespace| namespace.value),
            name: self
                .name
                .map_or_else(|| DEFAULT_LEASE.to_owned(), |name| name.value),
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
