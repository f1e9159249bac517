//! The API server, as one controller uses it: as whom it sends requests, and how the kinds are served.

use std::sync::Arc;

use kube::Client;

use operator_host_cluster::client::Writer;
use operator_host_cluster::discovery::{Discovery, Resolved};
use operator_host_cluster::resource_client::ResourceClient;
use operator_host_contract::Kind;

/// The clients and the kinds of one controller.
pub struct Cluster {
    /// Reads objects that are in no cache, on leaders and standbys.
    pub client: Client,
    /// Writes the parent's status and finalizers, as the host itself.
    pub writer: Writer,
    /// Writes the children, as the controller's ServiceAccount if it has one.
    pub children_writer: Writer,
    /// Looks up kinds that the configuration does not list.
    pub kinds: Arc<Discovery>,
    /// How the cluster serves the kinds of the parents, of the children and of what the plugin may read.
    pub served: Resolved,
}

impl Cluster {
    /// Returns the requests for the parents, which the host sends as itself.
    pub(crate) fn own_requests(&self) -> ResourceClient<'_> {
        ResourceClient::new(&self.writer, &self.served.parent)
    }

    /// Returns the requests for the children of a kind, which the host sends as the controller's ServiceAccount if it has one;
    /// `None` when the cluster does not serve the kind.
    pub(crate) fn requests_for(&self, kind: &Kind) -> Option<ResourceClient<'_>> {
        let resource = self.served.others.get(kind)?;
        Some(ResourceClient::new(&self.children_writer, resource))
    }
}
