//! Volumes that are full, disappear, or allow no programs, each in the host's own mount namespace.

use crate::support::prelude::*;
use std::fs;

use crate::delivery::packs::echo_with;
use crate::samples::echo::{CONTROLLER, echo, until_echo_is_ready};
use crate::telemetry::{get, until_ready_is_without};

/// Reports whether this machine allows mounts, and prints a note if not.
fn may_mount(scenario: &Scenario) -> bool {
    let folder = scenario.folder.path();
    let mount = format!("mount -t tmpfs -o size=64k tmpfs {}", folder.display());
    let allowed = Command::new("unshare").args(["-m", "sh", "-c", &mount]).output();
    let allowed = allowed.is_ok_and(|output| output.status.success());
    if !allowed {
        eprintln!("SKIPPED: nothing can be mounted here: run as root, or in a container that may mount");
    }
    allowed
}

fn folder(scenario: &Scenario, name: &str) -> PathBuf {
    let folder = scenario.folder.path().join(name);
    fs::create_dir(&folder).unwrap();
    folder
}

/// Runs a script in the host's mount namespace.
fn within(host: &Host, script: &str) {
    let id = host.process().id().to_string();
    let arguments = ["-t", &id, "-m", "sh", "-e", "-c", script];
    Command::new("nsenter").args(arguments).prints();
}

#[tokio::test]
async fn a_volume_that_is_unmounted_and_mounted_again_leaves_the_live_version_and_brings_the_next() {
    let scenario = Scenario::new("unmounted").await;
    if !may_mount(&scenario) {
        return;
    }
    let plugins = folder(&scenario, "plugins");
    let path = plugins.display().to_string();
    let config = scenario.config_in(&plugins, CONTROLLER);
    let mount = format!("mount -t tmpfs tmpfs {path}");
    let fill = format!("{mount}\ncp {} {path}/", plugin("echo").display());
    let host = scenario.start_after(&fill, &config, &[]);
    until_echo_is_ready(&scenario).await;
    within(&host, &format!("umount {path}"));
    host.until_log("not there … stays live").await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{ready}");
    assert_contains(&ready, "[+]plugin/echo ok: sha256: … stays live … not there");
    scenario.apply(&echo(2)).await;
    scenario.until_there("v1/Pod", "e-pod-1").await;

    let other = scenario.file("other.wasm", echo_with(1, 1));
    let fill = format!("{mount}\ncp {} {path}/echo.wasm", other.display());
    within(&host, &fill);
    host.until_log("plugin loaded … \"before\":\"sha256:").await;
    until_ready_is_without(&host, "stays live").await;
}

#[tokio::test]
async fn a_host_that_may_execute_no_file_says_so_and_compiles_when_it_may_again() {
    let scenario = Scenario::new("noexec").await;
    if !may_mount(&scenario) {
        return;
    }
    let (plugins, volume) = (folder(&scenario, "plugins"), folder(&scenario, "volume"));
    let path = volume.display().to_string();
    let config = scenario.config_in(&plugins, CONTROLLER);
    fs::write(plugins.join("echo.wasm"), "no plugin yet").unwrap();
    let start = format!("mount -t tmpfs tmpfs {path}\ncp \"$0\" {path}/host\nexec {path}/host \"$@\"");
    let host = scenario.start_after(&start, &config, &[]);
    host.until_log("echo … not WebAssembly").await;
    within(&host, &format!("mount -o remount,noexec {path}"));
    fs::copy(plugin("echo"), plugins.join("echo.wasm")).unwrap();
    host.until_log("cannot start a process to compile the plugin … Permission denied")
        .await;
    within(&host, &format!("mount -o remount,exec {path}"));
    until_echo_is_ready(&scenario).await;
    assert_eq!(host.stop().await.code(), Some(0));
}
