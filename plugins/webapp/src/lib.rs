//! WebApp: a web application with everything that it needs in a cluster.
//!
//! [`spec`] defines the resource, [`children`] builds the desired objects, [`status`] reports the observed state.

mod children;
mod spec;
mod status;
#[cfg(test)]
mod tests;

use operator_plugin::prelude::*;
use operator_plugin::{ObjectRef, checksum};

use spec::{Task, WebAppSpec};
use status::WebAppStatus;

const PLUGIN: Plugin<WebAppSpec, WebAppStatus> = Plugin::new("apps.example.com/v1", "WebApp", reconcile)
    .cleanup(cleanup)
    .validate(spec::validate)
    .makes(&[
        SERVICE_ACCOUNT,
        SECRET,
        DEPLOYMENT,
        SERVICE,
        INGRESS,
        HORIZONTAL_POD_AUTOSCALER,
        POD_DISRUPTION_BUDGET,
        CRON_JOB,
        JOB,
    ])
    .reads(&[CONFIG_MAP])
    .names(spec::NAME_PATTERN, spec::NAME_MAX_LENGTH)
    .rules(spec::RULES)
    .scale(Scale::new(".spec.replicas", ".status.replicas").selector(".status.selector"))
    .columns(&[
        Column::integer("Replicas", ".status.replicas"),
        Column::integer("Ready", ".status.readyReplicas"),
        Column::string("URL", ".status.url"),
        Column::string("Image", ".spec.image").wide(),
    ]);
operator_plugin::register!(PLUGIN);

fn reconcile(request: &Request<WebAppSpec, WebAppStatus>) -> Result<Response<WebAppStatus>, Failure> {
    let Parent { name, spec, .. } = &request.parent;
    let mut response = Response::new(WebAppStatus::observe(request));
    let mut settings = None;
    if let Some(config_map) = &spec.settings {
        let need = Need::object("settings", CONFIG_MAP, config_map.as_str());
        let Some(found) = request.answer(&need) else {
            return Ok(Response::needs_first([need]));
        };
        if found.is_empty() {
            // Not `invalid`: creating the ConfigMap is enough, and the WebApp need not change.
            return Err(Failure::retry(format!(
                "spec.settings: there is no ConfigMap {config_map} in this namespace"
            )));
        }
        settings = Some(checksum(found));
        response = response.need(need);
    }

    let session = GeneratedSecret::new(children::session_secret(name)).value(children::SESSION_KEY, 32);
    response = response
        .generate(session)
        .child(children::service_account(name))
        .child(children::service(name));
    if spec.least_replicas() > 1 {
        response = response.child(children::disruption_budget(name));
    }
    let deployment = children::deployment(name, spec, settings);
    response = match &spec.migrate {
        None => response.child(deployment),
        Some(task) => {
            let job = children::migration_job(name, &spec.image, task);
            // The host changes the Deployment when the Job is complete.
            response
                .child_after([ObjectRef::new(JOB, job.as_str())], deployment)
                .child(children::job(job, name, spec, task))
        }
    };
    if let Some(host) = &spec.host {
        response = response.child(children::ingress(name, host));
    }
    if let Some(autoscale) = &spec.autoscale {
        response = response.child(children::autoscaler(name, autoscale));
    }
    if let Some(schedule) = &spec.schedule {
        response = response.child(children::scheduled(name, spec, schedule));
    }
    // No condition `Ready`: the host derives it from the children, and names the one that is not ready.
    Ok(response)
}

/// Runs the farewell, if there is one. The garbage collector deletes everything else with its owner.
fn cleanup(request: &Request<WebAppSpec, WebAppStatus>) -> Result<Response<WebAppStatus>, Failure> {
    match &request.parent.spec.farewell {
        // Nothing can be created there any more, so the deletion must not wait for a Job.
        Some(task) if !request.namespace_terminating => Ok(say_farewell(request, task)),
        _ => Ok(Response::done()),
    }
}

fn say_farewell(request: &Request<WebAppSpec, WebAppStatus>, task: &Task) -> Response<WebAppStatus> {
    let Parent { name, spec, .. } = &request.parent;
    let job = children::farewell_job(name);
    let observed = request.child(JOB, &job);
    let has = |type_| observed.and_then(|job| job.condition(type_)) == Some(true);
    if has("Complete") {
        return Response::done().event(Event::normal("FarewellDone", format!("Job {job} is complete")));
    }
    let waiting = Response::not_yet().child(children::job(job.clone(), name, spec, task));
    if has("Failed") {
        let message = format!(
            "Job {job} has failed, and the deletion waits for it: look at its pods, then delete the Job to run it \
             again, or remove spec.farewell to delete the application without it"
        );
        return waiting
            .condition(Condition::new("Farewell", false, "JobFailed", message.as_str()))
            .event(Event::warning("FarewellFailed", message));
    }
    waiting.condition(Condition::new(
        "Farewell",
        false,
        "JobRunning",
        format!("the deletion waits for Job {job}"),
    ))
}
