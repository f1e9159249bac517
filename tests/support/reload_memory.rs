//! The memory of the serving process before and after reloads.

use crate::support::bystander::{CONTROLLER, echo};
use crate::support::measure::anonymous;
use crate::support::mount::Mount;
use crate::support::{Scenario, plugin};

const FILE: &str = "echo.wasm";
const RELOADS: u8 = 20;

/// Starts a host with Echo's plugin in a folder like a mounted ConfigMap, replaces the plugin 20 times, and returns the
/// anonymous memory in bytes before and after that.
pub async fn before_and_after(scenario: &Scenario) -> [u64; 2] {
    let mut mount = Mount::new(&scenario.folder.path().join("mount"), FILE, &version(0));
    let config = scenario.config_in(&mount.path, &format!("{CONTROLLER}  proving: {{mode: off}}\n"));
    let host = scenario.start_with(&config, &[]);
    scenario.apply(&echo(2)).await;
    scenario.until_echo("e").await;
    // The first reload has one-time costs: threads, and the buffers of a second version.
    mount.put(FILE, &version(1));
    host.until_logged("plugin loaded", 2).await;
    let before = anonymous(&host);
    for number in 2..2 + RELOADS {
        mount.put(FILE, &version(number));
        host.until_logged("plugin loaded", usize::from(number) + 1).await;
    }
    let after = anonymous(&host);
    assert_eq!(host.stop().await.code(), Some(0));
    [before, after]
}

/// Returns another file with the same answers: the sample with an additional custom section.
fn version(number: u8) -> Vec<u8> {
    let mut file = std::fs::read(plugin("echo")).expect("the plugin");
    file.extend([0, 3, 1, b'v', number]);
    file
}
