//! Volumes that are full, disappear, or allow no programs, each in the host's own mount namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::samples::echo::{CONTROLLER, ECHO, echo};
use crate::support::puppet::{assert_contains, controller};
use crate::support::{Host, Scenario, plugin};
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

/// Writes a configuration with the plugins in this folder.
fn config_for(scenario: &Scenario, plugins: &Path, controllers: &str) -> PathBuf {
    let config = scenario.config(controllers);
    let text = fs::read_to_string(&config).unwrap();
    let first = text.lines().next().unwrap();
    let plugins = format!("plugins: {}", plugins.display());
    fs::write(&config, text.replace(first, &plugins)).unwrap();
    config
}

/// Returns the path of a folder as the host sees it.
fn seen_by(host: &Host, folder: &Path) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{}/root", host.process().id()));
    root.join(folder.strip_prefix("/").unwrap())
}

/// Runs a script in the host's mount namespace.
fn within(host: &Host, script: &str) -> Output {
    let id = host.process().id().to_string();
    let output = Command::new("nsenter")
        .args(["-t", &id, "-m", "sh", "-e", "-c", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    output
}

async fn until_echo_is_ready(scenario: &Scenario) {
    scenario.apply(&echo(1)).await;
    scenario
        .until(ECHO, "e", "ready", |e| e.data["status"]["isReady"] == true)
        .await;
}

fn names(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = all
        .map(|entry| entry.unwrap().file_name().display().to_string())
        .collect();
    names.sort();
    names
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let done = tokio::time::timeout(crate::support::LIMIT, wait).await;
    assert!(done.is_ok(), "{what} never came");
}

#[tokio::test]
async fn a_disk_with_no_room_for_compiled_code_costs_only_that() {
    let scenario = Scenario::new("disk-full").await;
    if !may_mount(&scenario) {
        return;
    }
    let cache = folder(&scenario, "cache");
    let path = cache.display().to_string();
    let config = scenario.config(CONTROLLER);
    // Half of the volume would be enough for the code, but another file is there.
    let small = format!("mount -t tmpfs -o size=8m tmpfs {path}\nhead -c 8323072 /dev/zero >{path}/other");
    let host = scenario.start_after(&small, &config, &["--cache-dir", &path]);
    until_echo_is_ready(&scenario).await;
    host.until_log(&["cannot store compiled code", "No space left"])
        .await;
    let left = seen_by(&host, &cache).join("compiled-v1");
    assert_eq!(names(&left), ["key"], "nothing is left half-written");
    assert_eq!(host.stop().await.code(), Some(0));

    // Not even room for the key.
    let full = format!("{small}\nhead -c 65536 /dev/zero >{path}/zeros");
    let host = scenario.start_after(&full, &config, &["--cache-dir", &path]);
    host.until_log(&["the compiled-plugin cache is disabled", "No space left"])
        .await;
    scenario.delete(ECHO, "e").await;
    scenario.until_gone(ECHO, "e").await;
    until_echo_is_ready(&scenario).await;
}

#[tokio::test]
async fn code_that_is_not_used_makes_room_for_new_code() {
    let scenario = Scenario::new("disk-room").await;
    if !may_mount(&scenario) {
        return;
    }
    let cache = folder(&scenario, "cache");
    let path = cache.display().to_string();
    let argument = ["--cache-dir", path.as_str()];
    // The size of each.
    let config = scenario.config(&format!("{CONTROLLER}{}", controller("puppet.wasm", "")));
    let host = scenario.start_after("true", &config, &argument);
    let code = |folder: &Path| -> Vec<PathBuf> {
        let all = fs::read_dir(folder.join("compiled-v1")).into_iter().flatten();
        let files = all.map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.extension().is_some_and(|suffix| suffix == "code"))
            .collect()
    };
    until("code of both", || code(&cache).len() >= 2).await;
    assert_eq!(host.stop().await.code(), Some(0));
    let sizes: Vec<u64> = code(&cache)
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .collect();
    let (small, large) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
    fs::remove_dir_all(cache.join("compiled-v1")).unwrap();

    // Half of the volume would be enough for both, but another file leaves room for only the larger one.
    let other = large + 2 * small;
    let size = other + large + small / 2;
    let mount =
        format!("mount -t tmpfs -o size={size} tmpfs {path}\nhead -c {other} /dev/zero >{path}/other");
    let config = scenario.config(CONTROLLER);
    let host = scenario.start_after(&mount, &config, &argument);
    let seen = seen_by(&host, &cache);
    until("code of Echo", || !code(&seen).is_empty()).await;
    let echos = code(&seen);
    scenario.config(&controller("puppet.wasm", ""));
    until("code in its place", || {
        code(&seen) != echos && !code(&seen).is_empty()
    })
    .await;
    assert_eq!(code(&seen).len(), 1);
    assert!(
        !host.log().contains("cannot store compiled code"),
        "{}",
        host.log()
    );
}

#[tokio::test]
async fn a_volume_that_is_unmounted_and_mounted_again_leaves_the_live_version_and_brings_the_next() {
    let scenario = Scenario::new("unmounted").await;
    if !may_mount(&scenario) {
        return;
    }
    let plugins = folder(&scenario, "plugins");
    let path = plugins.display().to_string();
    let config = config_for(&scenario, &plugins, CONTROLLER);
    let mount = format!("mount -t tmpfs tmpfs {path}");
    let fill = format!("{mount}\ncp {} {path}/", plugin("echo").display());
    let host = scenario.start_after(&fill, &config, &[]);
    until_echo_is_ready(&scenario).await;
    within(&host, &format!("umount {path}"));
    host.until_log(&["not there", "stays live"]).await;
    let (status, ready) = get(&host, "/readyz?verbose").await;
    assert_eq!(status, 200, "{ready}");
    assert_contains(&ready, &["[+]plugin/echo ok: sha256:", "stays live", "not there"]);
    scenario.apply(&echo(2)).await;
    scenario
        .until("v1/Pod", "e-pod-1", "made by the live version", |_| true)
        .await;

    let other = scenario.folder.path().join("other.wasm");
    let mut bytes = fs::read(plugin("echo")).unwrap();
    bytes.extend([0, 3, 1, b'v', 2]);
    fs::write(&other, bytes).unwrap();
    within(
        &host,
        &format!("{mount}\ncp {} {path}/echo.wasm", other.display()),
    );
    host.until_log(&["plugin loaded", "\"before\":\"sha256:"]).await;
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
    let config = config_for(&scenario, &plugins, CONTROLLER);
    fs::write(plugins.join("echo.wasm"), "no plugin yet").unwrap();
    let start = format!("mount -t tmpfs tmpfs {path}\ncp \"$0\" {path}/host\nexec {path}/host \"$@\"");
    let host = scenario.start_after(&start, &config, &[]);
    host.until_log(&["echo", "not WebAssembly"]).await;
    within(&host, &format!("mount -o remount,noexec {path}"));
    fs::copy(plugin("echo"), plugins.join("echo.wasm")).unwrap();
    host.until_log(&[
        "cannot start a process to compile the plugin",
        "Permission denied",
    ])
    .await;
    within(&host, &format!("mount -o remount,exec {path}"));
    until_echo_is_ready(&scenario).await;
    assert_eq!(host.stop().await.code(), Some(0));
}
