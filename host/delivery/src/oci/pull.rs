//! Pulls plugins and their signatures from a registry.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::ByteString;
use tracing::debug;

use super::artifact::{self, Descriptor, ENVELOPE, SIGNATURE};
use super::error::RegistryError;
use super::registry::{Repository, referrers_tag};
use super::transport::Transports;
use crate::Problem;
use crate::cosign::{BUNDLE, CosignSignature, Form, PREDICATE};
use crate::statement::SIGNATURE_LIMIT;
use operator_host_config::reference::{Reference, Version};
use operator_host_config::registry::RegistryConfig;
use operator_host_core::digest::Digest;
use operator_host_core::text::base64;

/// The most signatures that are read for one plugin.
const MAX_SIGNATURES: usize = 16;
/// The type of what cosign signs, and the annotation with its signature.
const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const COSIGN_SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// The annotation with the type of what a bundle states.
const PREDICATE_TYPE: &str = "dev.sigstore.bundle.predicateType";

/// A plugin's manifest.
#[derive(Clone, Debug)]
pub struct Found {
    /// The digest of the manifest.
    pub manifest: Digest,
    /// The plugin's file.
    pub layer: Descriptor,
}

/// Pulls one artifact, again and again.
pub struct Puller {
    repository: Repository,
    limit: usize,
}

impl Puller {
    /// Prepares to pull a plugin of at most `limit` bytes; nothing is sent yet.
    pub fn new(
        reference: Reference,
        settings: Arc<RegistryConfig>,
        transports: Arc<Transports>,
        limit: usize,
    ) -> Self {
        Self {
            repository: Repository::new(transports, settings, reference, "pull"),
            limit,
        }
    }

    /// Looks for the manifest. Returns `None` when it is the known one.
    ///
    /// # Errors
    /// When the registry gives no plugin's manifest.
    pub async fn find(&mut self, known: Option<Digest>) -> Result<Option<Found>, RegistryError> {
        let place = self.repository.place.clone();
        let version = &place.version;
        if let Some(known) = known
            && (*version == Version::Digest(known) || self.repository.still_names(version, known).await?)
        {
            return Ok(None);
        }
        let (manifest, bytes) = self.repository.manifest(version).await?;
        if known == Some(manifest) {
            return Ok(None);
        }
        let layer = artifact::plugin_layer(&bytes, self.limit);
        let layer = layer.map_err(|error| format!("{} cannot be used: {error}", place.at(manifest)))?;
        Ok(Some(Found { manifest, layer }))
    }

    /// Reads the plugin's file.
    ///
    /// # Errors
    /// When the registry does not give it.
    pub async fn fetch(&mut self, found: &Found) -> Result<Bytes, RegistryError> {
        self.repository.blob(&found.layer, self.limit).await
    }

    /// Reads the plugin's signatures, in the form of `<plugin>.sig`, until one is accepted. None of them is verified
    /// otherwise.
    ///
    /// # Errors
    /// When there is none, and the registry does not answer or has one that cannot be read.
    pub async fn signatures(
        &mut self,
        found: &Found,
        accepts: impl Fn(&[u8]) -> bool + Sync,
    ) -> Result<Vec<Bytes>, RegistryError> {
        let mut search = Search {
            accepts: &accepts,
            signatures: Vec::new(),
            error: None,
        };
        let place = &mut self.repository;
        let _is_accepted = search.cosign(place, found).await || search.referrers(place, found).await;
        match search.error {
            Some(error) if search.signatures.is_empty() => Err(error),
            _ => Ok(search.signatures),
        }
    }
}

/// The search for a signature that is accepted. Everyone who may push can add signatures: one that cannot be read does
/// not hide the others, and the newest come first.
struct Search<'a> {
    accepts: &'a (dyn Fn(&[u8]) -> bool + Sync),
    signatures: Vec<Bytes>,
    /// The last error.
    error: Option<RegistryError>,
}

impl Search<'_> {
    /// Searches the signatures of cosign, which have a tag of their own.
    async fn cosign(&mut self, place: &mut Repository, found: &Found) -> bool {
        let tag = Version::Tag(format!("{}.sig", referrers_tag(found.manifest)));
        let list = self.or_note(place.optional(&tag).await).flatten();
        // A tag of this name that is something else is not a signature.
        let layers = list.and_then(|list| artifact::listed(&list).ok());
        let mut signed = layers.unwrap_or_default();
        signed.retain(|layer| layer.media_type == SIMPLE_SIGNING);
        if signed.is_empty() {
            return false;
        }
        let manifest = self.or_note(cosign_manifest(place, found).await);
        let Some(manifest) = manifest else {
            return false;
        };
        for layer in signed.into_iter().rev().take(MAX_SIGNATURES) {
            let annotations = layer.annotations.as_ref();
            let signature = annotations.and_then(|annotations| base64(annotations.get(COSIGN_SIGNATURE)?));
            let Some(signature) = signature else {
                continue;
            };
            let payload = place.blob(&layer, SIGNATURE_LIMIT).await;
            let document = payload.map(|payload| {
                let signature = CosignSignature {
                    manifest: ByteString(manifest.to_vec()),
                    form: Form::Simple {
                        payload: ByteString(payload.to_vec()),
                        signature: ByteString(signature),
                    },
                };
                signature.document().into()
            });
            if self.is_accepted(document) {
                return true;
            }
        }
        false
    }

    /// Searches the signatures that refer to the plugin.
    async fn referrers(&mut self, place: &mut Repository, found: &Found) -> bool {
        let index = self.or_note(place.referrers(found.manifest).await).flatten();
        let listed = index.map(|index| artifact::listed(&index).map_err(|error| unusable(found, &error)));
        let listed = listed.and_then(|listed| self.or_note(listed)).unwrap_or_default();
        let ours = listed.into_iter().rev().filter(is_signature);
        for referrer in ours.take(MAX_SIGNATURES) {
            if let Some(read) = envelope(place, found, referrer.digest).await.transpose()
                && self.is_accepted(read)
            {
                return true;
            }
        }
        false
    }

    /// Adds a signature; returns whether it is accepted.
    fn is_accepted(&mut self, read: Result<Bytes, RegistryError>) -> bool {
        let Some(signature) = self.or_note(read) else {
            return false;
        };
        let accepted = (self.accepts)(&signature);
        self.signatures.push(signature);
        accepted
    }

    /// Returns what was read, or notes why it was not.
    fn or_note<T>(&mut self, read: Result<T, RegistryError>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(error) => {
                debug!("a signature is passed over: {error}");
                self.error = Some(error);
                None
            }
        }
    }
}

/// Reads the manifest that is kept with a signature of cosign.
async fn cosign_manifest(place: &mut Repository, found: &Found) -> Result<Bytes, RegistryError> {
    let (_, manifest) = place.manifest(&Version::Digest(found.manifest)).await?;
    // Base64 takes a third more, and the payload takes the rest.
    let (size, limit) = (manifest.len(), SIGNATURE_LIMIT / 2);
    if size > limit {
        let why = format!(
            "its manifest has {size} bytes, and cosign signatures are used only with a manifest of at most {limit} bytes"
        );
        return Err(unusable(found, &why.into()));
    }
    Ok(manifest)
}

/// Whether what refers to a plugin may be a signature of it. A bundle may also state something else about the plugin, such as
/// where it was built; cosign says so in the list.
fn is_signature(referrer: &Descriptor) -> bool {
    let annotations = referrer.annotations.as_ref();
    let states = annotations.and_then(|it| it.get(PREDICATE_TYPE));
    match referrer.artifact_type.as_deref() {
        Some(BUNDLE) => states.is_none_or(|it| it == PREDICATE),
        it => it == Some(SIGNATURE),
    }
}

/// Reads a signature that refers to the plugin. Returns `None` when it has another form.
async fn envelope(
    place: &mut Repository,
    found: &Found,
    referrer: Digest,
) -> Result<Option<Bytes>, RegistryError> {
    let (_, manifest) = place.manifest(&Version::Digest(referrer)).await?;
    let layers = artifact::layers(&manifest).map_err(|error| unusable(found, &error))?;
    match layers.first() {
        Some(layer) if layer.media_type == ENVELOPE => Ok(Some(place.blob(layer, SIGNATURE_LIMIT).await?)),
        Some(layer) if layer.media_type == BUNDLE => {
            let bundle = place.blob(layer, SIGNATURE_LIMIT).await?;
            let signature = CosignSignature {
                manifest: ByteString(cosign_manifest(place, found).await?.to_vec()),
                form: Form::Bundle {
                    bundle: String::from_utf8_lossy(&bundle).into_owned(),
                },
            };
            Ok(Some(signature.document().into()))
        }
        _ => Ok(None),
    }
}

fn unusable(found: &Found, error: &Problem) -> RegistryError {
    format!("the signature of {} cannot be used: {error}", found.manifest).into()
}
