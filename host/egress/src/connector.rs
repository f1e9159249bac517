//! Connects to an endpoint: looks its name up, checks the addresses, and connects to one that was checked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::{TcpStream, lookup_host};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, service_fn};

use super::address::is_allowed;
use super::status::Stop;
use operator_host_cluster::client::Fenced;
use operator_host_cluster::term::Term;
use operator_host_config::endpoints::Endpoint;

/// Sends nothing once the term is over.
type Connection = Fenced<TokioIo<TcpStream>>;
/// Makes connections to one endpoint.
pub(crate) type Connector = HttpsConnector<BoxCloneSyncService<Uri, Connection, BoxError>>;

/// Creates the connector of an endpoint. `reserved` are the API server's addresses.
pub(crate) fn connector(
    endpoint: &Arc<Endpoint>,
    tls: ClientConfig,
    reserved: &Arc<[IpAddr]>,
    term: &Term,
) -> Connector {
    let (endpoint, reserved, term) = (Arc::clone(endpoint), Arc::clone(reserved), term.clone());
    // The URI of the request has the endpoint's host, since nothing else can be asked.
    let connect =
        service_fn(move |_: Uri| connect(Arc::clone(&endpoint), Arc::clone(&reserved), term.clone()));
    HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(BoxCloneSyncService::new(connect))
}

async fn connect(
    endpoint: Arc<Endpoint>,
    reserved: Arc<[IpAddr]>,
    term: Term,
) -> Result<Connection, BoxError> {
    let no_address = || Stop::failed("NameNotFound", "its name cannot be resolved");
    let found = lookup_host((&*endpoint.url.host, endpoint.url.port)).await;
    let is_allowed = |it: &SocketAddr| is_allowed(it.ip(), &endpoint.allow_addresses, &reserved);
    let (allowed, refused): (Vec<_>, Vec<_>) = found.map_err(|_| no_address())?.partition(is_allowed);
    if allowed.is_empty() {
        let refused = refused.first().ok_or_else(no_address)?.ip();
        let why = format!(
            "its name leads to {refused}, which is an address of this machine, the link, a cloud's metadata or the API server; if \
             it is meant, an administrator names it under `allowAddresses`"
        );
        return Err(Stop::refused("AddressRefused", why).into());
    }
    let stream = TcpStream::connect(&*allowed).await.map_err(|error| {
        let why = format!("it cannot be reached: {}", error.kind());
        Stop::failed("NotReached", why)
    })?;
    // Without it, a small request waits for the last one's acknowledgement.
    let _ = stream.set_nodelay(true);
    Ok(Fenced::new(TokioIo::new(stream), term))
}
