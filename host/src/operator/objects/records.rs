//! Which controller reconciles a kind, as its definition records. The record outlives the host and the controller.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use kube::core::DynamicObject;

use operator_host_cluster::cache::Reflector;
use operator_host_core::object::{Selector, annotation, holder_annotation, live_annotation};

/// The group and the name of a kind. Its versions are one kind.
pub(super) type GroupKind = (String, String);

/// The records of all kinds.
pub(in crate::operator) type KindRecords = BTreeMap<GroupKind, KindRecord>;

/// The record of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct KindRecord {
    /// The UID of the Controller that reconciles the kind, or did so last.
    pub(super) uid: String,
    /// The names of all controllers that ever did.
    names: BTreeSet<String>,
    definition: String,
    key: String,
}

/// Reads the definitions. `installation` distinguishes this host from others in the cluster.
pub(super) fn read(definitions: &Reflector, installation: &str) -> KindRecords {
    let definitions = definitions.select(None, &Selector::default());
    let records = definitions.iter().map(|it| KindRecord::of(it, installation));
    records.flatten().collect()
}

impl KindRecord {
    pub(super) fn of(definition: &DynamicObject, installation: &str) -> Option<(GroupKind, Self)> {
        let (name, key) = (definition.name_any(), holder_annotation(installation));
        let (kind, uid) = annotation(definition, &key)?.split_once('/')?;
        // A definition's name is `plural.group`.
        let kind = (name.split_once('.')?.1.to_owned(), kind.to_owned());
        let prefix = live_annotation(installation, "");
        let names = definition.annotations().keys();
        let names = names.filter_map(|key| Some(key.strip_prefix(&prefix)?.to_owned()));
        let record = Self {
            uid: uid.to_owned(),
            names: names.collect(),
            definition: name,
            key,
        };
        Some((kind, record))
    }

    /// Reports whether another controller of this name left something that this one would take over.
    pub(super) fn is_past(&self, name: &str, uid: &str) -> bool {
        self.uid != uid && self.names.contains(name)
    }

    /// Returns the command that lets a Controller take over.
    pub(super) fn command(&self, kind: &str, uid: &str) -> String {
        format!(
            "kubectl annotate crd {} {}={kind}/{uid} --overwrite",
            self.definition, self.key
        )
    }
}
