//! Connects to an endpoint: looks its name up, checks the addresses, and connects to one that was checked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::net::{TcpStream, lookup_host};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, service_fn};

use super::address::is_allowed;
use super::transport::Fault;
use operator_host_cluster::client::Fenced;
use operator_host_cluster::term::Term;
use operator_host_config::endpoints::{Endpoint, Network};

/// Makes connections that send nothing once the term is over.
pub(crate) type Connector = HttpsConnector<BoxCloneSyncService<Uri, Fenced<TokioIo<TcpStream>>, BoxError>>;

/// Creates the connector of an endpoint. `authority` is the PEM text of the authorities that it trusts; `reserved` are the API
/// server's addresses.
///
/// # Errors
/// Why the authorities cannot be used.
pub(crate) fn connector(
    endpoint: &Endpoint,
    authority: Option<&[u8]>,
    reserved: &[IpAddr],
    term: &Term,
) -> Result<Connector, String> {
    let mut roots = rustls::RootCertStore::empty();
    match authority {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(pem) => {
            let own: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            let (added, _) = roots.add_parsable_certificates(own.map_err(|error| error.to_string())?);
            if added == 0 {
                return Err("it contains no certificate in PEM".to_owned());
            }
        }
    }
    let tls = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (host, port): (Arc<str>, u16) = (endpoint.url.host.as_str().into(), endpoint.url.port);
    let allowed: Arc<[Network]> = endpoint.allow_addresses.clone().into();
    let (reserved, term): (Arc<[IpAddr]>, Term) = (reserved.into(), term.clone());
    // The URI of the request has the endpoint's host, since nothing else can be asked.
    let connect = service_fn(move |_: Uri| {
        let (host, allowed, reserved, term) = (
            Arc::clone(&host),
            Arc::clone(&allowed),
            Arc::clone(&reserved),
            term.clone(),
        );
        async move {
            let stream = connect(&host, port, &allowed, &reserved).await?;
            Ok::<_, BoxError>(Fenced::new(TokioIo::new(stream), term))
        }
    });
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(BoxCloneSyncService::new(connect)))
}

async fn connect(
    host: &str,
    port: u16,
    allowed: &[Network],
    reserved: &[IpAddr],
) -> Result<TcpStream, Fault> {
    let found = lookup_host((host, port)).await;
    let found: Vec<SocketAddr> = found.map_err(|_| Fault::NoAddress)?.collect();
    let is_allowed = |address: &&SocketAddr| is_allowed(address.ip(), allowed, reserved);
    let mut last = match found.first() {
        Some(first) => Fault::RefusedAddress(first.ip()),
        None => Fault::NoAddress,
    };
    for address in found.iter().filter(is_allowed) {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Without it, a small request waits for the last one's acknowledgement.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = Fault::NoConnection(error.kind()),
        }
    }
    Err(last)
}
