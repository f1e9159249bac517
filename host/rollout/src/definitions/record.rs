//! Records in the cluster which version of a controller's plugin is live: as an annotation of the kind's definition, where
//! every replica sees it, and where it outlives all of them.
//!
//! A host that starts with another file than the recorded version proves it before it writes anything. The leader records a
//! version before it reconciles with it, and beside it which controller reconciles the kind (`Holder`). A replica that begins
//! to lead reads the record again ([`LiveRecord::confirm`]): another replica may have gone on to a version that this one does not
//! have.
//!
//! The kinds that a Controller decorates have no definition that is the host's to write on: the record is on the Controller, together
//! with its finalizer. A Controller that is deleted and made again begins without a record.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::requests::Requests;
use operator_host_cluster::api_error::{ApiError, Fault};
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::controllers;
use operator_host_config::object::FINALIZER;
use operator_host_config::{ControllerConfig, decorates};
use operator_host_core::digest::Digest;
use operator_host_core::object::{holder_annotation, live_annotation, stage_annotation};
use operator_host_core::sync::lock;
use operator_host_delivery::candidate_check::Recorded;
use operator_host_delivery::changes::{send_if_new, sleep_or_never};
use operator_host_delivery::registry::Live;
use operator_host_runtime::Plugin;

/// The wait before a version that could not be recorded is recorded again.
const RETRY: Duration = Duration::from_secs(30);
/// The wait of a replica that cannot write before it has read the record.
const PAUSE: Duration = Duration::from_secs(2);
/// How often a write is tried that others get ahead of.
const ATTEMPTS: u32 = 5;
/// How long a version that is about to become live waits for its record.
const LIMIT: Duration = Duration::from_secs(5);

/// The record of one controller's live version; see the module.
pub struct LiveRecord {
    client: Client,
    controller: String,
    /// Whether the record is on the Controller.
    decorates: bool,
    /// The keys of the annotations. They contain the installation: other hosts in the cluster have keys of their own.
    live_key: String,
    stage_key: String,
    holder_key: String,
    manager: String,
    holder: Mutex<Holder>,
    writer: Mutex<Writer>,
    known: watch::Sender<Option<Recorded>>,
    /// The version that was accepted last, and what was recorded then.
    accepted: Mutex<Option<(Digest, Recorded)>>,
    written: Mutex<Option<Digest>>,
    overtaken: watch::Sender<u64>,
    /// The name of the kind's definition, while this replica leads.
    leads: Mutex<Option<String>>,
    trouble: watch::Sender<Option<Arc<str>>>,
}

impl LiveRecord {
    /// Creates the record of a controller. `installation` is the same for all replicas of a host.
    pub fn new(client: Client, installation: &str, config: &ControllerConfig, writer: Writer) -> Self {
        Self {
            client,
            controller: config.name.clone(),
            decorates: config.decorates.is_some(),
            live_key: live_annotation(installation, &config.id),
            stage_key: stage_annotation(installation, &config.id),
            holder_key: holder_annotation(installation),
            manager: config.field_manager(),
            holder: Mutex::new(Holder::of(config)),
            writer: Mutex::new(writer),
            known: watch::Sender::default(),
            accepted: Mutex::default(),
            written: Mutex::default(),
            overtaken: watch::Sender::default(),
            leads: Mutex::default(),
            trouble: watch::Sender::default(),
        }
    }

    /// Applies a new configuration of the controller, with its writer.
    pub fn configure(&self, config: &ControllerConfig, writer: Writer) {
        *lock(&self.holder) = Holder::of(config);
        *lock(&self.writer) = writer;
    }

    /// Returns what is recorded; `None` until that is known.
    pub fn known(&self) -> watch::Receiver<Option<Recorded>> {
        self.known.subscribe()
    }

    /// Returns why the live version cannot be recorded.
    pub fn trouble(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.trouble.subscribe()
    }

    /// Returns how many times this replica began to lead and found another version recorded than its live one.
    pub fn overtaken(&self) -> watch::Receiver<u64> {
        self.overtaken.subscribe()
    }

    /// Takes note of what is recorded.
    pub fn observe(&self, recorded: Recorded) {
        send_if_new(&self.known, Some(recorded));
    }

    /// Returns what the annotations of a definition record.
    pub fn of<'a>(&self, annotation: impl Fn(&str) -> Option<&'a str>) -> Recorded {
        let key = &self.live_key;
        match annotation(key) {
            None => Recorded::Nothing,
            Some(text) => match text.parse() {
                Ok(version) => Recorded::Version(version),
                Err(()) => {
                    Recorded::Unknown(format!("the annotation {key} has {text:?} instead of a digest"))
                }
            },
        }
    }

    /// Records a version that is about to become live, if this replica leads. `over` is what was recorded when it was
    /// accepted.
    pub async fn accept(&self, version: &Plugin, over: &Recorded) {
        let digest = *version.digest();
        *lock(&self.accepted) = Some((digest, over.clone()));
        let leads = lock(&self.leads).clone();
        if let Some(definition) = leads {
            // Without it the version becomes live nevertheless: `keep` tries it again.
            let _ = tokio::time::timeout(LIMIT, self.write(&definition, digest)).await;
        }
    }

    /// Reports whether this replica leads, and has read the record.
    pub fn leads(&self) -> bool {
        lock(&self.leads).is_some()
    }

    /// Returns what is recorded about the stage of a new version.
    ///
    /// # Errors
    /// Why it cannot be read now.
    pub async fn read_stage(&self) -> Result<Option<String>, String> {
        let Some(definition) = lock(&self.leads).clone() else {
            return Ok(None);
        };
        let found = self.requests(&definition).read().await;
        let found = found.map_err(|error| error.to_string())?.unwrap_or_default();
        let text = found["metadata"]["annotations"][&self.stage_key].as_str();
        Ok(text.map(str::to_owned))
    }

    /// Records the stage of a new version, or that there is none. When that fails, another leader begins with the first.
    pub async fn write_stage(&self, stage: Option<&str>) {
        let Some(definition) = lock(&self.leads).clone() else {
            return;
        };
        let annotations = json!({ &self.stage_key: stage });
        if let Err(error) = self.annotate(&definition, &annotations).await {
            let controller = &self.controller;
            warn!(controller, "cannot record the stage of the new version: {error}");
        }
    }

    async fn annotate(&self, definition: &str, annotations: &Value) -> Result<(), ApiError> {
        let writer = lock(&self.writer).clone();
        let requests = self.requests(definition);
        let mut attempts = 1..ATTEMPTS;
        loop {
            let mut body = json!({ "metadata": { "annotations": annotations } });
            // Before the first child: without it, nobody would delete the children of a Controller that is deleted.
            if self.decorates
                && let Some(found) = requests.read().await?
            {
                let metadata = &found["metadata"];
                let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
                if !finalizers.iter().any(|other| other == FINALIZER) {
                    finalizers.push(FINALIZER.into());
                    body["metadata"]["finalizers"] = finalizers.into();
                }
                // Each kind that it decorates adds itself, and none takes another out.
                let before = metadata["annotations"][&self.holder_key].as_str();
                body["metadata"]["annotations"][&self.holder_key] = lock(&self.holder).after(before).into();
                body["metadata"]["resourceVersion"] = metadata["resourceVersion"].clone();
            }
            match requests.merge(&writer, &body, &self.manager).await {
                // The controllers of the other kinds write, too.
                Err(error) if error.is_conflict() && attempts.next().is_some() => {}
                done => return done,
            }
        }
    }

    fn requests(&self, definition: &str) -> Requests<'_> {
        match self.decorates {
            true => Requests::of(&self.client, controllers(), &self.controller),
            false => Requests::new(&self.client, definition),
        }
    }

    /// Notes that this replica does not lead any more.
    pub fn stand_by(&self) {
        *lock(&self.leads) = None;
    }

    /// Waits until this replica may write with its live version, which it then records: until it is the recorded one, or
    /// was accepted in its place. Otherwise the version is taken back, and decided about again.
    pub async fn confirm(&self, definition: &str, mut live: watch::Receiver<Live>) {
        loop {
            let loaded = live.wait_for(|live| !matches!(live, Live::Loading)).await;
            let digest = loaded.ok().and_then(|live| Some(*live.plugin()?.digest()));
            // Without a version, only conditions are written.
            let Some(digest) = digest else { break };
            let (recorded, is_holder) = match self.read_with_holder(definition).await {
                Ok(recorded) => recorded,
                Err(error) => {
                    let what = "waiting to read which version of the plugin is recorded as live";
                    let text = format!("{what}: {error}");
                    debug!("{text}");
                    send_if_new(&self.trouble, Some(text.into()));
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            self.observe(recorded.clone());
            let is_live = recorded == Recorded::Version(digest);
            if is_live && is_holder {
                break;
            }
            if is_live || recorded == Recorded::Nothing || self.is_accepted(digest, &recorded) {
                let written = tokio::time::timeout(LIMIT, self.write(definition, digest)).await;
                if self.decorates && written != Ok(true) {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                break;
            }
            warn!(controller = self.controller, live = %digest, ?recorded,
                "another version was recorded as live meanwhile: this one is examined again before it writes");
            self.overtaken.send_modify(|times| *times += 1);
            // A version that becomes live before the slot learns of it may be the recorded one.
            let _ = live.changed().await;
        }
        *lock(&self.leads) = Some(definition.to_owned());
    }

    /// Keeps the live version recorded while this replica leads. Never returns.
    pub async fn keep(&self, mut live: watch::Receiver<Live>) {
        let mut known = self.known.subscribe();
        loop {
            let digest = live.borrow_and_update().plugin().map(|plugin| *plugin.digest());
            let recorded = known.borrow_and_update().clone().unwrap_or_default();
            let definition = lock(&self.leads).clone();
            let is_recorded = match (digest, &recorded) {
                (None, _) => true,
                (Some(digest), Recorded::Version(recorded)) => {
                    // What someone else recorded afterwards stays.
                    *recorded == digest || *lock(&self.written) == Some(digest)
                }
                (Some(_), Recorded::Nothing | Recorded::Unknown(_)) => false,
            };
            let mut again = None;
            if is_recorded {
                send_if_new(&self.trouble, None);
            } else if let (Some(digest), Some(definition)) = (digest, definition) {
                if self.write(&definition, digest).await {
                    known.mark_unchanged();
                } else {
                    again = Some(RETRY);
                }
            }
            tokio::select! {
                changed = live.changed() => if changed.is_err() { return std::future::pending().await },
                // A failing write is tried again later.
                Ok(()) = known.changed(), if again.is_none() => {}
                () = sleep_or_never(again) => {}
            }
        }
    }

    fn is_accepted(&self, digest: Digest, recorded: &Recorded) -> bool {
        let accepted = lock(&self.accepted);
        matches!(&*accepted, Some((version, over)) if *version == digest && over == recorded)
    }

    /// Reads what a definition records. Without the permission to do so, nothing is recorded: `keep` reports that.
    ///
    /// # Errors
    /// Why it cannot be read now.
    pub async fn read(&self, definition: &str) -> Result<Recorded, String> {
        Ok(self.read_with_holder(definition).await?.0)
    }

    /// As [`Self::read`]; with it, whether this controller is recorded as the one that reconciles the kind.
    async fn read_with_holder(&self, definition: &str) -> Result<(Recorded, bool), String> {
        match self.requests(definition).read().await {
            Ok(None) => Ok((Recorded::Nothing, false)),
            Ok(Some(definition)) => {
                let annotations = &definition["metadata"]["annotations"];
                let of = |key: &str| annotations.get(key).and_then(Value::as_str);
                let recorded = of(&self.holder_key);
                let is_holder = recorded == Some(lock(&self.holder).after(recorded).as_str());
                Ok((self.of(of), is_holder))
            }
            Err(error) if error.fault == Fault::Refused(403) => Ok((Recorded::Nothing, false)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Records a version. Returns whether that need not be tried again.
    async fn write(&self, definition: &str, digest: Digest) -> bool {
        let holder = lock(&self.holder).after(None);
        let annotations = json!({ &self.live_key: digest.to_string(), &self.holder_key: holder });
        let trouble = match self.annotate(definition, &annotations).await {
            Ok(()) => {
                *lock(&self.written) = Some(digest);
                self.observe(Recorded::Version(digest));
                None
            }
            // The definition was deleted, or this replica does not lead any more: there is nothing to record.
            Err(error) if error.is_not_found() && !self.decorates || error.fault == Fault::Deposed => {
                return true;
            }
            Err(error) => Some(Arc::from(format!(
                "the live version cannot be recorded, so a version that is held back could take over when the host's pods are \
                 replaced: {error}"
            ))),
        };
        let is_written = trouble.is_none();
        send_if_new(&self.trouble, trouble);
        is_written
    }
}

/// What is recorded about who reconciles a kind: the kind, and the UID of the Controller. Another Controller of that name and kind must
/// be allowed to go on with what it left. A Controller that decorates records all kinds that it has decorated.
struct Holder {
    kind: String,
    uid: String,
    decorates: bool,
}

impl Holder {
    fn of(config: &ControllerConfig) -> Self {
        Self {
            kind: match config.decorates {
                Some(_) => decorates::named(&config.parent),
                None => config.parent.kind.clone(),
            },
            uid: config.uid.as_deref().unwrap_or("configuration-file").to_owned(),
            decorates: config.decorates.is_some(),
        }
    }

    /// Returns what shall be recorded, after what is recorded.
    fn after(&self, before: Option<&str>) -> String {
        let Self { kind, uid, decorates } = self;
        let before = before.filter(|_| *decorates);
        let before = before.and_then(|before| before.strip_suffix(uid)?.strip_suffix('/'));
        let mut kinds: BTreeSet<_> = before.into_iter().flat_map(|kinds| kinds.split(',')).collect();
        kinds.insert(kind);
        format!("{}/{uid}", Vec::from_iter(kinds).join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_that_a_controller_decorates_is_recorded_beside_the_others() {
        let holder = |kind: &str, decorates| Holder {
            kind: kind.to_owned(),
            uid: "u".to_owned(),
            decorates,
        };
        let set = holder("StatefulSet.apps", true);
        assert_eq!(set.after(None), "StatefulSet.apps/u");
        assert_eq!(set.after(Some("Namespace/u")), "Namespace,StatefulSet.apps/u");
        let both = "Namespace,StatefulSet.apps/u";
        assert_eq!(set.after(Some(both)), both);
        // What another Controller of the name recorded is not its own.
        assert_eq!(set.after(Some("Namespace/other")), "StatefulSet.apps/u");
        assert_eq!(holder("Thing", false).after(Some("Other/u")), "Thing/u");
    }
}
