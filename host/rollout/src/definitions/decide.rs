//! Decides what to do about an installed definition, and with which conversion.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::losses::{self, Losses};
use super::requests::Requests;
use super::{Current, Installer, Refusal, Write, plan};
use operator_host_core::crd::definition;
use operator_host_core::files;
use operator_host_core::sync::lock;
use operator_host_core::text::shorten;
use operator_host_runtime::Plugin;
use operator_host_webhook::CONVERT_PATH;
use operator_host_webhook::certificates::ca_bundle;

/// How often the file of the certificate authority is read.
const AUTHORITY_PERIOD: Duration = Duration::from_secs(5);
/// A larger file is no certificate authority.
const MAX_AUTHORITY: usize = 1 << 20;
/// Bytes of the API server's message about a conflict.
const MAX_CONFLICT: usize = 1000;

impl Installer {
    /// Decides what to do about an installed definition; `None`: nothing.
    pub(super) async fn step(
        &self,
        current: &Current,
        plugin: &Plugin,
        carried: &Value,
        installed: &Value,
        is_pinned: bool,
    ) -> Result<Option<Write>, Refusal> {
        let name = plan::name(carried);
        if !installed["metadata"]["deletionTimestamp"].is_null() {
            return Err(Refusal::NotNow("the cluster's is being deleted".to_owned()));
        }
        let parent = &plugin.description().parent;
        let version = parent.api_version.rsplit('/').next().unwrap_or_default();
        let of_kind = losses::of_kind(installed, carried, version);
        if !of_kind.is_empty() {
            let of_objects = Vec::new();
            return Err(Refusal::Loses(Losses { of_kind, of_objects }));
        }
        let manager = self.manager(current);
        let requests = Requests::new(&self.client, name);
        let conversion = self.conversion(plugin, Some(installed)).await?;
        let mut body = plan::body(plugin.description(), carried, conversion);
        for field in ["uid", "resourceVersion"] {
            // The decision is about this state.
            body["metadata"][field] = installed["metadata"][field].clone();
        }
        let result = requests.try_apply(&body, &manager, true).await?;
        if result["spec"] == installed["spec"] {
            *lock(&self.unedited) = Some(installed["spec"].clone());
            return Ok(None);
        }
        if let Some(stays) = plan::newer(installed, &plugin.description().version, &manager, is_pinned) {
            return Err(Refusal::Stays(stays));
        }
        let force = self.must_force(&requests, installed, &body, &manager).await?;
        let lost = losses::of_objects(&self.client, installed, &result).await;
        let lost = lost.map_err(Refusal::NotNow)?;
        if lost != Losses::default() {
            return Err(Refusal::Loses(lost));
        }
        Ok(Some(Write {
            body,
            force,
            is_change: true,
        }))
    }

    /// Reports whether fields of other managers must be taken over. They may be those of other hosts, and those of a definition
    /// that is still what a plugin contains.
    async fn must_force(
        &self,
        requests: &Requests<'_>,
        installed: &Value,
        body: &Value,
        manager: &str,
    ) -> Result<bool, Refusal> {
        if lock(&self.unedited).as_ref() == Some(&installed["spec"]) {
            return Ok(true);
        }
        let Some(conflict) = requests.try_apply(body, manager, false).await.err() else {
            return Ok(false);
        };
        let managers = plan::conflicting(&conflict.message);
        if managers.is_empty() {
            return Err(conflict.into());
        }
        if plan::are_hosts(&managers) {
            return Ok(true);
        }
        let name = &requests.name.name;
        Err(Refusal::Stays(format!(
            "the cluster's was changed by others, and stays: {}; to let the host manage it again: operator-host crd PLUGIN | \
             kubectl apply --server-side --force-conflicts --field-manager {manager} -f - (and see kubectl get crd {name} \
             --show-managed-fields -o yaml)",
            shorten(&conflict.message, MAX_CONFLICT)
        )))
    }

    /// Returns the conversion of a plugin's kind by the host's webhook; `None` if the plugin converts nothing. What somebody
    /// else has written into the definition stays.
    pub(super) async fn conversion(
        &self,
        plugin: &Plugin,
        installed: Option<&Value>,
    ) -> Result<Option<Value>, Refusal> {
        if !plugin.description().converts() {
            return Ok(None);
        }
        if let Some(other) = installed.and_then(plan::other_webhook) {
            return Ok(Some(other));
        }
        let Some(reach) = &self.reach else {
            return Err(Refusal::NotNow(
                "the plugin converts its kind, and the configuration does not say how the API server reaches the host: set \
                 `webhook.service` or `webhook.url`"
                    .to_owned(),
            ));
        };
        let mut client_config = reach.target.client_config(CONVERT_PATH);
        if let Some(file) = &reach.authority {
            client_config["caBundle"] = authority(file.clone()).await.map_err(Refusal::NotNow)?;
        }
        Ok(Some(definition::conversion_by(&client_config)))
    }

    /// Returns the certificate authority that the API server should trust, if the host writes it.
    pub(super) async fn authority(&self) -> Option<Result<Value, String>> {
        let file = self.reach.as_ref()?.authority.clone()?;
        Some(authority(file).await)
    }

    /// Waits until the file of the authority changes.
    pub(super) async fn other_authority(&self, known: &Option<Result<Value, String>>) {
        if known.is_none() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(AUTHORITY_PERIOD).await;
            if self.authority().await != *known {
                return;
            }
        }
    }
}

async fn authority(file: PathBuf) -> Result<Value, String> {
    let read = move || {
        let what = || format!("cannot read the certificate authority {}", file.display());
        let pem = files::read(&file, MAX_AUTHORITY).map_err(|error| format!("{}: {error}", what()))?;
        ca_bundle(pem, &file)
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| error.to_string())?
}
