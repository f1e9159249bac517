//! Echo as a native operator, written with kube-rs as its documentation advises.
//!
//! - One watch for each kind, whose reflectors fill typed stores without `managedFields`.
//! - `predicates::generation`: its own status writes are no reason to reconcile.
//! - Pods are looked up in the store, so that what is there already is not applied again; the status is written only
//!   when it changes.
//! - Server-side apply, owner references, and a retry by `error_policy`.

use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use kube::runtime::controller::{Action, Config as ControllerConfig, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{PredicateConfig, WatchStreamExt as _, predicates, watcher};
use kube::{Api, Client, Config, Resource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::CONCURRENCY;

/// The version of Echo.
const API_VERSION: &str = "my-operator.dev/v1";
const MANAGER: &str = "native-echo";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// What `kube::CustomResource` would derive.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Echo {
    metadata: ObjectMeta,
    spec: EchoSpec,
    status: Option<EchoStatus>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct EchoSpec {
    replicas: usize,
    image: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct EchoStatus {
    current_replicas: usize,
    is_ready: bool,
    observed_generation: Option<i64>,
}

impl Resource for Echo {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Echo".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "my-operator.dev".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "echoes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the API server refused a request: {0}")]
    Kube(#[from] kube::Error),
    #[error("an Echo has no namespace")]
    NoNamespace,
}

struct Context {
    client: Client,
    pods: Store<Pod>,
}

/// Runs the operator for one namespace until it is stopped. Logs `ready` after its first list of pods.
pub(crate) async fn run(namespace: &str) -> anyhow::Result<ExitCode> {
    let client = control_plane::connect(&Config::infer().await?)?;
    let (echoes, echo_writer) = reflector::store();
    let (pods, pod_writer) = reflector::store();
    let echo_events = watcher(
        Api::<Echo>::namespaced(client.clone(), namespace),
        watcher::Config::default(),
    )
    .default_backoff()
    .modify(|echo| echo.managed_fields_mut().clear())
    .reflect(echo_writer)
    .applied_objects()
    .predicate_filter(predicates::generation, PredicateConfig::default());
    let own = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let pod_events = watcher(Api::<Pod>::namespaced(client.clone(), namespace), own)
        .default_backoff()
        .modify(|pod| pod.managed_fields_mut().clear())
        .reflect(pod_writer)
        .touched_objects();
    // Not for the Echos as well: the controller itself waits for them, and a store wakes only one of those that wait.
    let first_pods = pods.clone();
    tokio::spawn(async move {
        if first_pods.wait_until_ready().await.is_ok() {
            eprintln!("ready");
        }
    });
    Controller::for_stream(echo_events, echoes)
        .owns_stream(pod_events)
        .with_config(ControllerConfig::default().concurrency(CONCURRENCY as u16))
        .run(reconcile, error_policy, Arc::new(Context { client, pods }))
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                eprintln!("{error}");
            }
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

async fn reconcile(echo: Arc<Echo>, context: Arc<Context>) -> Result<Action, Error> {
    let namespace = echo.namespace().ok_or(Error::NoNamespace)?;
    let name = echo.name_any();
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let params = PatchParams::apply(MANAGER).force();
    let known = |pod: &str| context.pods.get(&ObjectRef::new(pod).within(&namespace));
    let mut ready = 0;
    for number in 0..echo.spec.replicas {
        let pod = format!("{name}-pod-{number}");
        let current = match known(&pod) {
            Some(known) if is_current(&known, &echo) => known,
            _ => Arc::new(
                pods.patch(&pod, &params, &Patch::Apply(wanted(&echo, &pod)))
                    .await?,
            ),
        };
        ready += usize::from(is_ready(&current));
    }
    // Pods have no gaps in their numbers, so the first that is not there ends the surplus.
    let mut number = echo.spec.replicas;
    while let Some(surplus) = known(&format!("{name}-pod-{number}")) {
        if surplus.metadata.deletion_timestamp.is_none() {
            pods.delete(&surplus.name_any(), &DeleteParams::default()).await?;
        }
        number += 1;
    }
    let status = EchoStatus {
        current_replicas: number,
        is_ready: ready == echo.spec.replicas && number == echo.spec.replicas,
        observed_generation: echo.metadata.generation,
    };
    if echo.status.as_ref() != Some(&status) {
        let patch = json!({
            "apiVersion": API_VERSION, "kind": "Echo", "metadata": {"name": name}, "status": status,
        });
        let echoes: Api<Echo> = Api::namespaced(context.client.clone(), &namespace);
        echoes.patch_status(&name, &params, &Patch::Apply(patch)).await?;
    }
    Ok(Action::requeue(Duration::from_secs(3600)))
}

fn wanted(echo: &Echo, pod: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod, "labels": {"app": echo.name_any(), MANAGED_BY: MANAGER},
            "ownerReferences": [echo.controller_owner_ref(&())],
        },
        "spec": {"containers": [{"name": "echo", "image": echo.spec.image}]},
    })
}

fn is_current(pod: &Pod, echo: &Echo) -> bool {
    let owned = pod
        .owner_references()
        .iter()
        .any(|owner| Some(&owner.uid) == echo.metadata.uid.as_ref());
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut images = containers.map(|container| container.image.as_deref());
    owned && images.any(|image| image == Some(&echo.spec.image))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten();
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn error_policy(_: Arc<Echo>, error: &Error, _: Arc<Context>) -> Action {
    eprintln!("{error}");
    Action::requeue(Duration::from_secs(5))
}
