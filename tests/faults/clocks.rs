//! A host whose clock differs from that of the API server, and one whose clock is set while it runs.

use jiff::{SignedDuration, Timestamp};

use crate::support::prelude::*;

/// Returns the library that shifts the clock of one process, of Debian's package `libfaketime`.
fn library() -> String {
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let library = libraries.into_iter().find(|library| library.is_file());
    let library = library.expect("tests/prerequisites.sh installs libfaketime");
    library.display().to_string()
}

/// The clock of a host, which the test sets.
struct Clock(PathBuf);

impl Clock {
    fn new(scenario: &Scenario, ahead: i32) -> Self {
        let clock = Self(scenario.folder.path().join("clock"));
        clock.set(ahead);
        clock
    }

    /// Sets it ahead of this machine's by so many seconds.
    fn set(&self, ahead: i32) {
        // A host that reads it meanwhile must find it whole.
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{ahead:+}\n")).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }

    fn start(&self, scenario: &Scenario, controllers: &str) -> Host {
        let library = library();
        let environment = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", self.0.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("NO_FAKE_STAT", "1"),
        ];
        scenario.start_in(&scenario.config(controllers), &[], &environment)
    }
}

/// Regression: with a clock that was 15 s ahead, no child was younger than ten seconds, so 238 were created in 20 s.
#[tokio::test]
async fn a_host_whose_clock_differs_backs_off_from_a_child_that_others_delete() {
    for (namespace, ahead) in [("clock-ahead", 3600), ("clock-behind", -3600)] {
        let scenario = Scenario::new(namespace).await;
        let host = Clock::new(&scenario, ahead).start(&scenario, &controller("puppet.wasm", ""));
        scenario.ready_wants("p", &[config_map("m", "a")]).await;
        let maps = scenario.api(CONFIG_MAP);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            // It may not be there again yet.
            drop(maps.delete("m", &DeleteParams::default()).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let says = "Reconciling=True BackOff: it was deleted";
        scenario.until_told("p", says).await;
        let writes = scenario.all_writes(cluster().await).await;
        let writes = writes_to(&writes, "configmaps");
        let created = writes.iter().filter(|did| did.starts_with("patch")).count();
        assert!((4..15).contains(&created), "{created} ConfigMaps");
        // Only the differing clock, and not a failed start of the library, is what was tested.
        let shown = condition(&scenario.get(PUPPET, "p").await.unwrap(), "Reconciling").unwrap()["lastTransitionTime"].clone();
        let shown: Timestamp = shown.as_str().unwrap().parse().unwrap();
        let off = shown.duration_since(Timestamp::now()) - SignedDuration::from_secs(ahead.into());
        assert!(off.abs() < SignedDuration::from_secs(600), "{off:?}");
        assert_eq!(host.stop().await.code(), Some(0));
    }
}

/// Regression: the delay was computed once, so an appointment in ten minutes was not kept when the machine was suspended for
/// longer.
#[tokio::test]
async fn an_appointment_is_kept_when_the_clock_is_set_on_or_back() {
    let scenario = Scenario::new("clock-steps").await;
    let clock = Clock::new(&scenario, 0);
    let host = clock.start(&scenario, &controller("puppet.wasm", ""));
    let appointment = async |name: &str, seconds: i64| {
        let at = Timestamp::now() + SignedDuration::from_secs(seconds);
        let response = json!({ "requeueAt": at.to_string(), "children": [config_map(name, "a")] });
        scenario.ready_with(name, json!({ "response": response })).await;
    };
    appointment("on", 600).await;
    clock.set(700);
    host.until_log("clock-steps/on … reconcile started … Timer").await;

    // The clock is set back by what it was ahead and more: one appointment is far away then, and another is soon.
    appointment("far", 720).await;
    clock.set(-100);
    appointment("soon", -90).await;
    host.until_log("clock-steps/soon … reconcile started … Timer")
        .await;
    let log = host.log();
    let is_kept = |line: &&str| contains(line, "clock-steps/far … Timer");
    assert_eq!(log.lines().find(is_kept), None);
}
