//! What an External is called, and its fields: a resource outside of the cluster, as an object in it (`kind: External`).

use operator_host_contract::Kind;

use super::object::{GROUP, VERSION};

/// Its kind.
pub const KIND: &str = "External";
/// Its plural.
pub const PLURAL: &str = "externals";
/// The finalizer of one that `unset` undoes.
pub const FINALIZER: &str = "operator-host.dev/egress";
/// Who writes status, finalizers and saved Secrets.
pub const FIELD_MANAGER: &str = "operator-host-egress";
/// The label of a Secret whose values may be sent: to the endpoint of this name.
pub const ENDPOINT_LABEL: &str = "operator-host.dev/endpoint";
/// The most bytes of `status.values`.
pub const MAX_VALUES: usize = 16 << 10;

/// Returns the kind.
pub fn kind() -> Kind {
    Kind::new(format!("{GROUP}/{VERSION}"), KIND)
}
