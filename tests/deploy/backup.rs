//! A backup is restored into another cluster, as Velero does it: objects get other UIDs and no owner references, and custom
//! resources no status.

use crate::support::prelude::*;
use kube::core::ObjectMeta;

const SECRET: &str = "v1/Secret";
const CLAIM: &str = "v1/PersistentVolumeClaim";
const KEY: &str = "operator-host-provenance";

const KINDS: &str = "children: [{apiVersion: v1, kind: ConfigMap}, {apiVersion: v1, kind: Secret}, \
                     {apiVersion: v1, kind: PersistentVolumeClaim}]";

/// What is left of an object when it is restored.
fn restored(object: DynamicObject) -> DynamicObject {
    let DynamicObject {
        types,
        metadata,
        mut data,
    } = object;
    data.as_object_mut().unwrap().remove("status");
    let metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        labels: metadata.labels,
        annotations: metadata.annotations,
        finalizers: metadata.finalizers,
        ..ObjectMeta::default()
    };
    DynamicObject {
        types,
        metadata,
        data,
    }
}

async fn restore(scenario: &Scenario, kind: &str, object: DynamicObject) {
    let created = scenario
        .api(kind)
        .create(&PostParams::default(), &restored(object))
        .await;
    created.expect("the object is restored");
}

/// Waits until every child is applied. The claim is not bound, because no pod uses it.
async fn until_applied(scenario: &Scenario) {
    scenario.until_told("p", "Synced=True Applied").await;
}

fn wanted() -> Value {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}},
    }});
    json!({"response": {
        "children": [config_map("a", "1"), claim],
        "generate": [{"name": "s", "entries": [{"key": "password", "length": 24}]}],
    }})
}

#[tokio::test]
async fn parents_claims_generated_secrets_and_the_key_are_restored_in_another_cluster() {
    let home = Scenario::new("backup-home").await;
    let before = Scenario::new("backup").await;
    let start = |scenario: &Scenario| {
        let config = scenario.config_with("hostNamespace: backup-home", &controller("puppet.wasm", KINDS));
        scenario.start_with(&config, &[])
    };
    let host = start(&before);
    before.puppet("p", wanted()).await;
    until_applied(&before).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let key = home.get(SECRET, KEY).await.expect("the key");
    let mut saved = Vec::new();
    for (kind, name) in [(SECRET, "s"), (CLAIM, "data"), (CONFIG_MAP, "a"), (PUPPET, "p")] {
        saved.push((kind, before.get(kind, name).await.expect(name)));
    }
    let password = saved[0].1.data["data"].clone();

    let cluster = own_cluster(Options::default()).await;
    let home = Scenario::within(&cluster, "backup-home").await;
    let after = Scenario::within(&cluster, "backup").await;
    restore(&home, SECRET, key).await;
    for (kind, object) in saved {
        restore(&after, kind, object).await;
    }
    let claim = after.get(CLAIM, "data").await.unwrap();
    let _host = start(&after);
    // The ConfigMap should not be in the backup: without its owner it could be anybody's.
    let message = after.until_stalled("p", "ChildRefused").await;
    assert_contains(&message, "backup/a … no owner reference");
    after.delete(CONFIG_MAP, "a").await;
    until_applied(&after).await;
    let parent = after.get(PUPPET, "p").await.unwrap();
    let map = after.get(CONFIG_MAP, "a").await.unwrap();
    let owner = &map.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(Some(&owner.uid), parent.metadata.uid.as_ref());
    // What holds data is used as it is.
    assert_eq!(after.get(SECRET, "s").await.unwrap().data["data"], password);
    let now = after.get(CLAIM, "data").await.unwrap();
    assert_eq!(now.metadata.uid, claim.metadata.uid);
}
