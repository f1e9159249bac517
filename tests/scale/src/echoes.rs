//! Parents, and an observer that sees when they are done.

use std::collections::HashSet;
use std::time::Instant;

use anyhow::{Context, bail};
use control_plane::{Changes, observe};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use serde_json::json;

use crate::stage::{GROUP, LIMIT, Running};

/// How many requests of the harness are under way at a time.
pub(crate) const REQUESTS: usize = 50;

pub(crate) fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api_of(client, namespace, GROUP)
}

/// Returns the Echos of a group.
pub(crate) fn api_of(client: &Client, namespace: &str, group: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", "Echo"), "echoes");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

pub(crate) fn pods(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

pub(crate) fn echo(group: &str, name: &str, replicas: usize) -> serde_json::Value {
    json!({
        "apiVersion": format!("{group}/v1"), "kind": "Echo", "metadata": {"name": name},
        "spec": {"replicas": replicas, "image": "echo:1"},
    })
}

/// Creates `count` Echos of `replicas` pods.
pub(crate) async fn create(
    client: &Client,
    namespace: &str,
    count: usize,
    replicas: usize,
) -> anyhow::Result<()> {
    let objects = (0..count).map(|number| echo(GROUP, &format!("e{number}"), replicas));
    create_all(&api(client, namespace), objects).await
}

/// Creates objects, many at a time.
pub(crate) async fn create_all(
    api: &Api<DynamicObject>,
    objects: impl Iterator<Item = serde_json::Value>,
) -> anyhow::Result<()> {
    let requests = objects.map(|object| async move {
        let object: DynamicObject = serde_json::from_value(object)?;
        api.create(&PostParams::default(), &object).await?;
        anyhow::Ok(())
    });
    let requests = stream::iter(requests).buffer_unordered(REQUESTS);
    requests.try_collect::<()>().await.context("create an object")
}

/// Returns the number of objects.
pub(crate) async fn count(api: &Api<DynamicObject>) -> anyhow::Result<usize> {
    let list = api
        .list_metadata(&ListParams::default())
        .await
        .context("count objects")?;
    Ok(list.items.len())
}

/// Later states of the objects of an API, with the time at which each was received.
pub(crate) struct Observer(Changes);

impl Observer {
    /// Returns when the objects that exist now are known. They are not observed.
    pub(crate) async fn start(api: Api<DynamicObject>) -> anyhow::Result<Self> {
        observe(api).await.map(Self).context("the observer's first list")
    }

    pub(crate) async fn next(&mut self) -> anyhow::Result<(Instant, DynamicObject)> {
        let next = tokio::time::timeout(LIMIT, self.0.recv()).await;
        next.with_context(|| format!("nothing was observed for {LIMIT:?}"))?
            .context("the observer has ended")
    }

    /// Waits until `count` Echos have a status that names `replicas` pods. Returns when the last was seen.
    pub(crate) async fn until_done(
        &mut self,
        count: usize,
        replicas: usize,
        running: &mut Running,
    ) -> anyhow::Result<Instant> {
        let mut done = HashSet::new();
        let mut alive = tokio::time::interval(std::time::Duration::from_secs(1));
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            tokio::select! {
                observed = self.next() => {
                    let (seen, echo) = observed?;
                    if echo.data["status"]["currentReplicas"] == json!(replicas) {
                        done.extend(echo.metadata.name);
                    }
                    if done.len() == count {
                        return Ok(seen);
                    }
                }
                _ = alive.tick() => running.check()?,
                () = tokio::time::sleep_until(deadline) => {
                    bail!("only {} of {count} Echos are done after {LIMIT:?}; the log ends:\n{}", done.len(), running.tail());
                }
            }
        }
    }
}
