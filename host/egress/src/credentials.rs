//! What identifies this process to an endpoint: read from a Secret, kept for a while, and never shown.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::header::{HeaderName, HeaderValue};
use k8s_openapi::ByteString;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::secrets;
use super::status::Stop;
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_config::endpoints::{Endpoint, Form};
use operator_host_core::sync::lock;

/// How long what was read is used. A server that refuses it ends that.
const KEPT: Duration = Duration::from_secs(30);
/// A shorter text is not searched for in what is reported: it would be found by chance.
const SHORTEST: usize = 4;

/// One header, and the texts in it that nobody may see.
pub(crate) struct Credential {
    pub(crate) header: HeaderName,
    pub(crate) value: HeaderValue,
    hidden: Vec<String>,
}

/// The credential of an endpoint as it was last read.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Option<(Instant, Arc<Credential>)>>);

impl Kept {
    /// Returns the credential for an endpoint, if it needs one.
    pub(crate) async fn get(
        &self,
        endpoint: &Endpoint,
        secrets: &ResourceClient<'_>,
    ) -> Result<Option<Arc<Credential>>, Stop> {
        let Some(of) = &endpoint.credentials else {
            return Ok(None);
        };
        let known = lock(&self.0).clone();
        if let Some((_, credential)) = known.filter(|(read, _)| read.elapsed() < KEPT) {
            return Ok(Some(credential));
        }
        let secret = secrets::read(secrets, &of.namespace, &of.name).await?;
        let credential = Arc::new(Credential::new(&of.form, &secret)?);
        *lock(&self.0) = Some((Instant::now(), Arc::clone(&credential)));
        Ok(Some(credential))
    }

    /// Reads it again the next time. Returns whether it is older than a moment, so that reading it may help.
    pub(crate) fn forget(&self) -> bool {
        let known = lock(&self.0).take();
        known.is_some_and(|(read, _)| read.elapsed() > Duration::from_secs(1))
    }
}

impl Credential {
    fn new(form: &Form, secret: &DynamicObject) -> Result<Self, Stop> {
        let value = |key: &str| {
            secrets::value(secret, key).map(|text| text.trim_end_matches(['\n', '\r']).to_owned())
        };
        let (header, text, hidden) = match form {
            Form::Header(name, key) => {
                let token = value(key)?;
                (name.as_str(), token.clone(), vec![token])
            }
            Form::Bearer(key) => {
                let token = value(key)?;
                ("authorization", format!("Bearer {token}"), vec![token])
            }
            Form::Basic => {
                let (user, password) = (value("username")?, value("password")?);
                let encoded = json!(ByteString(format!("{user}:{password}").into_bytes()));
                let encoded = encoded.as_str().unwrap_or_default().to_owned();
                (
                    "authorization",
                    format!("Basic {encoded}"),
                    vec![password, encoded],
                )
            }
        };
        let header = HeaderName::try_from(header);
        let header = header.map_err(|_| secrets::unusable(secret, "cannot be sent"))?;
        let mut value = HeaderValue::try_from(text).map_err(|_| {
            secrets::unusable(secret, "has a value with characters that a header cannot have")
        })?;
        value.set_sensitive(true);
        Ok(Self {
            header,
            value,
            hidden,
        })
    }

    /// Reports whether a value contains the credential: a server may send back what it was sent.
    pub(crate) fn is_in(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.is_within(text),
            Value::Array(values) => values.iter().any(|value| self.is_in(value)),
            Value::Object(fields) => fields
                .iter()
                .any(|(key, value)| self.is_within(key) || self.is_in(value)),
            _ => false,
        }
    }

    fn is_within(&self, text: &str) -> bool {
        let mut hidden = self.hidden.iter().filter(|hidden| hidden.len() >= SHORTEST);
        hidden.any(|hidden| text.contains(hidden))
    }
}
