//! Pulls plugins and their signatures: from the mirrors of a registry in their order, then from the registry itself.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::ByteString;
use tracing::debug;

use super::artifact::{self, ArtifactError, Descriptor, ENVELOPE, SIGNATURE};
use super::reference::{Reference, Version};
use super::registry::{Head, RegistryError, Repository, referrers_tag};
use super::settings::Settings;
use super::transport::{TransportError, Transports};
use crate::plugin::Digest;
use crate::plugin::cosign::CosignSignature;
use crate::plugin::keys::base64;
use crate::plugin::statement::SIGNATURE_LIMIT;

/// The most signatures that are read for one plugin.
const MAX_SIGNATURES: usize = 16;
/// The type of what cosign signs, and the annotation with its signature.
const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const COSIGN_SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// Why a plugin cannot be pulled. The messages are for users.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The registry does not give it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The artifact is not a plugin.
    #[error("{reference} cannot be used: {error}")]
    Artifact {
        /// The artifact.
        reference: String,
        /// What is wrong with it.
        error: ArtifactError,
    },
    /// Neither the mirrors nor the registry give it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Everywhere(Vec<PullError>),
}

impl From<TransportError> for PullError {
    fn from(error: TransportError) -> Self {
        Self::Registry(error.into())
    }
}

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
    reference: Reference,
    settings: Arc<Settings>,
    transports: Arc<Transports>,
    /// Where to ask; the place that answered last is first, so that the contents come from where the manifest is from.
    places: Vec<Repository>,
    limit: usize,
}

impl Puller {
    /// Prepares to pull a plugin of at most `limit` bytes; nothing is sent yet.
    ///
    /// # Errors
    /// When the certificate authorities of the settings cannot be used.
    pub fn new(
        reference: Reference,
        settings: Arc<Settings>,
        transports: Arc<Transports>,
        limit: usize,
    ) -> Result<Self, TransportError> {
        let transport = transports.get(settings.certificate_authorities.as_deref())?;
        let places = settings.places(&reference).into_iter();
        let places = places
            .map(|place| Repository::new(Arc::clone(&transport), Arc::clone(&settings), place, "pull"))
            .collect();
        Ok(Self {
            reference,
            settings,
            transports,
            places,
            limit,
        })
    }

    /// Looks for the manifest. Returns `None` when it is the known one.
    ///
    /// # Errors
    /// When no place gives a plugin's manifest.
    pub async fn find(&mut self, known: Option<Digest>) -> Result<Option<Found>, PullError> {
        // The file of authorities may have changed.
        let transport = self
            .transports
            .get(self.settings.certificate_authorities.as_deref())?;
        for place in &mut self.places {
            place.reconnect(Arc::clone(&transport));
        }
        let mut errors = Vec::new();
        for place in &mut self.places {
            match find(place, &self.reference, known, self.limit).await {
                Ok(found) => {
                    note(&errors);
                    return Ok(found);
                }
                Err(error) => errors.push(error),
            }
        }
        Err(together(errors))
    }

    /// Reads the plugin's file.
    ///
    /// # Errors
    /// When no place gives it.
    pub async fn fetch(&mut self, found: &Found) -> Result<Bytes, PullError> {
        let mut errors = Vec::new();
        for place in &mut self.places {
            match place.blob(&found.layer, self.limit).await {
                Ok(bytes) => {
                    note(&errors);
                    return Ok(bytes);
                }
                Err(error) => errors.push(error.into()),
            }
        }
        Err(together(errors))
    }

    /// Reads the plugin's signatures, in the form of `<plugin>.sig`. None of them is verified yet.
    ///
    /// # Errors
    /// When no place answers.
    pub async fn signatures(&mut self, found: &Found) -> Result<Vec<Bytes>, PullError> {
        let mut errors = Vec::new();
        let mut none = false;
        for place in &mut self.places {
            match signatures(place, found).await {
                // A mirror may not have copied them yet.
                Ok(signatures) if signatures.is_empty() => none = true,
                Ok(signatures) => return Ok(signatures),
                Err(error) => errors.push(error),
            }
        }
        if none {
            Ok(Vec::new())
        } else {
            Err(together(errors))
        }
    }
}

fn note(errors: &[PullError]) {
    for error in errors {
        debug!("a mirror is passed over: {error}");
    }
}

fn together(mut errors: Vec<PullError>) -> PullError {
    match errors.pop() {
        Some(error) if errors.is_empty() => error,
        last => PullError::Everywhere(errors.into_iter().chain(last).collect()),
    }
}

async fn find(
    place: &mut Repository,
    reference: &Reference,
    known: Option<Digest>,
    limit: usize,
) -> Result<Option<Found>, PullError> {
    let version = &reference.version;
    if let Some(known) = known
        && (*version == Version::Digest(known) || place.head(version, known).await? == Head::Same)
    {
        return Ok(None);
    }
    let (manifest, bytes) = place.manifest(version).await?;
    if known == Some(manifest) {
        return Ok(None);
    }
    let layer = artifact::plugin_layer(&bytes, limit).map_err(|error| PullError::Artifact {
        reference: reference.at(manifest).to_string(),
        error,
    })?;
    Ok(Some(Found { manifest, layer }))
}

/// Reads the signatures of cosign, which have a tag of their own.
async fn cosign(place: &mut Repository, found: &Found) -> Result<Vec<Bytes>, PullError> {
    let tag = Version::Tag(format!("{}.sig", referrers_tag(found.manifest)));
    let Some(list) = place.optional(&tag).await? else {
        return Ok(Vec::new());
    };
    // A tag of this name that is something else is not a signature.
    let layers = artifact::layers(&list).unwrap_or_default().into_iter();
    let signed = layers
        .filter(|layer| layer.media_type == SIMPLE_SIGNING)
        .take(MAX_SIGNATURES);
    let (_, manifest) = place.manifest(&Version::Digest(found.manifest)).await?;
    let mut signatures = Vec::new();
    for layer in signed {
        let annotations = layer.annotations.as_ref();
        let signature = annotations.and_then(|annotations| base64(annotations.get(COSIGN_SIGNATURE)?));
        let Some(signature) = signature else {
            continue;
        };
        let signature = CosignSignature {
            manifest: ByteString(manifest.to_vec()),
            payload: ByteString(place.blob(&layer, SIGNATURE_LIMIT).await?.to_vec()),
            signature: ByteString(signature),
        };
        signatures.push(signature.document().into());
    }
    Ok(signatures)
}

async fn signatures(place: &mut Repository, found: &Found) -> Result<Vec<Bytes>, PullError> {
    let wrong = |error: ArtifactError| PullError::Artifact {
        reference: format!("the signature of {}", found.manifest),
        error,
    };
    let mut signatures = cosign(place, found).await?;
    if let Some(index) = place.referrers(found.manifest).await? {
        let listed = artifact::manifests(&index).map_err(wrong)?.into_iter();
        let ours = listed.filter(|it| it.artifact_type.as_deref() == Some(SIGNATURE));
        for referrer in ours.take(MAX_SIGNATURES) {
            let (_, manifest) = place.manifest(&Version::Digest(referrer.digest)).await?;
            for layer in artifact::layers(&manifest).map_err(wrong)?.iter().take(1) {
                if layer.media_type == ENVELOPE {
                    signatures.push(place.blob(layer, SIGNATURE_LIMIT).await?);
                }
            }
        }
    }
    Ok(signatures)
}
