use operator_plugin::testing::{Case, Outcome};

use super::*;

fn nightly() -> Case {
    Case::new(include_str!("../sample.yaml"))
        .set("/metadata/creationTimestamp", "2026-03-27T12:00:00Z")
        .set("/spec/timeZone", "Europe/Berlin")
        .set("/spec/schedule", "30 2 * * *")
}

fn run(case: &Case, now: &str) -> Outcome {
    case.clone().at(now).run(&PLUGIN).unwrap()
}

fn next(outcome: &Outcome) -> &str {
    outcome.requeue_at.as_deref().unwrap()
}

#[test]
fn before_its_time_there_is_no_job_and_the_host_is_asked_to_come_back() {
    let outcome = run(&nightly(), "2026-03-28T01:29:59Z");
    assert!(outcome.children.is_empty());
    assert_eq!(next(&outcome), "2026-03-28T01:30:00Z");
    let status = outcome.status;
    assert_eq!(
        (&status["nextScheduled"], &status["active"]),
        (&"2026-03-28T01:30:00Z".into(), &0.into())
    );
}

#[test]
fn at_its_time_there_is_one_job_which_stays_until_it_has_ended() {
    let case = nightly();
    let first = run(&case, "2026-03-28T01:30:00Z");
    let [job] = first.names_of(JOB)[..] else {
        panic!("{first:?}")
    };
    assert_eq!(job, "nightly-29577690");
    let running = case.after(&first);
    let again = run(&running, "2026-03-28T01:30:01Z");
    assert!(again.children.is_empty(), "made once");
    assert_eq!(again.keep, ["nightly-29577690"]);
    assert_eq!(again.status["active"], 1);
    // Across the change of summer time, at 2:30 that does not exist.
    let second = run(&running, "2026-03-29T01:30:00Z");
    assert_eq!(second.names_of(JOB), ["nightly-29579130"]);
    assert_eq!(next(&second), "2026-03-30T00:30:00Z");
}

/// As in the second call of the pass that has made the Job, before the status is written.
#[test]
fn a_job_that_has_just_been_made_is_counted_once_and_not_applied_again() {
    let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: nightly-29577690}}";
    let outcome = run(&nightly().observed(job), "2026-03-28T01:30:00Z");
    assert!(outcome.children.is_empty());
    assert_eq!(outcome.keep, ["nightly-29577690"]);
    assert_eq!(outcome.status["active"], 1);
    assert_eq!(outcome.status["lastScheduled"], "2026-03-28T01:30:00Z");
}

#[test]
fn after_three_periods_without_a_host_there_is_one_job_for_the_last_of_them() {
    let case = nightly();
    let first = run(&case, "2026-03-28T01:30:00Z");
    let outcome = run(&case.after(&first), "2026-03-31T08:00:00Z");
    assert_eq!(
        outcome.names_of(JOB),
        ["nightly-29581950"],
        "2026-03-31T00:30:00Z"
    );
    assert_eq!(outcome.status["lastScheduled"], "2026-03-31T00:30:00Z");
    assert_eq!(next(&outcome), "2026-04-01T00:30:00Z");
}

#[test]
fn the_newest_jobs_that_have_ended_are_kept() {
    let job = |name: &str, day: u32| {
        format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: {name}, creationTimestamp: \"2026-03-0{day}T00:00:00Z\"}}, \
             status: {{conditions: [{{type: Complete, status: \"True\"}}]}}}}"
        )
    };
    let jobs = [job("a", 1), job("b", 4), job("c", 3), job("d", 2)].join("\n---\n");
    let case = nightly().set("/spec/history", 2).observed(&jobs);
    assert_eq!(run(&case, "2026-03-27T12:00:00Z").keep, ["b", "c"]);
}

#[test]
fn a_wrong_schedule_and_a_wrong_zone_are_both_named() {
    let case = nightly()
        .set("/spec/schedule", "soon")
        .set("/spec/timeZone", "Europe/Bielefeld");
    let paths: Vec<_> = case
        .validate(&PLUGIN, None)
        .into_iter()
        .map(|error| error.path)
        .collect();
    assert_eq!(paths, ["spec.schedule", "spec.timeZone"]);
}
