//! MySQLCluster: MySQL servers with a volume each, behind one headless Service.
//!
//! [`spec`] defines the resource, [`v1`] its earlier version, [`children`] builds the desired objects, [`status`] reports
//! the observed state.

mod children;
mod spec;
mod status;
#[cfg(test)]
mod tests;
mod v1;

use operator_plugin::prelude::*;
use operator_plugin::{Object, ObjectRef};

use spec::{MySqlClusterSpec, SecretKey};
use status::MySqlClusterStatus;

const PLUGIN: Plugin<MySqlClusterSpec, MySqlClusterStatus> =
    Plugin::new("database.example.com/v2", "MySQLCluster", reconcile)
        .makes(&[
            SERVICE,
            PERSISTENT_VOLUME_CLAIM,
            POD,
            SECRET,
            POD_DISRUPTION_BUDGET,
        ])
        .reads(&[SECRET])
        .short_names(&["mysql"])
        .names(spec::NAME_PATTERN, spec::NAME_MAX_LENGTH)
        .versions(&[Version::new::<v1::MySqlClusterSpec>("v1")
            .keep_rest()
            .deprecated("database.example.com/v1 MySQLCluster is deprecated; use database.example.com/v2")])
        .defaults()
        .validate(spec::validate)
        .columns(&[
            Column::string("Version", ".spec.version"),
            Column::integer("Replicas", ".spec.replicas"),
            Column::integer("Ready", ".status.readyReplicas"),
            Column::string("Phase", ".status.phase"),
        ]);
operator_plugin::register!(PLUGIN);

fn reconcile(
    request: &Request<MySqlClusterSpec, MySqlClusterStatus>,
) -> Result<Response<MySqlClusterStatus>, Failure> {
    let Parent { name, spec, .. } = &request.parent;
    let claims = (0..spec.replicas)
        .map(|ordinal| children::claim(name, ordinal, spec, &request.children))
        .collect::<Result<Vec<_>, _>>()?;

    let mut response = Response::empty();
    let generated = SecretKey {
        name: format!("{name}-root"),
        key: "password".to_owned(),
    };
    let password = match &spec.root_password_secret {
        None => {
            let secret = GeneratedSecret::new(generated.name.as_str()).value(generated.key.as_str(), 32);
            response = response.generate(secret);
            &generated
        }
        Some(secret) => {
            let need = Need::object("root-password", SECRET, secret.name.as_str());
            let Some(found) = request.answer(&need) else {
                return Ok(Response::needs_first([need]));
            };
            secret.check(found.first())?;
            // A database that was set up with the generated password still has it, so the Secret must stay.
            if request.child(SECRET, &generated.name).is_some() {
                response = response.keep([ObjectRef::new(SECRET, generated.name.as_str())]);
            }
            response = response.need(need);
            secret
        }
    };

    let pods = (0..spec.replicas).map(|ordinal| children::pod(name, ordinal, spec, password));
    let observed = |pod: &Value| request.child(POD, pod["metadata"]["name"].as_str().unwrap_or_default());
    // A pod that has ended is left out, so that the host deletes it. Until it is there again, the others stay as they are.
    let (ended, pods): (Vec<_>, Vec<_>) =
        pods.partition(|pod| observed(pod).is_some_and(Object::is_finished_pod));
    let (stay, pods): (Vec<_>, Vec<_>) = pods
        .into_iter()
        .partition(|pod| !ended.is_empty() && observed(pod).is_some());
    let status = MySqlClusterStatus::new(name, spec.replicas, &request.children);
    let budget = spec
        .max_unavailable
        .map(|max| children::disruption_budget(name, max));
    Ok(response
        .child(children::service(name))
        .children(budget)
        .children(claims)
        .children(pods)
        .keep(stay.iter().filter_map(observed))
        .condition(status.ready_condition(spec.replicas))
        .status(request.stamp(status, |status| &mut status.last_update)))
}
