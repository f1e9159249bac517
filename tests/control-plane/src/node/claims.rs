//! Determines and executes the next step for a claim.

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::MANAGER;

/// The next step for a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Create a volume of this size and bind the two. Every part is idempotent.
    Bind(Quantity),
    /// Resize volume and claim to this size.
    Grow(Quantity),
}

/// Returns the next step for `claim`; `None` when it is complete or not ours.
pub(super) fn next(claim: &PersistentVolumeClaim) -> Option<Step> {
    let spec = claim.spec.as_ref()?;
    let wanted = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending");
    let ours = match &spec.volume_name {
        Some(volume) => *volume == volume_name(&claim.uid().unwrap_or_default()),
        // An empty class asks for a manually created volume.
        None => spec
            .storage_class_name
            .as_ref()
            .is_some_and(|class| !class.is_empty()),
    };
    match phase {
        _ if !ours || claim.metadata.deletion_timestamp.is_some() => None,
        "Pending" => Some(Step::Bind(wanted.clone())),
        "Bound" => (capacity(claim) != Some(wanted)).then(|| Step::Grow(wanted.clone())),
        _ => None,
    }
}

/// Reports whether pods may mount it.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim
        .status
        .as_ref()
        .is_some_and(|status| status.phase.as_deref() == Some("Bound"))
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.status.as_ref()?.capacity.as_ref()?.get("storage")
}

/// Returns the volume name for the claim with this UID, as every provisioner does.
pub(super) fn volume_name(uid: &str) -> String {
    format!("pvc-{uid}")
}

pub(super) async fn act(client: &Client, claim: &PersistentVolumeClaim, step: Step) -> kube::Result<()> {
    let claims =
        Api::<PersistentVolumeClaim>::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let (name, volume) = (claim.name_any(), volume_name(&claim.uid().unwrap_or_default()));
    let (merge, apply) = (PatchParams::default(), PatchParams::apply(MANAGER).force());
    match step {
        Step::Bind(size) => {
            volumes
                .patch(&volume, &apply, &Patch::Apply(volume_for(claim, &volume, &size)))
                .await?;
            let bound = json!({ "status": { "phase": "Bound" } });
            volumes
                .patch_status(&volume, &merge, &Patch::Merge(bound))
                .await?;
            // The resource version prevents a recreated claim from getting its predecessor's volume.
            let version = claim.resource_version();
            let spec = json!({
                "metadata": {
                    "resourceVersion": version,
                    "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
                },
                "spec": { "volumeName": volume },
            });
            if claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_none()) {
                claims.patch(&name, &merge, &Patch::Merge(spec)).await?;
            }
            let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone());
            let capacity = json!({ "storage": size });
            let status =
                json!({ "status": { "phase": "Bound", "accessModes": modes, "capacity": capacity } });
            claims.patch_status(&name, &merge, &Patch::Merge(status)).await?;
        }
        Step::Grow(size) => {
            let capacity = json!({ "capacity": { "storage": size } });
            volumes
                .patch(&volume, &merge, &Patch::Merge(json!({ "spec": capacity })))
                .await?;
            claims
                .patch_status(&name, &merge, &Patch::Merge(json!({ "status": capacity })))
                .await?;
        }
    }
    Ok(())
}

fn volume_for(claim: &PersistentVolumeClaim, volume: &str, size: &Quantity) -> Value {
    let spec = claim.spec.clone().unwrap_or_default();
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume,
            "annotations": { "pv.kubernetes.io/provisioned-by": "control-plane/stand-in" },
        },
        "spec": {
            "capacity": { "storage": size },
            "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode,
            "storageClassName": spec.storage_class_name,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(),
                "name": claim.name_any(),
                "uid": claim.uid(),
            },
            "hostPath": { "path": format!("/nowhere/{volume}") },
        },
    })
}

/// Deletes the volume of a deleted claim.
pub(super) async fn release(client: &Client, uid: &str) -> kube::Result<()> {
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let volume = volume_name(uid);
    // A Bound volume is protected from deletion.
    let released = json!({ "status": { "phase": "Released" } });
    volumes
        .patch_status(&volume, &PatchParams::default(), &Patch::Merge(released))
        .await?;
    volumes.delete(&volume, &DeleteParams::default()).await?;
    Ok(())
}
