//! An Echo that does nothing unusual: how soon its pod follows a change, whatever other controllers do meanwhile.

use std::fmt;
use std::time::{Duration, Instant};

use control_plane::Changes;
use serde_json::json;

use crate::support::measure::{follow, percentile};
use crate::support::{LIMIT, Scenario};

/// The controller as the samples configure it.
pub const CONTROLLER: &str = "\
- name: echo
  parent: {apiVersion: my-operator.dev/v1, kind: Echo}
  plugin: echo.wasm
  children: [{apiVersion: v1, kind: Pod}]
  backoff: {initial: 100ms, max: 1s}
";

pub const ECHO: &str = "my-operator.dev/v1/Echo";

pub fn echo(replicas: u32) -> String {
    format!(
        "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {{name: e}}\n\
         spec: {{replicas: {replicas}, image: 'echo:1'}}"
    )
}

/// The Echo `e` with its only pod.
pub struct Bystander {
    pods: Changes,
    changes: usize,
}

impl Bystander {
    /// Creates the Echo, and waits for its pod.
    pub async fn new(scenario: &Scenario) -> Self {
        let pods = follow(scenario, "v1/Pod").await;
        scenario.apply(&echo(1)).await;
        scenario.until("v1/Pod", "e-pod-0", "there", |_| true).await;
        Self { pods, changes: 0 }
    }

    /// Changes the Echo so many times, and returns how long it took each time from the request to the event of the pod.
    pub async fn changes(&mut self, scenario: &Scenario, count: usize) -> Vec<Duration> {
        let mut taken = Vec::with_capacity(count);
        for _ in 0..count {
            self.changes += 1;
            let image = format!("echo:change-{}", self.changes);
            let begun = Instant::now();
            scenario.patch(ECHO, "e", json!({"spec": {"image": image}})).await;
            let seen = tokio::time::timeout(LIMIT, self.until_image(&image)).await;
            let seen =
                seen.unwrap_or_else(|_| panic!("the pod never changed; the log:\n{}", scenario.log_tail()));
            taken.push(seen - begun);
        }
        taken
    }

    async fn until_image(&mut self, image: &str) -> Instant {
        loop {
            let (seen, pod) = self.pods.recv().await.expect("the watch goes on");
            if pod.data["spec"]["containers"][0]["image"] == image {
                return seen;
            }
        }
    }
}

/// How long changes took beside others, against how long they took in between.
#[derive(Default)]
pub struct Comparison {
    pub quiet: Vec<Duration>,
    pub loud: Vec<Duration>,
}

impl Comparison {
    /// Returns how many times as long the changes beside others took, at this percentile of both.
    pub fn ratio(&self, share: f64) -> f64 {
        percentile(&self.loud, share).as_secs_f64() / percentile(&self.quiet, share).as_secs_f64()
    }

    /// Whether the others hold up the Echo little enough for a host without optimizations, on a machine that is busy
    /// with other tests. `make bench` holds the release program to 2 and 3 times.
    pub fn is_bearable(&self) -> bool {
        let within = |share, times, slack| {
            let quiet = percentile(&self.quiet, share);
            percentile(&self.loud, share) <= (quiet * times).max(quiet + slack)
        };
        // The slack is what a few time slices of other tests cost a change.
        within(0.5, 3, Duration::from_millis(50)) && within(0.95, 6, Duration::from_millis(250))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = |samples: &[Duration]| [0.5, 0.95].map(|share| percentile(samples, share));
        let ([quiet, quiet_high], [loud, loud_high]) = (both(&self.quiet), both(&self.loud));
        write!(
            f,
            "an Echo took {quiet:.1?} at the median and {quiet_high:.1?} at the 95th percentile, beside it {loud:.1?} and \
             {loud_high:.1?} ({:.1} and {:.1} times)",
            self.ratio(0.5),
            self.ratio(0.95)
        )
    }
}
