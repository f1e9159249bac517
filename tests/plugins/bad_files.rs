//! Files that are not plugins: the children of the previous plugin stay, and the resource's status contains the
//! reason.

use crate::samples::echo;
use crate::support::prelude::*;

struct Case {
    name: &'static str,
    file: Vec<u8>,
    words: &'static str,
}

fn case(name: &'static str, file: Vec<u8>) -> Case {
    let words = "";
    Case { name, file, words }
}

impl Case {
    fn says(self, words: &'static str) -> Self {
        Self { words, ..self }
    }
}

/// A WASI command that imports a function.
fn importing(module: &str, name: &str) -> Vec<u8> {
    let text = format!(
        "(module (import \"{module}\" \"{name}\" (func)) (memory (export \"memory\") 1) (func (export \"_start\")))"
    );
    wat::parse_str(text).unwrap()
}

fn cases() -> Vec<Case> {
    let puppet = std::fs::read(plugin("puppet")).unwrap();
    let command = std::fs::read(plugin("puppet-command")).unwrap();
    vec![
        case("empty", Vec::new()).says("is empty: was it written completely"),
        case(
            "circular",
            std::fs::read(root().join("tests/fuzz/corpora/plugin-file/circular-packages")).unwrap(),
        )
        .says("the compiler failed … overflowed its stack"),
        case("text", b"#!/bin/sh\nexit 0\n".to_vec()).says("not WebAssembly … wasm32-wasip1"),
        case("cut", puppet[..puppet.len() / 2].to_vec()).says("not valid WebAssembly … cut off"),
        case("cut-command", command[..command.len() / 3].to_vec()).says("not valid WebAssembly"),
        case("other-world", plugin_fixtures::another_world()).says("not a plugin … reconciler"),
        case(
            "no-start",
            wat::parse_str("(module (func (export \"run\")))").unwrap(),
        )
        .says("`_start`"),
        case("import", importing("env", "exec")).says("imports `env.exec` … no files, no network"),
        case(
            "mute",
            wat::parse_str("(module (memory (export \"memory\") 1) (func (export \"_start\") unreachable))")
                .unwrap(),
        )
        .says("`describe` failed … unreachable"),
        case("other-kind", std::fs::read(plugin("echo")).unwrap())
            .says("it reconciles my-operator.dev/v1/Echo … reconciles test.operator-host.dev/v1/Puppet"),
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
    for (number, case) in cases().iter().enumerate() {
        let file = scenario.file(&format!("{}.wasm", case.name), &case.file);
        let file = file.display().to_string();
        let mut host = scenario.start(&format!("{}{}", controller(&file, ""), echo::CONTROLLER));
        let puppet = scenario
            .until(PUPPET, "p", case.name, |puppet| {
                let message = condition(puppet, "Stalled").map(|c| c["message"].to_string());
                message.is_some_and(|message| message.contains(&format!("the plugin {}.wasm", case.name)))
            })
            .await;
        let stalled = condition(&puppet, "Stalled").unwrap();
        assert_eq!(stalled["reason"], "PluginNotLoaded", "{}", case.name);
        assert_contains(stalled["message"].as_str().unwrap(), case.words);
        assert_eq!(puppet.data["status"]["note"], "kept", "{}", case.name);
        assert_eq!(scenario.version(CONFIG_MAP, "a").await, before, "{}", case.name);
        // The other controller continues.
        scenario
            .apply(&echo::echo(u32::try_from(number).unwrap() + 1))
            .await;
        scenario.until_there("v1/Pod", &format!("e-pod-{number}")).await;
        assert!(host.is_alive(), "{}", case.name);
        assert_eq!(host.stop().await.code(), Some(0), "{}", case.name);
    }
    scenario.until_event("p", "Warning PluginNotLoaded").await;

    let _host = scenario.start(&controller("puppet.wasm", ""));
    scenario.until_ready("p").await;
    assert_ne!(scenario.version(CONFIG_MAP, "a").await, before);
}
