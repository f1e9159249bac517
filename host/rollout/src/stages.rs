//! Gives a proved version to some parents before the others, and takes it back when they become less ready.
//!
//! Only the replica that leads goes from stage to stage. It records the stage on the kind's definition, beside the live version,
//! so that a restart or another leader goes on from there. Until the last stage has ended, the version before is the live one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use super::Proving;
use crate::definitions::record::LiveRecord;
use operator_host_config::{StageConfig, StageObjects};
use operator_host_core::object::{NamespacedName, is_terminating};
use operator_host_delivery::candidate_check::{Blamed, HeldBack, Progress, Recorded};
use operator_host_desired::conditions::{conditions_of, current};
use operator_host_engine::reconcile::canary::{Canary, Cohort, hash};
use operator_host_engine::reconcile::context::Context;
use operator_host_runtime::Plugin;

/// How often to look how the parents are.
const PERIOD: Duration = Duration::from_millis(500);
/// The least wait between two looks, in multiples of the time that one takes: the cache has to decompress all parents.
const IDLE: u32 = 20;
/// How long a replica that begins to lead waits for the version of a stage.
const RESUME: Duration = Duration::from_secs(30);
/// The reason of a version that a stage held back.
const STAGE_FAILED: &str = "StageFailed";
/// The number of parents that a message names.
const NAMED: usize = 5;

/// The stage that a version has reached, as it is recorded.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reached {
    digest: String,
    /// From 0.
    stage: usize,
    since: Timestamp,
    /// Ready parents of a thousand before the stage began: among its parents, and among the others.
    ready: [u64; 2],
    /// The greatest hash of its parents, so that parents that are created later take the place of none of them.
    last: u64,
    /// The version was taken back in this stage.
    has_failed: bool,
}

impl Reached {
    async fn read(record: &LiveRecord) -> Result<Option<Self>, String> {
        let text = record.read_stage().await?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    async fn write(&self, record: &LiveRecord) {
        // Numbers, texts and a time are JSON.
        let text = serde_json::to_string(self).unwrap_or_default();
        record.write_stage(Some(&text)).await;
    }
}

/// A stage that is reached, and the parents that have the version in it.
type Stage = (Reached, Vec<Cohort>);

/// Gives a proved version to the parents of one stage after another. Returns once it may become live for all.
pub(super) async fn run(
    proving: &Proving,
    candidate: &Plugin,
    say: Progress<'_>,
) -> Result<(), Box<HeldBack>> {
    let (record, canary) = (&*proving.record, &proving.canary);
    let digest = candidate.digest().to_string();
    let mut now: Option<Stage> = None;
    loop {
        if *record.known().borrow() == Some(Recorded::Version(*candidate.digest())) {
            // Another leader has finished it.
            break;
        }
        // Another one takes its place when the definition changes.
        let Some(context) = proving.running_context().filter(|_| record.leads()) else {
            now = None;
            canary.send_if_modified(|canary| canary.take().is_some());
            say("it is proved; the replica that leads gives it to some objects first");
            tokio::time::sleep(PERIOD).await;
            continue;
        };
        let (context, stages) = (&*context, &context.config.proving.stages);
        let (reached, cohorts) = match now.take() {
            Some(now) => now,
            None => match resumed(context, record, &digest).await {
                Ok(resumed) => resumed,
                Err(error) => {
                    let what = "it is proved; the stage that it has reached cannot be read";
                    say(&format!("{what}: {error}"));
                    tokio::time::sleep(PERIOD).await;
                    continue;
                }
            },
        };
        if reached.has_failed {
            let (stage, all) = (reached.stage + 1, stages.len());
            let message = format!("it was taken back in stage {stage} of {all} before");
            return Err(failed(message, Vec::new()));
        }
        // A file that has other stages by now.
        let Some(stage) = stages.get(reached.stage) else {
            break;
        };
        give(canary, candidate, &cohorts);
        let looking = Instant::now();
        let chosen = Parents::of(context, &cohorts);
        // Another replica, with another clock, may have begun it.
        let elapsed = context.cluster.writer.clock.now().duration_since(reached.since);
        let elapsed = Duration::try_from(elapsed).unwrap_or_default();
        say(&format!(
            "stage {} of {}: {} of {} objects have it since {}, {} of them are Ready; the next stage begins after {:?}",
            reached.stage + 1,
            stages.len(),
            chosen.chosen.len(),
            chosen.chosen.len() + chosen.others.len(),
            reached.since,
            ready(&chosen.chosen),
            stage.wait,
        ));
        if chosen.chosen.is_empty() && self::cohorts(context, reached.stage, reached.last) != cohorts {
            // All of them were deleted, perhaps because of the new version.
            now = Some(begin(context, record, &digest, reached.stage, reached.last).await);
            continue;
        }
        if elapsed < stage.wait || chosen.is_busy(context) {
            now = Some((reached, cohorts));
            tokio::time::sleep(PERIOD.max(looking.elapsed() * IDLE)).await;
            continue;
        }
        if let Some(message) = chosen.worse_than(reached.ready) {
            let message = format!("in stage {} of {}, {message}", reached.stage + 1, stages.len());
            warn!(
                controller = context.config.name,
                digest, "{message}: the objects return to the live version"
            );
            let failed_at = Reached {
                has_failed: true,
                ..reached
            };
            failed_at.write(record).await;
            return Err(failed(message, chosen.unready()));
        }
        info!(
            controller = context.config.name,
            digest,
            stage = reached.stage + 1,
            objects = chosen.chosen.len(),
            "a stage of the new version has ended well"
        );
        let next = reached.stage + 1;
        if next == stages.len() {
            break;
        }
        now = Some(begin(context, record, &digest, next, reached.last).await);
    }
    record.write_stage(None).await;
    Ok(())
}

/// Returns the stage that a version has reached, or begins the first.
async fn resumed(context: &Context, record: &LiveRecord, digest: &str) -> Result<Stage, String> {
    let recorded = Reached::read(record).await?;
    match recorded.filter(|reached| reached.digest == digest) {
        Some(reached) => {
            let cohorts = cohorts(context, reached.stage, reached.last);
            Ok((reached, cohorts))
        }
        None => Ok(begin(context, record, digest, 0, 0).await),
    }
}

/// Waits until the parents of a stage that runs have their version again, which may be loaded and proved later than the live one:
/// a replica that begins to lead must not return them to that one meanwhile.
pub async fn resume(context: &Context, record: &LiveRecord) {
    if context.config.proving.stages.is_empty() {
        return;
    }
    let Ok(Some(reached)) = Reached::read(record).await else {
        return;
    };
    let is_live = matches!(&*record.known().borrow(), Some(Recorded::Version(live)) if live.to_string() == reached.digest);
    if !reached.has_failed && !is_live {
        let mut canary = context.versions.canary.clone();
        let back = tokio::time::timeout(RESUME, canary.wait_for(Option::is_some));
        if back.await.is_err() {
            // It is another one, or held back by now. If it comes back later, it begins with the first stage.
            record.write_stage(None).await;
        }
    }
}

/// Begins a stage, and records it. `last` is of the stage before.
async fn begin(context: &Context, record: &LiveRecord, digest: &str, stage: usize, last: u64) -> Stage {
    let cohorts = cohorts(context, stage, last);
    let first = cohorts.iter().find_map(|cohort| match cohort {
        Cohort::First(last) => Some(*last),
        Cohort::Labeled(_) => None,
    });
    let parents = Parents::of(context, &cohorts);
    let reached = Reached {
        digest: digest.to_owned(),
        stage,
        // As it is recorded.
        since: context.cluster.writer.clock.now(),
        ready: [per_mille(&parents.chosen), per_mille(&parents.others)],
        last: first.unwrap_or(last),
        has_failed: false,
    };
    reached.write(record).await;
    (reached, cohorts)
}

/// Returns the parents of a stage and of those before it: the first of them up to the hash `last` or a greater one.
fn cohorts(context: &Context, stage: usize, last: u64) -> Vec<Cohort> {
    let stages = &context.config.proving.stages;
    let mut hashes: Vec<u64> = all(context).iter().map(|parent| hash(parent)).collect();
    hashes.sort_unstable();
    cohorts_of(&hashes, &stages[..=stage.min(stages.len() - 1)], last)
}

fn cohorts_of(hashes: &[u64], stages: &[StageConfig], mut last: u64) -> Vec<Cohort> {
    let mut cohorts = Vec::new();
    for stage in stages {
        let until = match &stage.objects {
            StageObjects::Count(count) => hashes.get(count - 1).or(hashes.last()).copied(),
            StageObjects::Percent(100) => Some(u64::MAX),
            StageObjects::Percent(percent) => Some(u64::MAX / 100 * u64::from(*percent)),
            StageObjects::Labeled(selector) => {
                cohorts.push(Cohort::Labeled(selector.clone()));
                None
            }
        };
        last = last.max(until.unwrap_or_default());
    }
    if last > 0 {
        cohorts.push(Cohort::First(last));
    }
    cohorts
}

fn give(canary: &watch::Sender<Option<Canary>>, candidate: &Plugin, cohorts: &[Cohort]) {
    canary.send_if_modified(|canary| {
        let is_same = canary
            .as_ref()
            .is_some_and(|canary| canary.cohorts == cohorts && canary.plugin.digest() == candidate.digest());
        if !is_same {
            *canary = Some(Canary {
                plugin: candidate.clone(),
                cohorts: cohorts.to_vec(),
            });
        }
        !is_same
    });
}

fn all(context: &Context) -> Vec<Arc<DynamicObject>> {
    let names = context.caches.parent_names();
    let parents = names.iter().filter_map(|name| context.caches.parent(name));
    parents.filter(|parent| !is_terminating(parent)).collect()
}

/// The parents that have the new version, and the others.
struct Parents {
    chosen: Vec<Arc<DynamicObject>>,
    others: Vec<Arc<DynamicObject>>,
}

impl Parents {
    fn of(context: &Context, cohorts: &[Cohort]) -> Self {
        let is_chosen = |parent: &Arc<DynamicObject>| cohorts.iter().any(|cohort| cohort.includes(parent));
        let (chosen, others) = all(context).into_iter().partition(is_chosen);
        Self { chosen, others }
    }

    /// Whether one of them is yet to be reconciled.
    fn is_busy(&self, context: &Context) -> bool {
        let unfinished = context.queue.unfinished().unwrap_or_default();
        let mut names = self.chosen.iter().map(|parent| NamespacedName::of(parent));
        names.any(|name| unfinished.contains(&name))
    }

    /// Says how the chosen ones became less ready than they were, and than the others did.
    fn worse_than(&self, [chosen, others]: [u64; 2]) -> Option<String> {
        let (now, of_others) = (per_mille(&self.chosen), per_mille(&self.others));
        let is_worse = now < chosen && chosen - now > others.saturating_sub(of_others);
        is_worse.then(|| {
            format!(
                "{} of {} objects with the new version are Ready, {} % of them were before",
                ready(&self.chosen),
                self.chosen.len(),
                chosen / 10
            )
        })
    }

    fn unready(&self) -> Vec<Blamed> {
        let unready = self.chosen.iter().filter(|parent| !is_ready(parent));
        let names = unready.map(|parent| NamespacedName::of(parent)).take(NAMED);
        let blamed = names.map(|name| Blamed::new(&name, "it is not Ready with the new version"));
        blamed.collect()
    }
}

fn is_ready(parent: &DynamicObject) -> bool {
    conditions_of(current(parent)).any(|it| it["type"] == "Ready" && it["status"] == "True")
}

fn ready(parents: &[Arc<DynamicObject>]) -> usize {
    parents.iter().filter(|parent| is_ready(parent)).count()
}

/// Returns how many of a thousand are Ready; all when there are none.
fn per_mille(parents: &[Arc<DynamicObject>]) -> u64 {
    let ready = ready(parents) * 1000;
    u64::try_from(ready.checked_div(parents.len()).unwrap_or(1000)).unwrap_or(1000)
}

fn failed(message: String, objects: Vec<Blamed>) -> Box<HeldBack> {
    Box::new(HeldBack::new(STAGE_FAILED, message, objects))
}

/// Holds a version back that would begin its stages without the live version.
pub(super) fn nothing_to_return_to() -> Box<HeldBack> {
    let message =
        "the version that is recorded as live is not at hand, so objects of a stage could not return to it";
    failed(message.to_owned(), Vec::new())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parents(ready: usize, unready: usize) -> Vec<Arc<DynamicObject>> {
        let parent = |status: &str| {
            let object =
                json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": status}]}});
            Arc::new(serde_json::from_value(object).unwrap())
        };
        let ready = (0..ready).map(|_| parent("True"));
        ready.chain((0..unready).map(|_| parent("False"))).collect()
    }

    #[test]
    fn a_stage_is_compared_with_before_and_with_the_others() {
        let now = |chosen, others| Parents { chosen, others };
        let was = [1000, 1000];
        assert!(now(parents(4, 0), parents(9, 0)).worse_than(was).is_none());
        let worse = now(parents(3, 1), parents(9, 0)).worse_than(was).unwrap();
        assert!(worse.starts_with("3 of 4 objects"), "{worse}");
        assert!(
            now(parents(3, 1), parents(2, 2)).worse_than(was).is_none(),
            "the others are worse off"
        );
        assert!(
            now(parents(0, 4), parents(9, 0)).worse_than([0, 1000]).is_none(),
            "it was so before"
        );
        assert!(
            now(Vec::new(), parents(9, 0)).worse_than(was).is_none(),
            "its objects were deleted"
        );
    }

    #[test]
    fn parents_that_are_created_later_take_the_place_of_none() {
        let stage = |objects| StageConfig {
            objects,
            wait: Duration::ZERO,
        };
        let stages = [stage(StageObjects::Count(2)), stage(StageObjects::Percent(1))];
        let first = cohorts_of(&[10, 20, 30], &stages[..1], 0);
        assert_eq!(first, [Cohort::First(20)]);
        // Of 5 and 10, only the first two would be chosen now.
        assert_eq!(cohorts_of(&[5, 10, 20, 30], &stages[..1], 20), first);
        assert_eq!(
            cohorts_of(&[30, 40], &stages[..1], 20),
            [Cohort::First(40)],
            "those were deleted"
        );
        assert_eq!(cohorts_of(&[10], &stages, 20), [Cohort::First(u64::MAX / 100)]);
    }
}
