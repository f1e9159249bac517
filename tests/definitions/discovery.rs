//! What many controllers ask the API server at their start.

use std::fmt::Write as _;

use control_plane::Options;
use control_plane::proxy::{Proxy, Seen};

use crate::support::{Scenario, install, own_cluster};

const CONTROLLERS: usize = 60;

/// Regression: each controller asked for each of its kinds.
#[tokio::test]
async fn many_controllers_that_start_together_ask_for_their_kinds_together() {
    // So many definitions would slow the other scenarios down.
    let cluster = own_cluster(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await;
    let proxy = Proxy::start(&cluster.kubeconfig()).await.expect("a proxy");
    let scenario = Scenario::within(&cluster, "discovery")
        .await
        .with_kubeconfig(proxy.kubeconfig());
    let (mut definitions, mut controllers) = (String::new(), String::new());
    for i in 0..CONTROLLERS {
        let _ = write!(
            definitions,
            "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: many{i}s.many.dev}}\n\
             spec:\n  group: many.dev\n  scope: Namespaced\n  names: {{kind: Many{i}, plural: many{i}s}}\n  versions:\n    \
             - name: v1\n      served: true\n      storage: true\n      schema: {{openAPIV3Schema: {{type: object}}}}\n      \
             subresources: {{status: {{}}}}\n"
        );
        // The plugin is of another kind, which does not matter here.
        let _ = write!(
            controllers,
            "- name: many{i}\n  parent: {{apiVersion: many.dev/v1, kind: Many{i}}}\n  plugin: echo.wasm\n  \
             children: [{{apiVersion: v1, kind: Pod}}, {{apiVersion: v1, kind: Secret}}, {{apiVersion: apps/v1, kind: Deployment}}]\n"
        );
    }
    install(&scenario.client, scenario.folder.path(), &definitions).await;
    let host = scenario.start(&controllers);
    for i in 0..CONTROLLERS {
        host.until_log(&["controller started", &format!("\"many{i}\"")])
            .await;
    }
    let seen = proxy.take_seen();
    let count = |uri: &str| seen.iter().filter(|seen: &&Seen| seen.uri == uri).count();
    assert_eq!(count("/api/v1"), 1);
    assert_eq!(count("/apis/apps/v1"), 1);
    // Each controller looks a few times whether its kind has changed, and they share these answers, too.
    let of_parents = count("/apis/many.dev/v1");
    eprintln!("{of_parents} requests for the parents' group");
    assert!(of_parents < CONTROLLERS / 2, "{of_parents}");
}
