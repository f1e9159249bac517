//! What the API server warns of while it accepts a child.

use crate::support::install;
use crate::support::prelude::*;

fn warned(name: &str, text: &str) -> Value {
    json!({ "apiVersion": "warned.test.dev/v1", "kind": "Warned", "metadata": { "name": name }, "text": text })
}

#[tokio::test]
async fn a_warning_of_the_api_server_is_an_event_of_the_parent_once_for_each_child_and_diff_prints_it() {
    let scenario = Scenario::new("warned").await;
    let mut definition = definition("Warned", "warned.test.dev", &any());
    let version = &mut definition["spec"]["versions"][0];
    version["deprecated"] = true.into();
    version["deprecationWarning"] = "warned.test.dev/v1 \"Warned\" goes away".into();
    install(&scenario.client, scenario.folder.path(), &definition.to_string()).await;
    let config = scenario.config(&controller(
        "puppet.wasm",
        "children: [{apiVersion: warned.test.dev/v1, kind: Warned}]",
    ));
    let host = scenario.start_with(&config, &[]);
    scenario.wants("p", &[warned("a", "1"), warned("b", "1")]).await;
    for name in ["a", "b"] {
        let says = format!("Warning ServerWarning: Warned.warned.test.dev warned/{name} … goes away");
        scenario.until_event("p", &says).await;
    }
    scenario.wants("p", &[warned("a", "2"), warned("b", "1")]).await;
    let is_new = |object: &DynamicObject| object.data["text"] == "2";
    scenario
        .until("warned.test.dev/v1/Warned", "a", "applied again", is_new)
        .await;
    scenario.until_ready("p").await;
    assert_eq!(host.log().matches("the API server warns of").count(), 2);
    // The watch of that version is warned of, too, and is no child's.
    assert_eq!(host.log().matches("the API server warns: ").count(), 1);

    let (name, config) = (scenario.namespace.clone(), config.to_str().unwrap());
    scenario.pause("p").await;
    scenario.wants("p", &[warned("a", "3")]).await;
    let answer = scenario
        .program(&[
            "diff",
            "--config",
            config,
            "--controller",
            "puppet",
            "-n",
            &name,
            "p",
        ])
        .call()
        .expect(1);
    assert_contains(&answer.err, "warning: Puppet warned/p: … goes away");
}
