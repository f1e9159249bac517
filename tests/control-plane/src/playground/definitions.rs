//! Applies definitions again when their files change, as when an author adds a field to a plugin's type. Without that the
//! API server would drop the field.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control_plane::manifests;
use kube::api::DynamicObject;
use kube::{Client, ResourceExt};

use crate::webhook::Webhook;
use crate::{complain, step};

/// How often the files are read.
const PERIOD: Duration = Duration::from_secs(1);

/// Applies what changes in the files, as long as it is polled.
pub(crate) async fn follow(
    path: &Path,
    applied: Vec<DynamicObject>,
    client: &Client,
    webhook: Option<&Webhook>,
) -> Infallible {
    let mut files = Files {
        path: path.to_owned(),
        applied,
    };
    let mut loaded = 0;
    loop {
        tokio::time::sleep(PERIOD).await;
        let changed = files.changed();
        if !changed.is_empty() {
            let names: Vec<String> = changed.iter().map(ResourceExt::name_any).collect();
            match manifests::apply(client, &changed).await {
                Ok(()) => step(&format!(
                    "{} applied again, because its file changed",
                    names.join(", ")
                )),
                Err(error) => complain(&format!("a changed definition is refused: {error}")),
            }
        }
        let Some(webhook) = webhook else { continue };
        let before = std::mem::replace(&mut loaded, webhook.loaded().await);
        // The webhooks are installed with the first versions.
        let has_new_version = before > 0 && loaded > before;
        // The files do not contain the conversion, and a new version of a plugin may convert.
        if (has_new_version || !changed.is_empty())
            && let Err(error) = webhook.install(client).await
        {
            complain(&format!("the webhooks are not up to date: {error:#}"));
        }
    }
}

/// The definitions in the files, as they were last applied.
struct Files {
    path: PathBuf,
    applied: Vec<DynamicObject>,
}

impl Files {
    /// Returns the objects that are new or changed since the last call.
    fn changed(&mut self) -> Vec<DynamicObject> {
        // Not readable while it is being written.
        let Ok(now) = manifests::read(&self.path) else {
            return Vec::new();
        };
        let changed = now.iter().filter(|object| !self.applied.contains(object));
        let changed = changed.cloned().collect();
        self.applied = now;
        changed
    }
}
