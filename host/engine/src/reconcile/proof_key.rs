//! The key that proves which Secrets this host generated. It is stored in a Secret in the host's own namespace,
//! read when it is first needed, and created by the leader when it is missing. [`operator_host_desired::provenance`] describes
//! the proof.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::json;
use thiserror::Error;
use tokio::sync::OnceCell;
use tracing::info;

use operator_host_cluster::api_error::ApiError;
use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::ResolvedKind;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_core::object::{NamespacedName, secret};
use operator_host_desired::provenance::{KEY_SECRET, Key, SecretProof};

/// The field of the Secret that holds the key.
const ENTRY: &str = "key";
const KEY_BYTES: usize = 32;

/// Why it cannot be verified whether a Secret was generated.
#[derive(Clone, Debug, Error)]
pub enum ProofKeyError {
    /// The key can be neither read nor created.
    #[error(
        "{0}. Its key proves which Secrets this host generated; no Secret is generated until this succeeds (`operator-host \
         rbac` prints the permissions)"
    )]
    Request(#[from] ApiError),
    /// The Secret was changed by hand.
    #[error(
        "the Secret {0}, which proves what this host generated, has no key of {KEY_BYTES} bytes in `data.{ENTRY}`: restore \
         it, or delete it to get a new key, with which the host does not recognize earlier Secrets"
    )]
    Malformed(NamespacedName),
    /// Only the leader creates the Secret.
    #[error("the Secret {0}, which proves what a host generated, does not exist")]
    Missing(NamespacedName),
    /// The operating system provides no randomness.
    #[error("the operating system provides no randomness: {0}")]
    Randomness(getrandom::Error),
}

/// The key, read when it is first needed.
pub struct ProofKey {
    reader: Writer,
    secrets: ResolvedKind,
    secret: NamespacedName,
    key: OnceCell<Key>,
}

impl ProofKey {
    /// Creates the state for the key in this namespace. No request is sent yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            reader: client.into(),
            secrets: ResolvedKind::built_in::<Secret>(true, false),
            secret: NamespacedName::new(Some(namespace.to_owned()), KEY_SECRET),
            key: OnceCell::new(),
        }
    }

    /// Returns the current proof.
    pub fn proof(&self) -> SecretProof<'_> {
        SecretProof::Key(self.key.get())
    }

    /// Reports whether the key has been read.
    pub fn is_known(&self) -> bool {
        self.key.get().is_some()
    }

    /// Returns the key, which is read once. The leader passes a writer, which creates the key when it is missing.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn load(&self, writer: Option<&Writer>) -> Result<&Key, ProofKeyError> {
        let load = || async {
            let key = match (self.read().await?, writer) {
                (None, Some(writer)) => match self.create(writer).await? {
                    None => self.read().await?, // Another replica was faster.
                    created => created,
                },
                (key, _) => key,
            };
            let key = key.ok_or_else(|| ProofKeyError::Missing(self.secret.clone()))?;
            Ok(Key::new(&key))
        };
        self.key.get_or_try_init(load).await
    }

    async fn read(&self) -> Result<Option<Vec<u8>>, ProofKeyError> {
        let secrets = ResourceClient::new(&self.reader, &self.secrets);
        let Some(secret) = secrets.get(&self.secret).await? else {
            return Ok(None);
        };
        match secret::decoded(&secret.data["data"][ENTRY]) {
            Some(key) if key.len() == KEY_BYTES => Ok(Some(key)),
            _ => Err(ProofKeyError::Malformed(self.secret.clone())),
        }
    }

    /// Returns `None` when the Secret already exists.
    async fn create(&self, writer: &Writer) -> Result<Option<Vec<u8>>, ProofKeyError> {
        let mut key = vec![0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(ProofKeyError::Randomness)?;
        let data = json!({ "immutable": true, "data": { ENTRY: ByteString(key.clone()) } });
        let mut secret = DynamicObject::new(KEY_SECRET, &self.secrets.api).data(data);
        let (label, value) = ("app.kubernetes.io/managed-by", "operator-host");
        secret.labels_mut().insert(label.to_owned(), value.to_owned());
        let secrets = ResourceClient::new(writer, &self.secrets);
        match secrets.create(&self.secret, secret, "operator-host").await {
            Ok(_) => {
                info!(
                    secret = %self.secret,
                    "created the key that proves which Secrets this host generates: keep it, and back it up"
                );
                Ok(Some(key))
            }
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
