//! The files that the hosts read: the plugins' folder and the configuration. Running hosts follow changes of both.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use kube::Client;

use crate::fleet::Shape;
use crate::objects::{self, CEILINGS, OBJECTS};
use crate::oracle::Sample;

/// The namespace of the Leases and of the hosts' ServiceAccount.
pub(crate) const NAMESPACE: &str = "operator-host";
/// The user name of the hosts' ServiceAccount.
pub(crate) const HOSTS: &str = "system:serviceaccount:operator-host:operator-host";
/// The prefix of the number in the puppet's file that selects a variant; see `tests/fixtures/puppet`.
const VARIANT: &[u8] = b"puppet-variant:";

/// The files of the hosts; see the module.
pub(crate) struct Files {
    client: Client,
    folder: PathBuf,
    samples: PathBuf,
    shape: Shape,
}

/// An edit of the correct configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    None,
    /// A controller is missing.
    Without(Sample),
    /// A controller has other settings.
    Otherwise(Sample),
    /// The file is not a valid configuration.
    Broken,
}

/// The content of a plugin's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The plugin as built.
    Own,
    /// The same with another digest.
    Newer,
    /// The first half of it.
    Torn,
    /// Not WebAssembly.
    Garbage,
    /// A variant of the puppet: 1 is slow, 2 wants no children, 3 fails.
    Variant(u8),
}

impl Files {
    /// Writes the plugins and the configuration below `folder`, and into the cluster what its hosts have there; `samples` contains
    /// the built plugins. No host may run.
    pub(crate) async fn new(
        client: &Client,
        folder: &Path,
        samples: &Path,
        shape: Shape,
    ) -> anyhow::Result<Self> {
        let this = Self {
            client: client.clone(),
            folder: folder.to_owned(),
            samples: samples.to_owned(),
            shape,
        };
        let plugins = folder.join("plugins");
        std::fs::create_dir_all(&plugins).with_context(|| plugins.display().to_string())?;
        for sample in Sample::ALL {
            this.put_plugin(sample, Content::Own).await?;
        }
        if !shape.objects {
            for sample in OBJECTS {
                objects::delete(client, sample, true).await?;
            }
        }
        this.put_config(Edit::None).await?;
        Ok(this)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.join("config.yaml")
    }

    /// Replaces a plugin's file, or what its ConfigMap has.
    pub(crate) async fn put_plugin(&self, sample: Sample, content: Content) -> anyhow::Result<()> {
        let bytes = content.of(self.own(sample)?)?;
        if self.is_object(sample) {
            return objects::put_plugin(&self.client, sample, &bytes).await;
        }
        let name = format!("{}.wasm", sample.name());
        self.put(&Path::new("plugins").join(name), &bytes)
    }

    /// Returns the plugin as it was built.
    fn own(&self, sample: Sample) -> anyhow::Result<Vec<u8>> {
        let file = self.samples.join(format!("{}.wasm", sample.name()));
        std::fs::read(&file).with_context(|| format!("read {}: run plugins/build.sh", file.display()))
    }

    fn is_object(&self, sample: Sample) -> bool {
        sample == Sample::Decorated || self.shape.objects && OBJECTS.contains(&sample)
    }

    /// Replaces the configuration, and the Controllers.
    pub(crate) async fn put_config(&self, edit: Edit) -> anyhow::Result<()> {
        let text = match edit {
            Edit::Broken => "controllers: [{name: echo, parent: ]".to_owned(),
            edit => config(self.shape, edit),
        };
        self.put(Path::new("config.yaml"), text.as_bytes())?;
        for sample in Sample::ALL.into_iter().filter(|sample| self.is_object(*sample)) {
            objects::put(&self.client, sample, edit, &self.own(sample)?).await?;
        }
        Ok(())
    }

    /// Replaces a file atomically: a reader gets either the old or the new content.
    fn put(&self, name: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        let file = self.folder.join(name);
        let part = self.folder.join("part");
        std::fs::write(&part, bytes)
            .and_then(|()| std::fs::rename(&part, &file))
            .with_context(|| format!("write {}", file.display()))
    }
}

impl Content {
    fn of(self, mut own: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Own => {}
            // A custom section without meaning: its id, its size, the size of its name, its name.
            Self::Newer => own.extend(b"\x00\x06\x05newer"),
            Self::Torn => own.truncate(own.len() / 2),
            Self::Garbage => own = b"no plugin".repeat(100),
            Self::Variant(number) => {
                let at = own.windows(VARIANT.len()).position(|bytes| bytes == VARIANT);
                let at = at.context("the puppet has no mark for its variant")? + VARIANT.len();
                ensure!(own[at] == b'0', "the puppet's file is a variant");
                own[at] = b'0' + number;
            }
        }
        Ok(own)
    }
}

/// Returns the configuration, with short times, so that recovery is quick.
fn config(shape: Shape, edit: Edit) -> String {
    let mut text = format!(
        "plugins: plugins\nleadership: {}\n\
         lease: {{namespace: {NAMESPACE}, duration: 3s, renewDeadline: 2s, retryPeriod: 500ms}}\n{CEILINGS}controllers:\n",
        shape.leadership,
    );
    for sample in Sample::DEFINED {
        if edit == Edit::Without(sample) || shape.objects && OBJECTS.contains(&sample) {
            continue;
        }
        let resource = sample.resource();
        let (children, reads) = match sample {
            Sample::Echo => ("[{apiVersion: v1, kind: Pod}]", "[]"),
            Sample::Hello => ("[{apiVersion: apps/v1, kind: Deployment}]", "[]"),
            Sample::MyApp => (
                "[{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: Service}]",
                "[]",
            ),
            Sample::MySql => (
                "[{apiVersion: v1, kind: Service}, {apiVersion: v1, kind: PersistentVolumeClaim}, \
                 {apiVersion: v1, kind: Pod}, {apiVersion: v1, kind: Secret}]",
                "[{apiVersion: v1, kind: Secret}]",
            ),
            Sample::Puppet | Sample::Decorated => (
                "[{apiVersion: v1, kind: ConfigMap}, {apiVersion: operator-host.dev/v1alpha1, kind: External}]",
                "[]",
            ),
        };
        let concurrency = if edit == Edit::Otherwise(sample) { 3 } else { 8 };
        text.push_str(&format!(
            "- name: {}\n  parent: {{apiVersion: {}, kind: {}}}\n  plugin: {}.wasm\n  children: {children}\n  \
             reads: {reads}\n  concurrency: {concurrency}\n  backoff: {{initial: 100ms, max: 1s}}\n",
            sample.name(),
            resource.api_version,
            resource.kind,
            sample.name(),
        ));
    }
    text
}
