//! The kinds that the API server serves, and how people name them.

use std::pin::pin;

use anyhow::{Context, anyhow};
use futures::stream::{self, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource, APIResourceList};
use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::verbs;

use super::words;
use operator_host_core::object::{is_built_in, kind_for_kubectl};

/// Number of concurrent requests.
pub(super) const CONCURRENCY: usize = 8;

/// One kind, in the version that its group prefers among those that have it.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) api: ApiResource,
    pub(super) is_namespaced: bool,
    pub(super) is_listable: bool,
    singular: String,
    short: Vec<String>,
}

/// What the API server serves.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    /// The core group first, then in the order of the API server, which is its order of preference.
    pub(super) all: Vec<Served>,
    /// The versions that could not be read, as `group/version`, and why: for example of an aggregated API whose server is
    /// down.
    pub(super) unreadable: Vec<(String, String)>,
}

impl Kinds {
    /// Asks the API server for every group. One that cannot be read does not hide the others.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let groups = client.list_api_groups().await;
        let groups = groups.map_err(|error| anyhow!(words(&error)));
        let groups = groups.context("cannot look up the kinds of the cluster")?.groups;
        let versions: Vec<String> = std::iter::once("v1".to_owned())
            .chain(groups.iter().flat_map(versions))
            .collect();
        let lists = stream::iter(&versions).map(|version| async move {
            let list = match version.contains('/') {
                true => client.list_api_group_resources(version).await,
                false => client.list_core_api_resources(version).await,
            };
            (version, list)
        });
        let mut lists = pin!(lists.buffered(CONCURRENCY));
        let mut kinds = Self::default();
        while let Some((version, list)) = lists.next().await {
            match list {
                Ok(list) => kinds.add(version, &list),
                // It has just been removed.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => kinds.unreadable.push((version.clone(), words(&error))),
            }
        }
        Ok(kinds)
    }

    fn add(&mut self, version: &str, list: &APIResourceList) {
        let is_whole = |resource: &&APIResource| !resource.name.contains('/');
        for resource in list.resources.iter().filter(is_whole) {
            let served = served(version, resource);
            let name = (&served.api.group, &served.api.plural);
            if !self.all.iter().any(|it| (&it.api.group, &it.api.plural) == name) {
                self.all.push(served);
            }
        }
    }

    /// Finds a kind as kubectl does: by its plural, its singular, its kind or a short name, each maybe with the group. Several are an
    /// error unless they are part of Kubernetes.
    pub(super) fn find(&self, kind: &str) -> anyhow::Result<&Served> {
        let wanted = kind.to_lowercase();
        let (name, group) = match wanted.split_once('.') {
            Some((name, group)) => (name, Some(group)),
            None => (wanted.as_str(), None),
        };
        let of_group = |served: &&Served| group.is_none_or(|group| served.api.group == group);
        let named = |served: &&Served| {
            served.api.plural == name || served.singular == name || served.api.kind.to_lowercase() == name
        };
        let mut found: Vec<_> = self.all.iter().filter(of_group).filter(named).collect();
        if found.is_empty() {
            let short = |served: &&Served| served.short.iter().any(|short| short == name);
            found = self.all.iter().filter(of_group).filter(short).collect();
        }
        // Such as the Events of two groups: the first is what kubectl takes.
        let first_is_built_in = found.first().is_some_and(|first| is_built_in(&first.api.group));
        match found.as_slice() {
            [only] => Ok(only),
            [first, ..] if first_is_built_in => Ok(first),
            [] => Err(self.not_found(kind)),
            several => {
                let names = several
                    .iter()
                    .map(|it| kind_for_kubectl(&it.api.group, &it.api.plural));
                let names: Vec<_> = names.collect();
                Err(anyhow!("{kind:?} is ambiguous: use {}", names.join(" or ")))
            }
        }
    }

    fn not_found(&self, kind: &str) -> anyhow::Error {
        let unreadable = self.unreadable.iter();
        let unreadable: Vec<_> = unreadable
            .map(|(version, why)| format!("{version}: {why}"))
            .collect();
        match unreadable.join("; ").as_str() {
            "" => anyhow!("the cluster has no kind {kind:?}"),
            unreadable => anyhow!(
                "the cluster has no kind {kind:?} among those that could be read; these could not: {unreadable}"
            ),
        }
    }
}

/// Returns the versions of a group, the preferred one first.
fn versions(group: &APIGroup) -> Vec<String> {
    let preferred = group.preferred_version.iter();
    let mut versions: Vec<String> = Vec::new();
    for version in preferred.chain(&group.versions) {
        if !versions.contains(&version.group_version) {
            versions.push(version.group_version.clone());
        }
    }
    versions
}

fn served(api_version: &str, resource: &APIResource) -> Served {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = GroupVersionKind::gvk(group, version, &resource.kind);
    Served {
        api: ApiResource::from_gvk_with_plural(&kind, &resource.name),
        is_namespaced: resource.namespaced,
        is_listable: resource.verbs.iter().any(|verb| verb == verbs::LIST),
        singular: resource.singular_name.clone(),
        short: resource.short_names.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use operator_host_cluster::testing::{answering, refusal};
    use serde_json::{Value, json};

    use super::*;

    fn list(kinds: &[(&str, &str, &str)]) -> APIResourceList {
        let resources = kinds.iter().map(|(plural, kind, short)| {
            json!({ "name": plural, "singularName": "", "kind": kind, "namespaced": true, "verbs": ["list"], "shortNames": [short] })
        });
        let resources: Vec<Value> = resources.collect();
        serde_json::from_value(json!({ "groupVersion": "", "resources": resources })).unwrap()
    }

    /// A version, and the plural, the kind and the short name of each of its kinds.
    type Group<'a> = (&'a str, &'a [(&'a str, &'a str, &'a str)]);

    fn kinds(groups: &[Group<'_>]) -> Kinds {
        let mut all = Kinds::default();
        for (version, kinds) in groups {
            all.add(version, &list(kinds));
        }
        all
    }

    #[test]
    fn a_kind_is_found_by_each_of_its_names_and_an_ambiguous_one_is_refused() {
        let all = kinds(&[
            ("my-operator.dev/v1", &[("echoes", "Echo", "ec")]),
            ("a.dev/v1", &[("dbs", "Db", "d")]),
            ("b.dev/v1", &[("dbs", "Db", "d")]),
        ]);
        let names = "echo Echo echoes ec echoes.my-operator.dev echo.my-operator.dev ec.my-operator.dev";
        for name in names.split(' ') {
            assert_eq!(all.find(name).unwrap().api.kind, "Echo", "{name}");
        }
        assert_eq!(all.find("db.b.dev").unwrap().api.group, "b.dev");
        let ambiguous = all.find("db").err().unwrap().to_string();
        assert_eq!(ambiguous, "\"db\" is ambiguous: use dbs.a.dev or dbs.b.dev");
        let error = all.find("db.c.dev").unwrap_err().to_string();
        assert_eq!(error, "the cluster has no kind \"db.c.dev\"");
    }

    #[test]
    fn of_two_kinds_of_kubernetes_the_first_is_meant_and_a_name_counts_more_than_a_short_one() {
        let all = kinds(&[
            (
                "v1",
                &[("events", "Event", "ev"), ("configmaps", "ConfigMap", "cm")],
            ),
            ("events.k8s.io/v1", &[("events", "Event", "ev")]),
            ("networking.k8s.io/v1", &[("ingresses", "Ingress", "ing")]),
            ("extensions/v1beta1", &[("ingresses", "Ingress", "ing")]),
            ("a.dev/v1", &[("cm", "Cm", "x"), ("events", "Event", "ev")]),
        ]);
        let group = |name: &str| all.find(name).unwrap().api.group.clone();
        assert_eq!(group("event"), "");
        assert_eq!(group("ev"), "");
        assert_eq!(group("ing"), "networking.k8s.io");
        assert_eq!(group("event.events.k8s.io"), "events.k8s.io");
        assert_eq!(group("event.a.dev"), "a.dev");
        assert_eq!(group("cm"), "a.dev");
    }

    /// Regression: nothing was explained while the server of any aggregated API was down.
    #[tokio::test]
    async fn an_api_that_is_down_hides_no_other() {
        const WHY: &str = "the server is currently unable to handle the request";
        let client = answering(|path| {
            let version =
                |text: &str| json!({ "groupVersion": text, "version": text.split('/').next_back() });
            let group = |name: &str, preferred: &str, others: &[&str]| {
                let versions: Vec<_> = others.iter().map(|other| version(other)).collect();
                json!({ "name": name, "versions": versions, "preferredVersion": version(preferred) })
            };
            let served = |kinds: &[(&str, &str, &str)]| (200, serde_json::to_value(list(kinds)).unwrap());
            match path {
                "/apis" => {
                    let groups = [
                        group("a.dev", "a.dev/v2", &["a.dev/v1", "a.dev/v2"]),
                        group("metrics.k8s.io", "metrics.k8s.io/v1", &["metrics.k8s.io/v1"]),
                    ];
                    (200, json!({ "kind": "APIGroupList", "groups": groups }))
                }
                "/api/v1" => served(&[("pods", "Pod", "po")]),
                "/apis/a.dev/v2" => served(&[("dbs", "Db", "d")]),
                "/apis/a.dev/v1" => served(&[("dbs", "Db", "d"), ("olds", "Old", "o")]),
                _ => refusal(503, WHY),
            }
        });
        let kinds = Kinds::read(&client).await.unwrap();
        assert_eq!(kinds.find("db").unwrap().api.api_version, "a.dev/v2");
        assert_eq!(kinds.find("old").unwrap().api.api_version, "a.dev/v1");
        assert_eq!(kinds.find("po").unwrap().api.kind, "Pod");
        let down = ("metrics.k8s.io/v1".to_owned(), WHY.to_owned());
        assert_eq!(kinds.unreadable, [down]);
        let error = kinds.find("nodemetrics.metrics.k8s.io").unwrap_err().to_string();
        assert!(error.ends_with(&format!("metrics.k8s.io/v1: {WHY}")), "{error}");
    }
}
