//! The key that proves which Secrets this host generated. It is stored in a Secret in the host's own namespace,
//! read when it is first needed, and created by the leader when it is missing. [`operator_host_desired::provenance`] describes
//! the proof.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::info;

use operator_host_cluster::client::{Writer, chain};
use operator_host_cluster::refusal::refusal;
use operator_host_core::object::NamespacedName;
use operator_host_desired::provenance::{KEY_SECRET, Key, SecretProof};

/// The field of the Secret that holds the key.
const ENTRY: &str = "key";
const KEY_BYTES: usize = 32;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why it cannot be verified whether a Secret was generated.
#[derive(Clone, Debug, Error)]
pub enum ProvenanceError {
    /// The key can be neither read nor created.
    #[error(
        "cannot {verb} the Secret {secret}, whose key proves which Secrets this host generated: {message}; no \
         Secret is generated until this succeeds (`operator-host rbac` prints the permissions)"
    )]
    Request {
        /// `read` or `create`.
        verb: &'static str,
        /// The Secret.
        secret: NamespacedName,
        /// The error of the API server.
        message: String,
    },
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
pub struct Provenance {
    client: Client,
    secret: NamespacedName,
    key: OnceLock<Key>,
    loading: Mutex<()>,
}

impl Provenance {
    /// Creates the state for the key in this namespace. No request is sent yet.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            secret: NamespacedName {
                namespace: Some(namespace.to_owned()),
                name: KEY_SECRET.to_owned(),
            },
            key: OnceLock::new(),
            loading: Mutex::default(),
        }
    }

    /// Returns the current proof.
    #[must_use]
    pub fn proof(&self) -> SecretProof<'_> {
        SecretProof::Key(self.key.get())
    }

    /// Reports whether the key has been read.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.key.get().is_some()
    }

    /// Returns the key, which is read once. The leader passes a writer, which creates the key when it is missing.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn load(&self, writer: Option<&Writer>) -> Result<&Key, ProvenanceError> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let _one_at_a_time = self.loading.lock().await;
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        let key = match (self.read().await?, writer) {
            (Some(key), _) => key,
            (None, Some(writer)) => match self.create(writer).await? {
                Some(key) => key,
                // Another replica was faster.
                None => self.read().await?.ok_or_else(|| self.missing())?,
            },
            (None, None) => return Err(self.missing()),
        };
        Ok(self.key.get_or_init(|| Key::new(&key)))
    }

    fn missing(&self) -> ProvenanceError {
        ProvenanceError::Missing(self.secret.clone())
    }

    async fn read(&self) -> Result<Option<Vec<u8>>, ProvenanceError> {
        let api = self.api(&self.client);
        let secret = match timeout(REQUEST_TIMEOUT, api.get_opt(KEY_SECRET)).await {
            Ok(Ok(Some(secret))) => secret,
            Ok(Ok(None)) => return Ok(None),
            Ok(Err(error)) => return Err(self.failed("read", in_words(&error))),
            Err(_elapsed) => return Err(self.failed("read", silent())),
        };
        let key = secret.data.unwrap_or_default().remove(ENTRY);
        let key = key.filter(|key| key.0.len() == KEY_BYTES);
        let key = key.ok_or_else(|| ProvenanceError::Malformed(self.secret.clone()))?;
        Ok(Some(key.0))
    }

    /// Returns `None` when the Secret already exists.
    async fn create(&self, writer: &Writer) -> Result<Option<Vec<u8>>, ProvenanceError> {
        let mut key = vec![0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(ProvenanceError::Randomness)?;
        let managed_by = (
            "app.kubernetes.io/managed-by".to_owned(),
            "operator-host".to_owned(),
        );
        let secret = Secret {
            metadata: ObjectMeta {
                name: self.secret.name.clone().into(),
                labels: Some(BTreeMap::from([managed_by])),
                ..ObjectMeta::default()
            },
            immutable: Some(true),
            data: Some(BTreeMap::from([(ENTRY.to_owned(), ByteString(key.clone()))])),
            ..Secret::default()
        };
        let params = PostParams {
            field_manager: Some("operator-host".to_owned()),
            ..PostParams::default()
        };
        let api = self.api(&writer.client);
        match timeout(REQUEST_TIMEOUT, api.create(&params, &secret)).await {
            Ok(Ok(_)) => {
                info!(
                    secret = %self.secret,
                    "created the key that proves which Secrets this host generates: keep it, and back it up"
                );
                Ok(Some(key))
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(None),
            Ok(Err(error)) => Err(self.failed("create", in_words(&error))),
            Err(_elapsed) => Err(self.failed("create", silent())),
        }
    }

    fn api(&self, client: &Client) -> Api<Secret> {
        let namespace = self.secret.namespace.as_deref().unwrap_or_default();
        Api::namespaced(client.clone(), namespace)
    }

    fn failed(&self, verb: &'static str, message: String) -> ProvenanceError {
        ProvenanceError::Request {
            verb,
            secret: self.secret.clone(),
            message,
        }
    }
}

fn silent() -> String {
    format!("no answer from the API server within {REQUEST_TIMEOUT:?}")
}

fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status, None),
        other => chain(other),
    }
}
