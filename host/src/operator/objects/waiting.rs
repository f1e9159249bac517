//! Controllers whose kind the cluster does not serve. They cost an entry in a list: no watch, no task and no plugin.

use std::collections::{BTreeMap, BTreeSet};

use operator_host_cluster::discovery::Discovery;
use operator_host_config::{Config, ControllerConfig, DefinitionsMode};
use operator_host_contract::Kind;

/// Takes those Controllers out of a configuration that wait for their kind; returns why, by name. One that `runs` is told by its
/// own task when the kind goes, and a plugin that may install its definition must be loaded for that. Of a Controller for several kinds
/// the others run.
pub(in crate::operator) async fn take_out(
    kinds: &Discovery,
    config: &mut Config,
    runs: impl Fn(&ControllerConfig) -> bool,
) -> BTreeMap<String, String> {
    let may_wait = |controller: &ControllerConfig| {
        controller.is_object() && controller.definitions != DefinitionsMode::Install && !runs(controller)
    };
    let asking = config.controllers.iter().filter(|it| may_wait(it));
    let asked: BTreeSet<Kind> = asking.map(|controller| controller.parent.clone()).collect();
    if asked.is_empty() {
        return BTreeMap::new();
    }
    let served = kinds.served(asked.iter()).await;
    let waits = |controller: &ControllerConfig| {
        let parent = &controller.parent;
        if !may_wait(controller) || served.as_ref().is_ok_and(|served| served.contains(parent)) {
            return None;
        }
        Some(match &served {
            Ok(_) => format!("waits for the CustomResourceDefinition of {parent}"),
            Err(error) => format!("cannot look up the kind {parent} in the cluster: {error}"),
        })
    };
    let mut waiting = BTreeMap::new();
    config.controllers.retain(|controller| {
        let why = waits(controller).map(|why| (controller.name.clone(), why));
        let is_kept = why.is_none();
        waiting.extend(why);
        is_kept
    });
    waiting
}
