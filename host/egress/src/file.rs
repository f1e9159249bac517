//! The file of endpoints, and the authorities that it names: read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;

use operator_host_cluster::renewed::Source;
use operator_host_config::endpoints::{Endpoint, EndpointsConfig};
use operator_host_core::files;
use operator_host_telemetry::http_client::tls;

/// The most bytes of a file.
const LIMIT: usize = 1 << 20;

/// Where it is.
pub(crate) struct File(pub(crate) PathBuf);

/// What it says: each endpoint, with whom it trusts.
pub(crate) type Loaded = Vec<(Arc<Endpoint>, ClientConfig)>;

impl File {
    fn parse(&self, text: &str) -> Result<Vec<Endpoint>, String> {
        let config = EndpointsConfig::parse(&self.0, text).map_err(|error| error.to_string())?;
        Ok(config.endpoints)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, LIMIT).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

impl Source for File {
    /// The texts of the file and of the authorities of each endpoint.
    type Contents = (String, Vec<Option<Vec<u8>>>);
    type Value = Loaded;
    type Error = String;

    fn what(&self) -> String {
        format!("the file of endpoints {}", self.0.display())
    }

    fn read(&self) -> Result<Self::Contents, String> {
        let text = String::from_utf8(read(&self.0)?).map_err(|_| "it is not UTF-8".to_owned())?;
        let endpoints = self.parse(&text)?;
        let authorities = endpoints.iter().map(|it| it.certificate_authority.as_deref());
        let authorities = authorities.map(|path| path.map(read).transpose());
        let authorities = authorities.collect::<Result<_, _>>()?;
        Ok((text, authorities))
    }

    fn make(&self, (text, authorities): &Self::Contents) -> Result<Loaded, String> {
        let each = self.parse(text)?.into_iter().zip(authorities);
        let each = each.map(
            |(endpoint, authority)| match tls(authority.is_none(), authority.as_deref()) {
                Ok(tls) => Ok((Arc::new(endpoint), tls)),
                Err(why) => Err(format!(
                    "`certificateAuthority` of endpoint {:?}: {why}",
                    endpoint.name
                )),
            },
        );
        each.collect()
    }
}
