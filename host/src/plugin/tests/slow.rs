//! A plugin that takes long to compile.

use std::time::{Duration, Instant};

use plugin_fixtures::{Fixture, Form, cases, hard};

use super::super::Limits;
use super::super::acceptance::Trust;
use super::super::contract::Kind;
use super::super::registry::{Expected, Live, Slot};
use super::super::reload::Files;
use super::*;
use crate::metrics::Metrics;

/// How long the slow one may take at most.
const COMPILE: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_compiles_for_long_is_given_up_and_others_are_served_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("slow.wasm"), hard::slow()).unwrap();
    let quick = Fixture::new(cases::ANSWER).build(Form::Component);
    std::fs::write(folder.path().join("quick.wasm"), quick).unwrap();
    let files = Files::start().unwrap();
    // Uses its own runtime: the number of concurrent compilations is limited, and other tests compile too.
    let runtime = Runtime::new(EngineOptions::default()).unwrap();
    let fill = |name: &str, compile: Duration| {
        let expected = Expected {
            controller: name.into(),
            parent: Kind {
                api_version: "fixtures.dev/v1".into(),
                kind: "Fixture".into(),
            },
            location: folder.path().join(format!("{name}.wasm")).into(),
            limits: Limits {
                compile,
                ..Limits::default()
            },
            trust: Trust::default(),
        };
        let metrics = Arc::new(Metrics::unread()).of(name, &expected.parent);
        let (slot, live) = Slot::new(runtime.clone(), expected, metrics);
        (files.fill(Arc::new(slot)), live)
    };
    let (endless, slow) = fill("slow", COMPILE * 100);
    let (_quick, mut quick) = fill("quick", Limits::default().compile);
    let Live::Plugin(plugin) = quick
        .wait_for(|live| !matches!(live, Live::Loading))
        .await
        .unwrap()
        .clone()
    else {
        panic!("the quick one is not loaded");
    };
    plugin.reconcile(&request()).await.outcome.unwrap();
    assert!(matches!(*slow.borrow(), Live::Loading), "it compiles still");
    drop((endless, slow));
    let start = Instant::now();
    let (_slow, mut slow) = fill("slow", COMPILE);
    match &*slow
        .wait_for(|live| !matches!(live, Live::Loading))
        .await
        .unwrap()
    {
        Live::Failed(why) => assert!(why.contains("not compiled within"), "{why}"),
        _ => panic!("it was compiled"),
    }
    let took = start.elapsed();
    assert!(took < COMPILE * 8, "given up after {took:?}");
    plugin.reconcile(&request()).await.outcome.unwrap();
}
