//! What the tests of this crate and of those above share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{ControllerConfig, DEFAULT_BACKOFF, DEFAULT_PROVING, DEFAULT_WRITES};
use operator_host_contract::Kind;
use operator_host_core::child_rules::{ChildRules, Removal};
use operator_host_runtime::Limits;

/// Returns the configuration of a controller of Shops with children of several kinds.
pub fn config() -> ControllerConfig {
    ControllerConfig {
        name: "shop".into(),
        id: "shop".into(),
        parent: kind("example.com/v1", "Shop"),
        decorates: None,
        plugin: PathBuf::new().into(),
        rules: ChildRules {
            children: BTreeMap::from([
                (kind("v1", "Pod"), Removal::Delete),
                (kind("v1", "Secret"), Removal::Delete),
                (kind("v1", "PersistentVolumeClaim"), Removal::Retain),
                (kind("v1", "Node"), Removal::Delete),
                (kind("example.com/v1", "Missing"), Removal::Delete),
            ]),
            generated: Removal::Retain,
            other_namespaces: std::iter::once("spare".to_owned()).collect(),
            adopt: false,
            allow: Default::default(),
        },
        reads: Default::default(),
        concurrency: 1,
        resync: Duration::from_secs(1),
        backoff: DEFAULT_BACKOFF,
        writes: DEFAULT_WRITES,
        release_after: None,
        limits: Limits::DEFAULT,
        trust: Default::default(),
        service_account: None,
        proving: DEFAULT_PROVING,
        definitions: Default::default(),
        uid: None,
    }
}

fn kind(api_version: &str, kind: &str) -> Kind {
    Kind::new(api_version, kind)
}
