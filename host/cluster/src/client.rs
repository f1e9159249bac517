//! The connection to the API server.

mod access;
mod fence;
mod measured;
mod multiplexed;
mod pace;
mod reach;
mod retry_after;
mod server_clock;
pub mod warnings;
mod write_limits;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes};
use hyper::{Request, Response, Uri};
use hyper_rustls::builderstates::WantsProtocols1;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use operator_host_runtime::fair::Fair;
use thiserror::Error;
use tower::{BoxError, Service, ServiceExt as _};

use crate::renewed::Renewed;
use crate::term::Term;
use operator_host_config::ServiceAccount;
use operator_host_config::leadership::Timing;
use operator_host_telemetry::metrics::Metrics;

use self::access::{Access, Origin, Renewable, Renewing};
pub use self::fence::{Deposed, Fenced, is_deposed};
use self::fence::{Fencing, fencing};
use self::measured::Measured;
use self::multiplexed::Multiplexed;
pub use self::pace::Pace;
use self::reach::Reach;
pub use self::reach::{Unreached, chain, said};
pub use self::server_clock::ServerClock;
pub use self::write_limits::WriteLimits;

/// Path of a pod's token. Source: Kubernetes, "Accessing the Kubernetes API from a Pod".
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Idle time before the first TCP keepalive probe, and the interval between probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How often an API server that is not reached is asked, and how long it may take.
const ASK: Duration = Duration::from_secs(5);
/// The most unused connections over HTTP/1.1, where each watch has its own.
const MAX_IDLE: usize = 4;
/// The most unused connections of writes, and how long each is kept. One takes some 50 KB; a controller that writes all the time
/// uses some 30.
const KEPT: (usize, Duration) = (32, Duration::from_secs(5));

/// Why no client could be created.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Neither `KUBECONFIG`, nor `~/.kube/config`, nor a service account names a cluster.
    #[error("no cluster to connect to: {0}; set KUBECONFIG, or run inside a cluster with a service account")]
    Config(#[from] kube::config::InferConfigError),
    /// The configuration requires a proxy, which this host does not support.
    #[error(
        "the cluster's configuration asks for the proxy {0}, which operator-host does not support; leave `proxy-url` out"
    )]
    Proxy(String),
    /// The configuration names a cluster, but cannot be used.
    #[error("cannot use the cluster's configuration: {0}")]
    Setup(#[from] kube::Error),
    /// `tls-server-name` is no name.
    #[error("cannot use the cluster's configuration: `tls-server-name` is {0:?}, which is no server name")]
    ServerName(String),
    /// A file of the configuration cannot be used.
    #[error("cannot use the cluster's configuration: {0}")]
    Renewed(String),
    /// The configuration has changed, and names another server.
    #[error("it names another server, {0}; restart the host to use that one")]
    OtherServer(String),
}

/// Creates a client for commands that only read.
pub async fn connect(metrics: Arc<Metrics>) -> Result<Client, ClientError> {
    let agent = concat!("operator-host/", env!("CARGO_PKG_VERSION"));
    Connection::infer(metrics, agent).await?.client()
}

/// The transport of requests: hyper's client with TLS, behind a fence.
type Transport = legacy::Client<HttpsConnector<Fencing>, Body>;

/// The connection to the API server and the clients that use it.
pub struct Connection {
    access: Arc<Renewed<Origin>>,
    default_namespace: String,
    is_in_pod: bool,
    transport: Renewable<Transport>,
    metrics: Arc<Metrics>,
    reach: Reach,
    clock: ServerClock,
    warnings: warnings::Logged,
    /// The writes of all controllers.
    writes: Fair,
}

impl Connection {
    /// Connects as `kubectl` would: with `KUBECONFIG`, `~/.kube/config`, or the pod's service account. `agent` is
    /// the user agent that the audit log shows.
    ///
    /// kube's default connector leaves Nagle's algorithm on, which costs 40 ms at the first list and again at the
    /// first write. This function builds the connector itself, with `TCP_NODELAY`; the layers above it are kube's.
    ///
    /// # Errors
    /// When there is no configuration or it cannot be used. No request is sent yet.
    pub async fn infer(metrics: Arc<Metrics>, agent: &str) -> Result<Self, ClientError> {
        // `install_default` fails only when a provider is already installed, which is fine.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let access = Arc::new(Renewed::new(Origin::infer(agent).await?)?);
        let config = &access.current().config;
        Ok(Self {
            default_namespace: config.default_namespace.clone(),
            is_in_pod: config.auth_info.token_file.as_deref() == Some(POD_TOKEN),
            access,
            transport: transport(&Term::endless(), None),
            metrics,
            reach: Reach::default(),
            clock: ServerClock::default(),
            warnings: warnings::Logged::default(),
            writes: write_limits::of_all(),
        })
    }

    /// Returns the namespace of the pod that this process runs in. `None` outside of a cluster, since the namespace
    /// of a kubeconfig is only its user's default.
    pub fn pod_namespace(&self) -> Option<&str> {
        self.is_in_pod.then_some(&*self.default_namespace)
    }

    /// Returns the URL of the API server.
    pub fn server(&self) -> Uri {
        self.access.current().config.cluster_url.clone()
    }

    /// Returns the host's own client, for reads that a reconcile waits for. When a connection goes dead silently, a request
    /// on it fails at its time limit, and the next one has another connection.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn client(&self) -> Result<Client, ClientError> {
        self.layered(None, self.transport.clone(), Term::endless())
    }

    /// Returns a client like [`Connection::client`] with connections of its own, for the Lease: a renewal must not wait for one
    /// dead connection of other requests after the other.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn lease_client(&self) -> Result<Client, ClientError> {
        self.layered(None, transport(&Term::endless(), None), Term::endless())
    }

    /// Returns the client for watches and discovery, of which a process with many controllers has many at the same time.
    /// They share connections of their own: a long list delays no Lease and no write.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn watch_client(&self) -> Result<Client, ClientError> {
        self.layered(None, Renewable::new(multiplexed), Term::endless())
    }

    /// Returns since when the API server has done nothing for this host; `None` when the last request succeeded.
    pub fn unreached(&self) -> Option<Unreached> {
        self.reach.unreached()
    }

    /// Asks the API server when it has answered nothing for a while or is not reached: who waits for an answer gives up without a
    /// trace, and a host that has nothing to do would not learn that it is away, or back. Never returns.
    pub async fn keep_asking(&self, client: Client) {
        loop {
            tokio::time::sleep(ASK).await;
            if self.unreached().is_some() || self.reach.is_quiet_for(2 * ASK) {
                // `Reach` has the result, but for that.
                let answer = tokio::time::timeout(ASK, client.apiserver_version()).await;
                if answer.is_err() {
                    self.reach.silent(format!("no answer within {ASK:?}"));
                }
            }
        }
    }

    /// Creates the factory for the writers of one term. The writers have their own connections, which send nothing
    /// once the term is over.
    pub fn writer_factory(
        self: &Arc<Self>,
        term: &Term,
        timing: &Timing,
    ) -> Result<WriterFactory, ClientError> {
        let transport = if term.is_elected() {
            // Data that the kernel could not deliver by then must not arrive in another replica's term.
            let undelivered = timing.duration - timing.renew_deadline;
            transport(term, Some(undelivered))
        } else {
            self.transport.clone()
        };
        Ok(WriterFactory {
            connection: Arc::clone(self),
            transport,
            term: term.clone(),
        })
    }

    /// Returns a client that sends its requests through a transport, as an account if one is given.
    fn layered<S, B>(
        &self,
        acts_as: Option<&ServiceAccount>,
        transport: Renewable<S>,
        term: Term,
    ) -> Result<Client, ClientError>
    where
        S: Service<Request<Body>, Response = Response<B>, Error = legacy::Error> + Clone + Send + 'static,
        S::Future: Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (metrics, clock, reach) = (Arc::clone(&self.metrics), self.clock.clone(), self.reach.clone());
        let warnings = self.warnings.clone();
        let user = acts_as.map(ServiceAccount::user);
        let stack = Renewable::new(move |access: &Arc<Access>| {
            let mut config = access.config.clone();
            if let Some(user) = &user {
                let auth = &mut config.auth_info;
                // Set no groups: the API server adds a ServiceAccount's own groups, and no permission to impersonate
                // others is needed.
                auth.impersonate = Some(user.clone());
                (auth.impersonate_groups, auth.impersonate_uid) = (None, None);
                auth.impersonate_user_extra = None;
            }
            let (metrics, term, server) = (Arc::clone(&metrics), term.clone(), config.cluster_url.clone());
            let service = tower::ServiceBuilder::new()
                .layer(config.base_uri_layer())
                .layer_fn(move |service| Measured::new(service, Arc::clone(&metrics), server.clone()))
                .option_layer(access.auth.as_ref())
                .layer(config.extra_headers_layer()?)
                .and_then(retry_after::keep)
                .map_err(BoxError::from)
                .map_response(clock.listen())
                .map_response(warnings.listen())
                .map_request(move |request| fence::bound(request, &term))
                .map_result(reach.listen())
                .service(transport.of(access)?);
            Ok(service.boxed_clone())
        });
        let renewing = Renewing::new(Arc::clone(&self.access), stack)?;
        Ok(ClientBuilder::new(renewing, &*self.default_namespace).build())
    }
}

/// Creates writers; see [`Connection::writer_factory`]. Clones share their connections.
#[derive(Clone)]
pub struct WriterFactory {
    connection: Arc<Connection>,
    transport: Renewable<Transport>,
    term: Term,
}

impl WriterFactory {
    /// Returns the term during which its writers may write.
    pub fn term(&self) -> &Term {
        &self.term
    }

    /// Creates the limits for the writes of one more controller: its own rate, and its part of the writes that all
    /// controllers may send at the same time.
    pub fn write_limits(&self, pace: Pace) -> WriteLimits {
        WriteLimits::new(pace, self.connection.writes.join())
    }

    /// Returns a writer that acts as the host itself, or as a ServiceAccount.
    pub fn writer(&self, acts_as: Option<&ServiceAccount>) -> Result<Writer, ClientError> {
        let client = self
            .connection
            .layered(acts_as, self.transport.clone(), self.term.clone())?;
        Ok(Writer {
            client,
            term: self.term.clone(),
            acts_as: acts_as.cloned(),
            limits: None,
            clock: self.connection.clock.clone(),
        })
    }
}

/// A client for writes, with its identity and its term.
#[derive(Clone)]
pub struct Writer {
    /// The client.
    pub client: Client,
    /// The term during which it may write.
    pub term: Term,
    /// The ServiceAccount it acts as; `None` for the host itself.
    pub acts_as: Option<ServiceAccount>,
    /// The limits of its writes; `None` for no limits.
    pub limits: Option<Arc<WriteLimits>>,
    /// The API server's clock.
    pub clock: ServerClock,
}

impl Writer {
    /// Returns the writer with limits, which other writers may share.
    #[must_use]
    pub fn limited(self, limits: &Arc<WriteLimits>) -> Self {
        Self {
            limits: Some(Arc::clone(limits)),
            ..self
        }
    }
}

/// Creates a writer that acts as the host itself, without a term, for commands that run without other replicas.
impl From<Client> for Writer {
    fn from(client: Client) -> Self {
        Self {
            client,
            term: Term::endless(),
            acts_as: None,
            limits: None,
            clock: ServerClock::default(),
        }
    }
}

fn transport(term: &Term, undelivered: Option<Duration>) -> Renewable<Transport> {
    let term = term.clone();
    Renewable::new(move |access: &Arc<Access>| {
        let https = https(access)?.enable_http1();
        let connector = https.wrap_connector(connector(&access.config, &term, undelivered));
        Ok(legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(KEPT.0)
            .pool_idle_timeout(KEPT.1)
            .build(connector))
    })
}

fn multiplexed(access: &Arc<Access>) -> Result<Multiplexed, ClientError> {
    let https = https(access)?.enable_all_versions();
    let connector = https.wrap_connector(connector(&access.config, &Term::endless(), None));
    Ok(Multiplexed::new(move || {
        legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            // The pool would otherwise forget a connection that watches still use, and the next request would open
            // another one.
            .pool_idle_timeout(None)
            .pool_max_idle_per_host(MAX_IDLE)
            .http2_keep_alive_interval(KEEPALIVE)
            .http2_keep_alive_timeout(KEEPALIVE)
            .build(connector.clone())
    }))
}

/// Creates fenced connections. `undelivered` limits how long the kernel tries to deliver data.
fn connector(config: &Config, term: &Term, undelivered: Option<Duration>) -> Fencing {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    // A watch may be silent for minutes; keepalive distinguishes it from a connection that was cut silently.
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    connector.set_keepalive_retries(Some(2));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(undelivered);
    fencing(connector, term.clone())
}

/// Returns the TLS part of a connector, as kube's own has it, but with the choice of the HTTP version.
fn https(access: &Access) -> Result<HttpsConnectorBuilder<WantsProtocols1>, ClientError> {
    let mut https = HttpsConnectorBuilder::new()
        .with_tls_config(access.tls.clone())
        .https_or_http();
    if let Some(name) = &access.config.tls_server_name {
        let server = name.clone().try_into();
        let server = server.map_err(|_| ClientError::ServerName(name.clone()))?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(server));
    }
    Ok(https)
}
