//! The file of endpoints, and the authorities that it names: read again when they change.

use std::path::PathBuf;

use super::connector::connector;
use operator_host_cluster::renewed::Source;
use operator_host_cluster::term::Term;
use operator_host_config::endpoints::{Endpoint, EndpointsConfig};
use operator_host_core::files;

/// The most bytes of a file.
const LIMIT: usize = 1 << 20;

/// Where it is.
pub(crate) struct File(pub(crate) PathBuf);

/// What it says.
pub(crate) struct Loaded {
    /// Each endpoint with the text of its authorities.
    pub(crate) endpoints: Vec<(Endpoint, Option<Vec<u8>>)>,
}

type Contents = (String, Vec<Option<Vec<u8>>>);

impl File {
    fn parse(&self, text: &str) -> Result<EndpointsConfig, String> {
        EndpointsConfig::parse(&self.0, text).map_err(|error| error.to_string())
    }
}

impl Source for File {
    type Contents = Contents;
    type Value = Loaded;
    type Error = String;

    fn what(&self) -> String {
        format!("the file of endpoints {}", self.0.display())
    }

    fn read(&self) -> Result<Contents, String> {
        let read = |path: &PathBuf| {
            files::read(path, LIMIT).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let text = String::from_utf8(read(&self.0)?).map_err(|_| "it is not UTF-8".to_owned())?;
        let config = self.parse(&text)?;
        let authorities = config
            .endpoints
            .iter()
            .map(|endpoint| endpoint.certificate_authority.as_ref());
        let authorities = authorities.map(|path| path.map(read).transpose());
        Ok((text, authorities.collect::<Result<_, _>>()?))
    }

    fn make(&self, (text, authorities): &Contents, _: Option<&Loaded>) -> Result<Loaded, String> {
        let endpoints = self
            .parse(text)?
            .endpoints
            .into_iter()
            .zip(authorities.iter().cloned());
        let endpoints: Vec<_> = endpoints.collect();
        for (endpoint, authority) in &endpoints {
            connector(endpoint, authority.as_deref(), &[], &Term::endless())
                .map_err(|why| format!("`certificateAuthority` of endpoint {:?}: {why}", endpoint.name))?;
        }
        Ok(Loaded { endpoints })
    }
}
