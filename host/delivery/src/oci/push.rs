//! Pushes plugins with their signatures.

use std::sync::Arc;

use bytes::Bytes;

use super::artifact::{self, Artifact, INDEX, MANIFEST};
use super::error::RegistryError;
use super::registry::{Repository, referrers_tag};
use operator_host_config::reference::{Reference, Version};
use operator_host_config::registry::RegistryConfig;
use operator_host_core::digest::Digest;

/// Pushes a plugin and its signature, and returns the digest of the manifest. A tag names the plugin only when everything
/// else is there, so no host finds a plugin without its signature.
///
/// # Errors
/// When the registry does not take one of them.
pub async fn push(
    reference: &Reference,
    settings: Arc<RegistryConfig>,
    plugin: Artifact,
    signature: Option<Vec<u8>>,
) -> Result<Digest, RegistryError> {
    let mut repository = Repository::new(Arc::default(), settings, reference.clone(), "pull,push");
    let subject = plugin.descriptor();
    upload(&mut repository, plugin.blobs).await?;
    let by_digest = Version::Digest(subject.digest);
    repository
        .put(&by_digest, MANIFEST, plugin.manifest.clone())
        .await?;
    if let Some(signature) = signature {
        let mut signature = Artifact::of_signature(signature, &subject);
        upload(&mut repository, std::mem::take(&mut signature.blobs)).await?;
        let version = Version::Digest(signature.descriptor().digest);
        let listed = repository
            .put(&version, MANIFEST, signature.manifest.clone())
            .await?;
        if !listed {
            // A registry without the interface of referrers: the list has a tag.
            let tag = Version::Tag(referrers_tag(subject.digest));
            let index = repository.optional(&tag).await?;
            let index = artifact::with_referrer(index.as_deref(), &signature);
            let plugin = subject.digest;
            let index = index.map_err(|error| {
                format!("the registry's list of the signatures of {plugin} cannot be used: {error}")
            })?;
            repository.put(&tag, INDEX, index).await?;
        }
    }
    if reference.version != by_digest {
        repository
            .put(&reference.version, MANIFEST, plugin.manifest)
            .await?;
    }
    Ok(subject.digest)
}

async fn upload(
    repository: &mut Repository,
    blobs: Vec<(artifact::Descriptor, Vec<u8>)>,
) -> Result<(), RegistryError> {
    for (descriptor, bytes) in blobs {
        repository.upload(&descriptor, &Bytes::from(bytes)).await?;
    }
    Ok(())
}
