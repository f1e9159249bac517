//! Maps kinds to resources without a cluster, as far as the kinds are known.

use std::collections::BTreeMap;

use serde_json::Value;
use thiserror::Error;

use operator_host_cluster::discovery::ResolvedKind;
use operator_host_contract::Kind;
use operator_host_core::crd::known::BuiltIn;

/// The resource of a kind, as RBAC names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural, in lower case.
    pub plural: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// Whether it has the `status` subresource.
    pub has_status: bool,
}

impl Resource {
    /// Returns group and plural.
    pub fn name(&self) -> (&str, &str) {
        (&self.group, &self.plural)
    }

    /// Returns a subresource.
    pub fn part(&self, part: &str) -> Self {
        Self {
            plural: format!("{}/{part}", self.plural),
            ..self.clone()
        }
    }
}

/// The known kinds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources(BTreeMap<Kind, Resource>);

impl Resources {
    /// Adds every version of a CustomResourceDefinition.
    pub fn define(&mut self, crd: &Value) {
        let spec = &crd["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let group = text(&spec["group"]);
        for version in spec["versions"].as_array().into_iter().flatten() {
            let api_version = format!("{group}/{}", text(&version["name"]));
            let kind = Kind::new(api_version, text(&spec["names"]["kind"]));
            let resource = Resource {
                group: group.clone(),
                plural: text(&spec["names"]["plural"]),
                namespaced: spec["scope"] != "Cluster",
                has_status: version["subresources"]["status"].is_object(),
            };
            self.0.insert(kind, resource);
        }
    }

    /// Adds a kind as a cluster serves it.
    pub fn insert(&mut self, kind: Kind, served: &ResolvedKind) {
        let resource = Resource {
            group: served.api.group.clone(),
            plural: served.api.plural.clone(),
            namespaced: served.namespaced,
            has_status: served.has_status,
        };
        self.0.insert(kind, resource);
    }

    /// Returns the plural of a kind in any of its versions.
    pub fn in_any_version(&self, group: &str, name: &str) -> Option<String> {
        let mut all = self.0.iter();
        let defined = all.find(|(kind, resource)| resource.group == group && kind.kind == name);
        let defined = defined.map(|(_, resource)| resource.plural.clone());
        defined.or_else(|| Some(BuiltIn::find(group, name)?.plural.to_owned()))
    }

    /// Returns the resource of a kind.
    ///
    /// # Errors
    /// When no definition contains the kind and it is not built into Kubernetes.
    pub fn of(&self, kind: &Kind) -> Result<Resource, UnknownKind> {
        if let Some(known) = self.0.get(kind) {
            return Ok(known.clone());
        }
        let found = BuiltIn::find(kind.group(), &kind.kind).ok_or_else(|| UnknownKind(kind.clone()))?;
        Ok(Resource {
            group: kind.group().to_owned(),
            plural: found.plural.to_owned(),
            namespaced: found.is_namespaced,
            // Only parents need it, and these are children and reads.
            has_status: false,
        })
    }
}

/// A kind whose plural is unknown.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "the plural of {0} is not known: give its CustomResourceDefinition with --crd FILE, or allow all kinds of the group in `ceilings` by \"*\""
)]
pub struct UnknownKind(pub Kind);
