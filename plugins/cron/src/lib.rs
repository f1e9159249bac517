//! Cron: runs a Job at the times of a schedule. An operator that acts on time, without a clock of its own: the host tells
//! it the time, and calls it again when it asks for it.

mod schedule;

use jiff::tz::TimeZone;
use operator_plugin::builders::{Container, Job};
use operator_plugin::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use schedule::Schedule;

/// Runs a Job at the times of a schedule.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CronSpec {
    /// The five fields of a crontab: minute, hour, day of the month, month, day of the week (0 is Sunday). A field is `*`,
    /// a number, a range such as `1-5`, or several separated by commas, each with a step if needed, such as `*/15`.
    schedule: String,
    /// The time zone of the schedule, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    time_zone: String,
    /// The image that a Job runs.
    #[schemars(length(min = 1))]
    image: String,
    /// How many Jobs to keep after they have ended.
    #[serde(default = "three")]
    #[schemars(range(max = 100))]
    history: u32,
}

fn utc() -> String {
    "UTC".to_owned()
}

const fn three() -> u32 {
    3
}

/// The observed state.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CronStatus {
    /// The last time of the schedule for which a Job was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_scheduled: Option<String>,
    /// The next time of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_scheduled: Option<String>,
    /// How many Jobs are running.
    active: usize,
}

const PLUGIN: Plugin<CronSpec, CronStatus> = Plugin::new("time.example.com/v1", "Cron", reconcile)
    .makes(&[JOB])
    .validate(validate)
    // The name of a Job is that of its Cron with the minute.
    .names("^[a-z]([-a-z0-9]*[a-z0-9])?$", 52)
    .columns(&[
        Column::string("Schedule", ".spec.schedule"),
        Column::string("Last", ".status.lastScheduled"),
        Column::integer("Active", ".status.active"),
    ]);
operator_plugin::register!(PLUGIN);

fn validate(
    cron: &Parent<CronSpec, CronStatus>,
    _stored: Option<&Parent<CronSpec, CronStatus>>,
) -> Vec<FieldError> {
    let CronSpec {
        schedule, time_zone, ..
    } = &cron.spec;
    let schedule = Schedule::parse(schedule).err();
    let time_zone = TimeZone::get(time_zone).err();
    let time_zone = time_zone.map(|error| FieldError::new("spec.timeZone", error.to_string()));
    let schedule = schedule.map(|error| FieldError::new("spec.schedule", error));
    schedule.into_iter().chain(time_zone).collect()
}

fn reconcile(request: &Request<CronSpec, CronStatus>) -> Result<Response<CronStatus>, Failure> {
    let Parent {
        name, spec, status, ..
    } = &request.parent;
    // `validate` has read both.
    let schedule = Schedule::parse(&spec.schedule).map_err(Failure::invalid)?;
    let zone = TimeZone::get(&spec.time_zone).map_err(|error| Failure::invalid(error.to_string()))?;
    let now = request.time();
    let last = status.as_ref().and_then(|status| status.last_scheduled.clone());
    let since = last
        .as_deref()
        .or(request.parent.object.text("/metadata/creationTimestamp"));
    let since = since.and_then(|since| since.parse().ok()).unwrap_or(now);

    // Of several times that have passed, such as while no host ran, the last one counts. What runs is left alone.
    let due = schedule.last_between(since, now, &zone);
    let next = schedule.next_after(now, &zone);
    let (ended, active): (Vec<_>, Vec<_>) = request.children_of(JOB).partition(|job| job.is_finished_job());
    let due_job = due.map(|due| format!("{name}-{}", due.as_second() / 60));
    // The host calls again in the same pass, with the Job that was just made.
    let new_job = due_job.filter(|job| request.child(JOB, job).is_none());
    let mut response = Response::new(CronStatus {
        last_scheduled: due.map(|due| due.to_string()).or(last),
        next_scheduled: next.map(|next| next.to_string()),
        active: active.len() + usize::from(new_job.is_some()),
    })
    .keep(active)
    .keep(newest(ended, spec.history));
    if let Some(job) = new_job {
        response = response.child(Job::new(&job).container(Container::new("job", spec.image.as_str())));
    }
    if let Some(next) = next {
        response = response.requeue_at(next);
    }
    Ok(response)
}

/// Returns the objects that were created last.
fn newest(mut objects: Vec<&Object>, count: u32) -> Vec<&Object> {
    let created = |object: &&Object| object.text("/metadata/creationTimestamp").map(str::to_owned);
    objects.sort_by_key(|object| std::cmp::Reverse((created(object), object.name().to_owned())));
    objects.truncate(count as usize);
    objects
}

#[cfg(test)]
mod tests;
