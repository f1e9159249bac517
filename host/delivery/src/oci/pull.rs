//! Pulls plugins and their signatures: from the mirrors of a registry in their order, then from the registry itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::ByteString;
use tracing::debug;

use super::artifact::{self, ArtifactError, Descriptor, ENVELOPE, SIGNATURE};
use super::reference::{Reference, Version};
use super::registry::{Head, RegistryError, Repository, referrers_tag};
use super::settings::Settings;
use super::transport::{TransportError, Transports};
use crate::cosign::{BUNDLE, CosignSignature, Form, PREDICATE};
use crate::keys::base64;
use crate::statement::SIGNATURE_LIMIT;
use operator_host_runtime::Digest;

/// The most signatures that are read for one plugin.
const MAX_SIGNATURES: usize = 16;
/// The manifests that are remembered, to recognize a mirror that lags.
const REMEMBERED: usize = 32;
/// The type of what cosign signs, and the annotation with its signature.
const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const COSIGN_SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// The annotation with the type of what a bundle states.
const PREDICATE_TYPE: &str = "dev.sigstore.bundle.predicateType";

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
    /// A mirror names a manifest that the host replaced before, and the registry itself does not answer.
    #[error(
        "{mirror} names {manifest} for the tag, which was pulled before and replaced since: the mirror may lag, so the host \
         waits until {registry} itself names it"
    )]
    Earlier {
        /// The mirror.
        mirror: String,
        /// What it names.
        manifest: Digest,
        /// The registry.
        registry: String,
    },
    /// Neither the mirrors nor the registry give it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Everywhere(Vec<PullError>),
}

impl PullError {
    /// Returns what kind of error it is, without the texts that a registry can choose.
    pub fn class(&self) -> Vec<&'static str> {
        match self {
            Self::Registry(error) => vec![error.class()],
            Self::Artifact { .. } => vec!["artifact"],
            Self::Earlier { .. } => vec!["earlier"],
            Self::Everywhere(errors) => errors.iter().flat_map(Self::class).collect(),
        }
    }

    /// Returns the time that a registry asks to wait before the next request.
    pub fn wait(&self) -> Option<Duration> {
        match self {
            Self::Registry(error) => error.wait(),
            Self::Artifact { .. } | Self::Earlier { .. } => None,
            Self::Everywhere(errors) => errors.iter().filter_map(Self::wait).max(),
        }
    }
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
    /// Where to ask: the mirrors, and the registry itself as the last.
    places: Vec<Repository>,
    /// The place that gave the last manifest. It is asked first: another one may lag behind it.
    source: usize,
    /// The manifests that were found, the last as the last.
    found: VecDeque<Digest>,
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
            source: 0,
            found: VecDeque::new(),
            limit,
        })
    }

    /// Looks for the manifest. Returns `None` when it is the known one. A mirror may lag: what it names instead of the
    /// known one is confirmed by the registry itself, unless the known one is from this mirror and the new one was not
    /// there before. A registry that does not answer confirms what is new.
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
        for index in self.order() {
            match self.find_at(index, known).await {
                Ok(None) => {
                    note(&errors);
                    return Ok(None);
                }
                Ok(Some((source, found))) => {
                    note(&errors);
                    self.source = source;
                    self.found.retain(|earlier| *earlier != found.manifest);
                    self.found.push_back(found.manifest);
                    if self.found.len() > REMEMBERED {
                        self.found.pop_front();
                    }
                    return Ok(Some(found));
                }
                Err(error) => errors.push(error),
            }
        }
        Err(together(errors))
    }

    /// Returns the places in the order in which they are asked.
    fn order(&self) -> Vec<usize> {
        let others = (0..self.places.len()).filter(|index| *index != self.source);
        std::iter::once(self.source).chain(others).collect()
    }

    /// Looks at one place; returns what it names instead of the known manifest, and the place that counts.
    async fn find_at(
        &mut self,
        index: usize,
        known: Option<Digest>,
    ) -> Result<Option<(usize, Found)>, PullError> {
        let registry = self.places.len() - 1;
        let Some(found) = self.look(index, known).await? else {
            return Ok(None);
        };
        let was_there = self.found.contains(&found.manifest);
        let is_sure = known.is_none() || index == registry || index == self.source && !was_there;
        if is_sure || self.reference.tag().is_none() {
            return Ok(Some((index, found)));
        }
        match self.look(registry, known).await {
            Ok(Some(named)) if named.manifest != found.manifest => Ok(Some((registry, named))),
            Ok(Some(_)) => Ok(Some((index, found))),
            Ok(None) => Ok(None),
            Err(error) if was_there && index != self.source => {
                debug!("the registry does not confirm what a mirror names: {error}");
                Err(PullError::Earlier {
                    mirror: self.places[index].registry().to_owned(),
                    manifest: found.manifest,
                    registry: self.reference.registry.clone(),
                })
            }
            Err(_) => Ok(Some((index, found))),
        }
    }

    async fn look(&mut self, index: usize, known: Option<Digest>) -> Result<Option<Found>, PullError> {
        find(&mut self.places[index], &self.reference, known, self.limit).await
    }

    /// Reads the plugin's file.
    ///
    /// # Errors
    /// When no place gives it.
    pub async fn fetch(&mut self, found: &Found) -> Result<Bytes, PullError> {
        let mut errors = Vec::new();
        for index in self.order() {
            match self.places[index].blob(&found.layer, self.limit).await {
                Ok(bytes) => {
                    note(&errors);
                    return Ok(bytes);
                }
                Err(error) => errors.push(error.into()),
            }
        }
        Err(together(errors))
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
    ) -> Result<Vec<Bytes>, PullError> {
        let mut search = Search {
            accepts: &accepts,
            signatures: Vec::new(),
            error: None,
        };
        let mut errors = Vec::new();
        let mut failed = false;
        for index in self.order() {
            let place = &mut self.places[index];
            // A mirror may not have copied them yet, or have those of others.
            if search.at(place, found).await {
                return Ok(search.signatures);
            }
            let error = search.error.take();
            failed |= index + 1 == self.places.len() && error.is_some();
            errors.extend(error);
        }
        if search.signatures.is_empty() && failed {
            return Err(together(errors));
        }
        note(&errors);
        Ok(search.signatures)
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

/// The search for a signature that is accepted. Everyone who may push can add signatures: one that cannot be read does
/// not hide the others, and the newest come first.
struct Search<'a> {
    accepts: &'a (dyn Fn(&[u8]) -> bool + Sync),
    signatures: Vec<Bytes>,
    /// The last error at this place.
    error: Option<PullError>,
}

impl Search<'_> {
    /// Searches one place; returns whether a signature is accepted.
    async fn at(&mut self, place: &mut Repository, found: &Found) -> bool {
        self.cosign(place, found).await || self.referrers(place, found).await
    }

    /// Searches the signatures of cosign, which have a tag of their own.
    async fn cosign(&mut self, place: &mut Repository, found: &Found) -> bool {
        let tag = Version::Tag(format!("{}.sig", referrers_tag(found.manifest)));
        let list = self.or_note(place.optional(&tag).await).flatten();
        // A tag of this name that is something else is not a signature.
        let layers = list
            .and_then(|list| artifact::listed(&list).ok())
            .unwrap_or_default();
        let mut signed = layers
            .into_iter()
            .rev()
            .filter(|layer| layer.media_type == SIMPLE_SIGNING)
            .take(MAX_SIGNATURES)
            .peekable();
        if signed.peek().is_none() {
            return false;
        }
        let manifest = self.or_note(cosign_manifest(place, found).await);
        let Some(manifest) = manifest else {
            return false;
        };
        for layer in signed {
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
            if self.is_accepted(document.map_err(PullError::from)) {
                return true;
            }
        }
        false
    }

    /// Searches the signatures that refer to the plugin.
    async fn referrers(&mut self, place: &mut Repository, found: &Found) -> bool {
        let index = self.or_note(place.referrers(found.manifest).await).flatten();
        let listed = index.map(|index| artifact::listed(&index).map_err(|error| unusable(found, error)));
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
    fn is_accepted(&mut self, read: Result<Bytes, PullError>) -> bool {
        let Some(signature) = self.or_note(read) else {
            return false;
        };
        let accepted = (self.accepts)(&signature);
        self.signatures.push(signature);
        accepted
    }

    /// Returns what was read, or notes why it was not.
    fn or_note<T, E: Into<PullError>>(&mut self, read: Result<T, E>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(error) => {
                let error = error.into();
                debug!("a signature is passed over: {error}");
                self.error = Some(error);
                None
            }
        }
    }
}

/// Reads the manifest that is kept with a signature of cosign.
async fn cosign_manifest(place: &mut Repository, found: &Found) -> Result<Bytes, PullError> {
    let (_, manifest) = place.manifest(&Version::Digest(found.manifest)).await?;
    // Base64 takes a third more, and the payload takes the rest.
    let (size, limit) = (manifest.len(), SIGNATURE_LIMIT / 2);
    if size > limit {
        return Err(unusable(found, ArtifactError::TooLargeForCosign { size, limit }));
    }
    Ok(manifest)
}

/// Whether what refers to a plugin may be a signature of it. A bundle may also state something else about the plugin, such as
/// where it was built; cosign says so in the list.
fn is_signature(referrer: &Descriptor) -> bool {
    let states = referrer
        .annotations
        .as_ref()
        .and_then(|it| it.get(PREDICATE_TYPE));
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
) -> Result<Option<Bytes>, PullError> {
    let (_, manifest) = place.manifest(&Version::Digest(referrer)).await?;
    let layers = artifact::layers(&manifest).map_err(|error| unusable(found, error))?;
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

fn unusable(found: &Found, error: ArtifactError) -> PullError {
    PullError::Artifact {
        reference: format!("the signature of {}", found.manifest),
        error,
    }
}
