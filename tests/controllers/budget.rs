//! What one tenant can make the host hold, and how tenants take turns.

use super::*;
use crate::support::measure::{self, MB};

impl World {
    /// Installs the definitions of some kinds.
    async fn define(&self, kinds: impl Iterator<Item = String>) {
        let group = "tenant.operator-host.dev";
        let definitions = kinds.map(|kind| definition(&kind, group, &any()).to_string());
        let definitions: Vec<_> = definitions.collect();
        crate::support::install(&self.client, self.folder.path(), &definitions.join("\n---\n")).await;
    }

    /// Applies a Controller of one of these kinds, whose plugin is in a ConfigMap.
    async fn of_kind(&self, name: &str, kind: &str, plugin: Value, more: Value) {
        let parent = json!({"apiVersion": "tenant.operator-host.dev/v1", "kind": kind});
        let spec = json!({"parent": parent, "plugin": {"configMap": plugin}});
        self.controller_of(name, spec, more).await;
    }
}

/// Regression: what waited to be compiled was unpacked, so that 24 ConfigMaps of 2 KB took 752 MB.
#[tokio::test]
async fn plugins_that_wait_to_be_compiled_are_packed() {
    const BOMBS: u32 = 12;
    let world = World::new("controllers-packed").await;
    world
        .define((0..BOMBS).map(|number| format!("Bomb{number}")))
        .await;
    let arguments = ["--memory", "512Mi"];
    let host = world.start_with(&world.configure(CEILINGS), &arguments);
    host.until_log("configuration applied").await;
    let before = measure::resident(&host);
    for number in 0..BOMBS {
        let name = format!("bomb{number}-plugin");
        let packed = operator_host_delivery::pack::Compression::Gzip;
        let packed = packed.pack(&plugin_fixtures::bomb(1_500, number)).unwrap();
        world.put_as(&name, "bomb.wasm.gz", &packed).await;
        let plugin = json!({"name": name, "key": "bomb.wasm"});
        let quickly = json!({"limits": {"compile": "1s"}});
        let (name, kind) = (format!("bomb{number}"), format!("Bomb{number}"));
        world.of_kind(&name, &kind, plugin, quickly).await;
    }
    // Each takes its turn; the others wait for theirs all the while. On a busy machine the clock on the wall ends it first.
    until_true("some are compiled, and the others wait", async || {
        host.log().matches("was not compiled within").count() > 3
    })
    .await;
    let more = (measure::peak(&host) - before) as f64 / MB;
    measure::report(
        "controllers-packed",
        &format!(
            "{BOMBS} plugins of 24 MB that wait to be compiled, 288 MB in all: {more:.0} MB more at the peak"
        ),
    );
    assert!(more < 160.0, "{more} MB");
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn there_are_as_many_controllers_as_the_ceilings_allow_and_the_definition_bounds_each_list_and_text() {
    let world = World::new("controllers-number").await;
    let kinds = |count: usize| -> Vec<_> {
        (0..count)
            .map(|number| json!({"apiVersion": "v1", "kind": format!("K{number}")}))
            .collect()
    };
    let cases = [
        (json!({"children": kinds(101)}), "spec.children"),
        (json!({"reads": kinds(101)}), "spec.reads"),
        (json!({"otherNamespaces": vec!["a"; 101]}), "spec.otherNamespaces"),
        (json!({"resync": "1".repeat(1025)}), "spec.resync"),
    ];
    for (more, field) in cases {
        let mut spec = json!({"parent": {"apiVersion": "a.dev/v1", "kind": "A"}, "plugin": "a.wasm"});
        let fields = spec.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        let object = json!({"apiVersion": "operator-host.dev/v1alpha1", "kind": "Controller",
                            "metadata": {"name": "big"}, "spec": spec});
        let error = world.try_create(CONTROLLER, &object).await.unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
    let few = CEILINGS.replace(
        "ceilings:\n- ",
        "ceilings:\n- configMaps: ['*']\n  controllers: 3\n  controllersPerNamespace: 2\n  ",
    );
    let host = world.start_with(&world.configure(&few), &[]);
    let kinds = ["A", "B", "C", "D", "E"];
    let add = |kind: &'static str, namespace: &'static str| {
        let plugin = json!({"name": "any-plugin", "namespace": namespace});
        let name = kind.to_lowercase();
        let world = &world;
        async move { world.of_kind(&name, kind, plugin, json!({})).await }
    };
    // They wait for their kinds, and count.
    for kind in &kinds[..2] {
        add(kind, "team-a").await;
        world
            .says(&kind.to_lowercase(), "Ready=False KindNotServed")
            .await;
    }
    add("C", "team-a").await;
    let many = "Stalled=True TooMany: already 2 Controllers … namespace team-a … `ceilings[0].controllersPerNamespace`";
    world.says("c", many).await;
    let own = json!({"name": "any-plugin"});
    world.of_kind("d", "D", own.clone(), json!({})).await;
    world.says("d", "Ready=False KindNotServed").await;
    // The age of objects has seconds, and of two of one second nobody says which is older.
    let c = world.get(CONTROLLER, "c").await.unwrap();
    let made = c.metadata.creation_timestamp.unwrap().0;
    until_true("the next second", async || {
        jiff::Timestamp::now().as_second() > made.as_second()
    })
    .await;
    world.of_kind("e", "E", own, json!({})).await;
    let many =
        "Stalled=True TooMany: already 3 Controllers that this entry is for … `ceilings[0].controllers`";
    world.says("e", many).await;
    world.remove(CONTROLLER, "a").await;
    world.says("c", "Ready=False KindNotServed").await;
    world.remove(CONTROLLER, "b").await;
    world.says("e", "Ready=False KindNotServed").await;
    assert_eq!(host.stop().await.code(), Some(0));
}

#[tokio::test]
async fn a_controller_whose_kind_is_not_served_costs_nothing_and_runs_when_it_is() {
    let world = World::new("controllers-waiting").await;
    let host = world.start();
    world.put(&puppet(1)).await;
    let kind = |kind: &str| json!({"parent": {"apiVersion": "later.operator-host.dev/v1", "kind": kind}});
    for number in 0..40 {
        world
            .controller(&format!("later{number}"), kind(&format!("Later{number}")))
            .await;
    }
    world
        .says(
            "later39",
            "Ready=False KindNotServed: later.operator-host.dev/v1/Later39",
        )
        .await;
    let object = world.get(CONTROLLER, "later39").await.unwrap();
    assert!(object.finalizers().is_empty(), "it has never run");
    let log = host.log();
    assert!(
        !log.contains("plugin cannot be used") && !log.contains("plugin loaded"),
        "{log}"
    );
    // Its plugin is not asked for before, and is for another kind.
    let later = definition("Later39", "later.operator-host.dev", &any());
    crate::support::install(&world.client, world.folder.path(), &later.to_string()).await;
    world
        .says(
            "later39",
            "Stalled=True PluginRefused: it reconciles test.operator-host.dev/v1/Puppet",
        )
        .await;
    assert_eq!(host.stop().await.code(), Some(0));
}

/// Regression: 600 Controllers had 241 threads. Each looked at its folder at the same time as all others.
#[tokio::test]
async fn many_controllers_share_the_threads_that_look_at_their_plugins() {
    const MANY: usize = 100;
    let world = World::new("controllers-threads").await;
    world
        .define((0..MANY).map(|number| format!("Many{number}")))
        .await;
    let host = world.start();
    let plugin = json!({"name": "puppet-plugin"});
    for number in 0..MANY {
        let (name, kind) = (format!("many{number}"), format!("Many{number}"));
        world.of_kind(&name, &kind, plugin.clone(), json!({})).await;
    }
    // One change that concerns all of them.
    world.put(&puppet(1)).await;
    for number in 0..MANY {
        world
            .says(&format!("many{number}"), "Stalled=True PluginRefused")
            .await;
    }
    let threads = format!("/proc/{}/task", host.process().id());
    let threads = std::fs::read_dir(threads).unwrap().count();
    measure::report(
        "controllers-threads",
        &format!("{MANY} Controllers: {threads} threads"),
    );
    assert!(threads < 30, "{threads}");
    assert_eq!(host.stop().await.code(), Some(0));
}
