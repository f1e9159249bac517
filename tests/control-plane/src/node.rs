//! Simulates kubelet, scheduler and volume provisioner. No container runs and no data is stored.
//!
//! - A pod whose claims are all Bound is bound to the Node [`NODE`], and is Running and Ready after
//!   [`Options::ready_after`]. A pod that is being deleted is removed at once.
//! - A pod of a Job ends [`Options::ends_after`] later, with success or with the code in the annotation [`EXIT_CODE`].
//! - A claim with a storage class is bound to a new volume, which grows with the claim's request and is deleted
//!   with the claim. The class [`STORAGE_CLASS`] is the default one.
//!
//! It reacts to watch events only: the next step for an object is a pure function of the object (`pods`, `claims`),
//! and one loop (`work`) executes it, one request per object at a time.

mod claims;
mod pods;
mod work;

use std::{path::Path, thread::JoinHandle, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::{core::v1::Node as NodeObject, storage::v1::StorageClass};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::oneshot;

use crate::client;

/// The name of the Node that every pod is bound to.
pub const NODE: &str = "stand-in";
/// The name of the default storage class.
pub const STORAGE_CLASS: &str = "standard";
/// A pod with this annotation ends with this exit code, whoever owns it. With another code than `0` it fails, unless its
/// restart policy restarts its containers: then it goes on running.
pub const EXIT_CODE: &str = "control-plane/exit-code";

/// The field manager of the simulation's applies.
const MANAGER: &str = "control-plane-node";

/// Options of the simulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time from a pod's binding until it is Running and Ready, for the image pull and the start.
    pub ready_after: Duration,
    /// Time from a pod's being Running until it ends, for the pods of Jobs.
    pub ends_after: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ready_after: Duration::from_millis(300),
            ends_after: Duration::from_millis(500),
        }
    }
}

/// A running simulation, which ends when it is dropped.
#[derive(Debug)]
pub struct Node {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts the simulation for the cluster of this kubeconfig and returns when the Node and the storage class
    /// exist.
    ///
    /// It has its own thread and runtime, so that it outlives the runtime of the test that started it.
    pub async fn start(kubeconfig: &Path, options: Options) -> anyhow::Result<Self> {
        let config = client::config_of(kubeconfig).await?;
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("node stand-in".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let outcome = runtime.map(|runtime| {
                    runtime.block_on(async {
                        let client = match prepare(&config).await {
                            Ok(client) => client,
                            Err(error) => return drop(ready.send(Err(error))),
                        };
                        let _ = ready.send(Ok(()));
                        tokio::select! {
                            () = work::run(client, &options) => {}
                            _ = stopped => {}
                        }
                    });
                });
                // Without a runtime `ready` is dropped, which the receiver notices.
                drop(outcome);
            });
        let thread = thread.context("start the stand-in for nodes")?;
        let this = Self {
            stop: Some(stop),
            thread: Some(thread),
        };
        is_ready
            .await
            .context("the thread of the stand-in for nodes ended")??;
        Ok(this)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Creates or updates the Node and the storage class.
async fn prepare(config: &kube::Config) -> anyhow::Result<Client> {
    let client = client::connect(config)?;
    let parameters = PatchParams::apply(MANAGER).force();
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
        },
        "provisioner": "control-plane/stand-in",
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
        "volumeBindingMode": "Immediate",
    });
    Api::<StorageClass>::all(client.clone())
        .patch(STORAGE_CLASS, &parameters, &Patch::Apply(class))
        .await?;

    let nodes = Api::<NodeObject>::all(client.clone());
    let labels = json!({ "kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux" });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "labels": labels } });
    nodes.patch(NODE, &parameters, &Patch::Apply(node)).await?;
    let size = json!({ "cpu": "64", "memory": "256Gi", "pods": "10000", "ephemeral-storage": "1Ti" });
    let status = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "status": {
            "capacity": size,
            "allocatable": size,
            "addresses": [{ "type": "InternalIP", "address": pods::HOST_IP }],
            "conditions": [{
                "type": "Ready",
                "status": "True",
                "reason": "StandIn",
                "message": "plays a kubelet; no container runs here",
            }],
        },
    });
    nodes
        .patch_status(NODE, &parameters, &Patch::Apply(status))
        .await?;
    Ok(client)
}
