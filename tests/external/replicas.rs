//! Crashes at any step, and two replicas of which one sends.

use super::server::*;
use crate::support::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_after_any_step_sends_nothing_twice() {
    let scenario = Scenario::new("ext-killed").await;
    let server = Server::start().await;
    let file = file(&scenario, &[server.endpoint("shop", "ext-killed", "")]);
    // GET, PUT, GET, and at the end DELETE: each is carried out, and the answer never comes.
    for step in 1..=4 {
        let name = format!("www-{step}");
        let path = format!("/{name}");
        let process = scenario.start_egress("egress", &file);
        process.until_log("ready to carry out").await;
        let object = external(&name, &json!({"ttl": step}));
        let act = async {
            scenario.external(&object).await;
            if step == 4 {
                scenario.until_matches(&name).await;
                scenario.delete(EXTERNAL, &name).await;
            }
        };
        server.hold(&path, step, act).await;
        process.kill();
        server.release();
        let process = scenario.start_egress("egress", &file);
        match step {
            4 => scenario.until_gone(EXTERNAL, &name).await,
            _ => drop(scenario.until_matches(&name).await),
        }
        let mut puts = server.writes();
        puts.retain(|line| *line == format!("PUT {path}"));
        assert_eq!(puts.len(), 1, "step {step}: {:?}", server.lines());
        process.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_sends_and_the_other_follows_it() {
    let scenario = Scenario::new("ext-two-replicas").await;
    let server = Server::start().await;
    let text = format!(
        "namespaces: [{0}]\nleadership: single\nlease: {{namespace: {0}, duration: 3s, renewDeadline: 2s, retryPeriod: 300ms}}\nendpoints:\n{1}",
        scenario.namespace,
        server.endpoint("shop", &scenario.namespace, ", timeout: 900ms")
    );
    let file = scenario.file("endpoints.yaml", text);
    let mut first = scenario.start_egress("first", &file);
    first.until_log("ready to carry out").await;
    let make = async |name: &str| {
        for i in 0..10 {
            let external = external(&format!("{name}-{i}"), &json!({"v": 1}));
            scenario.external(&external).await;
        }
    };
    let until_match = async |name: &str| {
        for i in 0..10 {
            scenario.until_matches(&format!("{name}-{i}")).await;
        }
    };
    make("a").await;
    until_match("a").await;
    let second = scenario.start_egress("second", &file);
    second.until_log("ready to carry out").await;
    assert!(first.is_alive());
    // The first is stopped in the middle of its work, and wakes when the second leads.
    make("b").await;
    first.process().pause();
    until_match("b").await;
    let puts = |server: &Server| {
        let mut puts = server.writes();
        puts.sort();
        puts
    };
    let sent = puts(&server);
    first.process().resume();
    // The second has looked at all again.
    server.until_asked(20).await;
    assert_eq!(puts(&server), sent, "nothing more was sent");
    assert_eq!(sent.len(), 20, "each was sent once: {sent:?}");
    drop(first);
    scenario.remove(EXTERNAL, "a-0").await;
    assert_eq!(server.get("/a-0"), None);
    drop(second);
}
