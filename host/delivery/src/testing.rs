//! What the tests of this crate and of those above share.

use operator_host_contract::{ContractVersion, Description, Kind};

/// Returns the description of a plugin that makes nothing.
pub fn describing(name: &str, version: &str, parent: Kind) -> Description {
    Description {
        contract: ContractVersion::V1,
        name: name.into(),
        version: version.into(),
        parent,
        also: Vec::new(),
        makes: Vec::new(),
        reads: Vec::new(),
        finalizer: false,
        crd: None,
        versions: Vec::new(),
        defaults: false,
        validates: false,
    }
}

/// Returns bytes that cannot be compressed.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}
