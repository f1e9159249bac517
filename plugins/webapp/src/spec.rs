//! The spec of a WebApp.

use operator_plugin::{FieldError, Parent, Quantity, Rule};
use schemars::JsonSchema;
use serde::Deserialize;

/// A web application, from its pods to its public address.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebAppSpec {
    /// The image to run.
    #[schemars(length(min = 1))]
    pub(crate) image: String,
    /// How many replicas to run. Has no effect while `autoscale` is set.
    #[serde(default = "defaults::replicas")]
    #[schemars(range(min = 1, max = 100))]
    pub(crate) replicas: i32,
    /// The port that the application listens on.
    #[serde(default = "defaults::port")]
    #[schemars(range(min = 1, max = 65535))]
    pub(crate) port: i32,
    /// The path of an HTTP request that a ready replica answers.
    #[serde(default = "defaults::ready_path")]
    #[schemars(regex(pattern = "^/"))]
    pub(crate) ready_path: String,
    /// The resources of each replica, used for both requests and limits.
    #[serde(default)]
    pub(crate) resources: Resources,
    /// The application's public address. If it is left out, only the cluster reaches the application.
    pub(crate) host: Option<Host>,
    /// A ConfigMap in the same namespace whose entries become environment variables. A change of it replaces the pods.
    #[schemars(length(min = 1))]
    pub(crate) settings: Option<String>,
    /// Lets the load choose the number of replicas.
    pub(crate) autoscale: Option<Autoscale>,
    /// A command to run before the pods get another image, such as the migration of a database. The pods wait for it.
    pub(crate) migrate: Option<Task>,
    /// A command to run again and again.
    pub(crate) schedule: Option<Schedule>,
    /// A command to run once before the application is deleted, such as a backup. The deletion waits for it.
    pub(crate) farewell: Option<Task>,
}

/// Processor time and memory.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Resources {
    /// Processor time, such as 500m or 2.
    #[serde(default = "defaults::cpu")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?m?$"))]
    pub(crate) cpu: String,
    /// Memory, such as 128Mi.
    #[serde(default = "defaults::memory")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"))]
    pub(crate) memory: String,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu: defaults::cpu(),
            memory: defaults::memory(),
        }
    }
}

/// A public address.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Host {
    /// The host name, such as shop.example.com.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub(crate) name: String,
    /// The IngressClass. The cluster's default when it is left out.
    #[schemars(length(min = 1))]
    pub(crate) class: Option<String>,
    /// The Secret with the certificate of this name. Without it, the application is reached by plain HTTP.
    #[schemars(length(min = 1))]
    pub(crate) tls_secret: Option<String>,
}

/// How the load chooses the number of replicas.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Autoscale {
    /// The least number of replicas.
    #[serde(default = "defaults::replicas")]
    #[schemars(range(min = 1, max = 100))]
    pub(crate) min: i32,
    /// The greatest number of replicas.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) max: i32,
    /// The average use of processor time to aim at, in percent of what a replica requests.
    #[serde(default = "defaults::cpu_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub(crate) cpu_percent: i32,
}

/// A command that runs at set times, in the application's image and with its environment.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Schedule {
    /// When to run, as in a crontab: `0 3 * * *` is each night at three.
    #[schemars(length(min = 9))]
    pub(crate) cron: String,
    /// The command and its arguments.
    #[schemars(length(min = 1))]
    pub(crate) command: Vec<String>,
}

/// A command that runs once, in the application's image and with its environment.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Task {
    /// The command and its arguments.
    #[schemars(length(min = 1))]
    pub(crate) command: Vec<String>,
}

/// The rule that a schema cannot express.
pub(crate) const RULES: &[Rule] = &[Rule::new(
    "!has(self.spec.autoscale) || (has(self.spec.autoscale.min) ? self.spec.autoscale.min : 1) <= self.spec.autoscale.max",
    "autoscale.min must not be greater than autoscale.max",
)];

/// Names leave room for what those of the children add: a CronJob's has at most 52 characters.
pub(crate) const NAME_PATTERN: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
pub(crate) const NAME_MAX_LENGTH: usize = 43;

mod defaults {
    pub(super) fn replicas() -> i32 {
        1
    }

    pub(super) fn port() -> i32 {
        8080
    }

    pub(super) fn ready_path() -> String {
        "/".to_owned()
    }

    pub(super) fn cpu() -> String {
        "100m".to_owned()
    }

    pub(super) fn memory() -> String {
        "128Mi".to_owned()
    }

    pub(super) fn cpu_percent() -> i32 {
        80
    }
}

impl WebAppSpec {
    /// How many replicas there always are.
    pub(crate) fn least_replicas(&self) -> i32 {
        self.autoscale
            .as_ref()
            .map_or(self.replicas, |autoscale| autoscale.min)
    }
}

/// Checks what the schema cannot, and again what its rule says: the local control plane may be too old for rules.
pub(crate) fn validate<Status>(
    parent: &Parent<WebAppSpec, Status>,
    _old: Option<&Parent<WebAppSpec, Status>>,
) -> Vec<FieldError> {
    let spec = &parent.spec;
    let mut errors = Vec::new();
    let mut wrong = |path: &str, message: String| errors.push(FieldError::new(path, message));
    if let Some(autoscale) = &spec.autoscale
        && autoscale.min > autoscale.max
    {
        let (min, max) = (autoscale.min, autoscale.max);
        wrong("spec.autoscale", format!("min {min} is greater than max {max}"));
    }
    for (path, text) in [
        ("spec.resources.cpu", &spec.resources.cpu),
        ("spec.resources.memory", &spec.resources.memory),
    ] {
        if let Err(error) = text.parse::<Quantity>() {
            wrong(path, error.to_string());
        }
    }
    if let Some(schedule) = &spec.schedule
        && schedule.cron.split_whitespace().count() != 5
    {
        wrong(
            "spec.schedule.cron",
            format!(
                "{:?} does not have the five fields of a crontab: minute, hour, day of the month, month and day of the week",
                schedule.cron
            ),
        );
    }
    errors
}
