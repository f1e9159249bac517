//! How the API server is reached: address, authorities and credentials. A kubeconfig, the files that it names and those of
//! a ServiceAccount are renewed while the process runs, and every connection follows them.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use kube::Config;
use kube::client::middleware::AuthLayer;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceExt as _};

use super::ClientError;
use crate::renewed::{Renewed, Source};
use operator_host_core::files;
use operator_host_core::sync::lock;

/// A larger file is neither a certificate nor a token.
const LIMIT: usize = 1 << 20;

/// What is needed to send a request.
pub(super) struct Access {
    pub(super) config: Config,
    pub(super) auth: Option<AuthLayer>,
    pub(super) tls: rustls::ClientConfig,
}

/// Where it comes from. It stays the same, and so does the server: caches and terms are about that one.
pub(super) struct Origin {
    server: hyper::Uri,
    /// The context of the kubeconfig; `None` for the pod's ServiceAccount.
    context: Option<KubeConfigOptions>,
    agent: Option<HeaderValue>,
}

/// What the files contain.
pub(super) struct Contents {
    config: Config,
    /// What the kubeconfig says about the user.
    user: Value,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    token: Option<Vec<u8>>,
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        let (own, others) = (&self.config, &other.config);
        own.cluster_url == others.cluster_url
            && own.root_cert == others.root_cert
            && own.accept_invalid_certs == others.accept_invalid_certs
            && own.tls_server_name == others.tls_server_name
            && (&self.user, &self.certificate) == (&other.user, &other.certificate)
            && (&self.key, &self.token) == (&other.key, &other.token)
    }
}

impl Origin {
    /// Takes the configuration that `kubectl` would. `agent` is the user agent.
    pub(super) async fn infer(agent: &str) -> Result<Self, ClientError> {
        let config = Config::infer().await?;
        if let Some(proxy) = &config.proxy_url {
            return Err(ClientError::Proxy(proxy.to_string()));
        }
        let is_in_cluster = config.root_cert_file.is_some();
        let context = Kubeconfig::read().ok().and_then(|file| file.current_context);
        Ok(Self {
            server: config.cluster_url,
            context: (!is_in_cluster).then(|| KubeConfigOptions {
                context,
                ..KubeConfigOptions::default()
            }),
            // The identity contains a host name; ignore one that is not a valid header value.
            agent: HeaderValue::from_str(agent).ok(),
        })
    }
}

impl Source for Origin {
    type Contents = Contents;
    type Value = Access;
    type Error = ClientError;

    fn what(&self) -> String {
        "the configuration of the connection to the API server".into()
    }

    fn read(&self) -> Result<Contents, ClientError> {
        let mut config = match &self.context {
            None => Config::incluster().map_err(|error| ClientError::Renewed(error.to_string()))?,
            Some(context) => {
                let read = Config::from_kubeconfig(context).now_or_never();
                // It reads files, and waits for nothing.
                let read = read.ok_or_else(|| ClientError::Renewed("it is not there yet".into()))?;
                read.map_err(|error| ClientError::Renewed(error.to_string()))?
            }
        };
        // Its contents are in `root_cert`.
        config.root_cert_file = None;
        let auth = &config.auth_info;
        let file = |path: &Option<String>| {
            let read = path.as_ref().map(|path| {
                let read = files::read(path.as_ref(), LIMIT);
                read.map_err(|error| ClientError::Renewed(format!("cannot read {path}: {error}")))
            });
            read.transpose()
        };
        Ok(Contents {
            user: serde_json::to_value(auth).map_err(|error| ClientError::Renewed(error.to_string()))?,
            certificate: file(&auth.client_certificate)?,
            key: file(&auth.client_key)?,
            token: file(&auth.token_file)?,
            config,
        })
    }

    fn make(&self, contents: &Contents) -> Result<Access, ClientError> {
        let mut config = contents.config.clone();
        config.apply_debug_overrides();
        if config.cluster_url != self.server {
            return Err(ClientError::OtherServer(config.cluster_url.to_string()));
        }
        config
            .headers
            .extend(self.agent.clone().map(|agent| (USER_AGENT, agent)));
        let mut authorized = config.clone();
        if let Some(token) = &contents.token {
            // As `kubectl` reads it: a file that was written by hand ends with a newline.
            let token = String::from_utf8_lossy(token).trim().to_owned();
            HeaderValue::from_str(&token)
                .map_err(|_| ClientError::Renewed("the token is no text for a header".into()))?;
            authorized.auth_info.token = Some(token.into());
            authorized.auth_info.token_file = None;
        }
        let access = Access {
            auth: authorized.auth_layer()?,
            tls: config.rustls_client_config()?,
            config,
        };
        super::https(&access)?;
        Ok(access)
    }
}

/// What was made last, and of which access.
type Made<T> = Option<(Arc<Access>, T)>;
type Make<T> = dyn Fn(&Arc<Access>) -> Result<T, ClientError> + Send + Sync;

/// What is made of the access, and made again when that is another one: requests in progress keep theirs. Clones share it.
#[derive(Clone)]
pub(super) struct Renewable<T> {
    made: Arc<Mutex<Made<T>>>,
    make: Arc<Make<T>>,
}

impl<T: Clone> Renewable<T> {
    pub(super) fn new(make: impl Fn(&Arc<Access>) -> Result<T, ClientError> + Send + Sync + 'static) -> Self {
        Self {
            made: Arc::default(),
            make: Arc::new(make),
        }
    }

    pub(super) fn of(&self, access: &Arc<Access>) -> Result<T, ClientError> {
        let mut made = lock(&self.made);
        if let Some((of, value)) = &*made
            && Arc::ptr_eq(of, access)
        {
            return Ok(value.clone());
        }
        let value = (self.make)(access)?;
        *made = Some((Arc::clone(access), value.clone()));
        Ok(value)
    }
}

/// Sends requests in one way.
pub(super) type Stack = BoxCloneService<Request<Body>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// Sends each request in the way that the files demand at that time.
#[derive(Clone)]
pub(super) struct Renewing {
    access: Arc<Renewed<Origin>>,
    stack: Renewable<Stack>,
}

impl Renewing {
    pub(super) fn new(access: Arc<Renewed<Origin>>, stack: Renewable<Stack>) -> Result<Self, ClientError> {
        stack.of(&access.current())?;
        Ok(Self { access, stack })
    }
}

impl Service<Request<Body>> for Renewing {
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.stack.of(&self.access.current()) {
            Ok(stack) => stack.oneshot(request).boxed(),
            Err(error) => futures::future::err(error.into()).boxed(),
        }
    }
}
