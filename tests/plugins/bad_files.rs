//! Files that are not plugins: the children of the previous plugin stay, and the resource's status contains the
//! reason.

use crate::samples::echo;
use crate::support::prelude::*;

/// Names, contents and what the status says about them. The other words are in the tests of the runtime.
fn cases() -> [(&'static str, Vec<u8>, &'static str); 4] {
    let puppet = std::fs::read(plugin("puppet")).unwrap();
    let circular = root().join("tests/fuzz/corpora/plugin-file/circular-packages");
    [
        ("empty", Vec::new(), "is empty: was it written completely"),
        (
            "circular",
            std::fs::read(circular).unwrap(),
            "the compiler failed … overflowed its stack",
        ),
        (
            "cut",
            puppet[..puppet.len() / 2].to_vec(),
            "not valid WebAssembly … cut off",
        ),
        (
            "other-kind",
            std::fs::read(plugin("echo")).unwrap(),
            "it reconciles my-operator.dev/v1/Echo … reconciles test.operator-host.dev/v1/Puppet",
        ),
    ]
}

#[tokio::test]
async fn a_file_that_is_no_plugin_changes_nothing_and_the_resource_shows_why() {
    let scenario = Scenario::new("bad-files").await;
    let spec =
        |text: &str| json!({"response": {"children": [config_map("a", text)], "status": {"note": "kept"}}});
    let host = scenario.start(&controller("puppet.wasm", ""));
    scenario.ready_with("p", spec("before")).await;
    let before = scenario.version(CONFIG_MAP, "a").await;
    assert_eq!(host.stop().await.code(), Some(0));

    // It requests a change that no bad plugin makes.
    scenario.puppet("p", spec("after")).await;
    for (number, (name, content, words)) in (1..).zip(cases()) {
        let file = scenario.file(&format!("{name}.wasm"), &content);
        let file = file.display().to_string();
        let mut host = scenario.start(&format!("{}{}", controller(&file, ""), echo::CONTROLLER));
        let puppet = scenario
            .until(PUPPET, "p", name, |puppet| {
                let message = condition(puppet, "Stalled").map(|c| c["message"].to_string());
                message.is_some_and(|message| message.contains(&format!("the plugin {name}.wasm")))
            })
            .await;
        let stalled = condition(&puppet, "Stalled").unwrap();
        assert_eq!(stalled["reason"], "PluginNotLoaded", "{name}");
        assert_contains(stalled["message"].as_str().unwrap(), words);
        assert_eq!(puppet.data["status"]["note"], "kept", "{name}");
        assert_eq!(scenario.version(CONFIG_MAP, "a").await, before, "{name}");
        // The other controller continues.
        scenario.apply(&echo::echo(number)).await;
        let last = format!("e-pod-{}", number - 1);
        scenario.until_there("v1/Pod", &last).await;
        assert!(host.is_alive(), "{name}");
        assert_eq!(host.stop().await.code(), Some(0), "{name}");
    }
    scenario.until_event("p", "Warning PluginNotLoaded").await;

    let _host = scenario.start(&controller("puppet.wasm", ""));
    scenario.until_ready("p").await;
    assert_ne!(scenario.version(CONFIG_MAP, "a").await, before);
}
