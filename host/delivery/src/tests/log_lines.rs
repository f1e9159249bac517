//! A slot publishes its state before it logs it, so that a log line, `/readyz` and the report agree.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::super::registry::{Live, Slot};
use super::super::report::PluginReport;
use super::RUNTIME;
use super::promotion::{Fake, digest, settle, slot};
use super::swaps::{expected, live, metrics, plugin_file};

/// Records what is published at the moment of each log line.
struct Published {
    live: watch::Receiver<Live>,
    trouble: watch::Receiver<Option<Arc<str>>>,
    report: watch::Receiver<PluginReport>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl<S: tracing::Subscriber> Layer<S> for Published {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > tracing::Level::INFO {
            return;
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        let live = match live(&self.live) {
            Ok(plugin) => plugin.digest().to_string(),
            Err(reason) => reason,
        };
        let trouble = self
            .trouble
            .borrow()
            .as_deref()
            .unwrap_or("no trouble")
            .to_owned();
        let reported = self.report.borrow().live.as_ref().map(|live| live.digest.clone());
        self.seen.lock().unwrap().push(format!(
            "{}; live: {live}; reported as live: {reported:?}; {trouble}",
            message.0
        ));
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Returns the lines that the slot logged during `work`, each with what was published.
async fn lines(slot: &Slot, live: &watch::Receiver<Live>, work: impl Future) -> Vec<String> {
    let seen = Arc::default();
    let layer = Published {
        live: live.clone(),
        trouble: slot.trouble(),
        report: slot.report(),
        seen: Arc::clone(&seen),
    };
    let _log = tracing_subscriber::registry().with(layer).set_default();
    work.await;
    std::mem::take(&mut *seen.lock().unwrap())
}

#[track_caller]
fn assert_line(lines: &[String], message: &str, published: &[&str]) {
    let line = lines.iter().find(|line| line.starts_with(message));
    let line = line.unwrap_or_else(|| panic!("no line begins with {message:?}: {lines:#?}"));
    let (_, state) = line.split_once("; live: ").unwrap();
    for words in published {
        assert!(
            state.contains(words),
            "{line:?} is logged before {words:?} is published"
        );
    }
}

#[tokio::test]
async fn what_is_logged_about_a_file_is_published_already() {
    let proof = Fake::new();
    proof.hold(&[2]);
    let (slot, receiver) = slot(&proof, None);
    let [one, three] = [1, 3].map(|number| digest(number).to_string());
    let logged = lines(&slot, &receiver, settle(&slot, 1)).await;
    assert_line(&logged, "plugin loaded", &[&one, &format!("{:?}", Some(&one))]);
    let logged = lines(&slot, &receiver, settle(&slot, 2)).await;
    assert_line(&logged, "plugin held back", &[&one, "it fails"]);
    let logged = lines(&slot, &receiver, slot.offer(plugin_file(b"nothing"))).await;
    assert_line(
        &logged,
        "the plugin fixture.wasm cannot be used",
        &["not WebAssembly"],
    );
    let logged = lines(&slot, &receiver, async { slot.registry_failed("it is away") }).await;
    assert_line(
        &logged,
        "the plugin fixture.wasm cannot be pulled",
        &["it is away"],
    );
    let logged = lines(&slot, &receiver, async { slot.registry_answered(None) }).await;
    assert!(!logged[0].contains("it is away"), "{logged:?}");
    let logged = lines(&slot, &receiver, settle(&slot, 3)).await;
    assert_line(&logged, "plugin loaded", &[&three, "no trouble"]);
}

#[tokio::test]
async fn what_is_logged_without_a_live_version_is_published_already() {
    let new = || Slot::new(RUNTIME.clone(), expected("Fixture"), metrics());
    let (slot, receiver) = new();
    let logged = lines(&slot, &receiver, slot.offer(plugin_file(b"nothing"))).await;
    assert_line(
        &logged,
        "the plugin fixture.wasm cannot be used",
        &["not WebAssembly"],
    );
    let (slot, receiver) = new();
    let logged = lines(&slot, &receiver, async { slot.registry_failed("it is away") }).await;
    assert_line(
        &logged,
        "the plugin fixture.wasm cannot be pulled",
        &["it is away"],
    );
    let proof = Fake::new();
    proof.order(None, Some(&digest(1).to_string()));
    let (slot, receiver) = super::promotion::slot(&proof, None);
    let logged = lines(&slot, &receiver, slot.settle(None)).await;
    assert_line(&logged, "the version", &["is pinned"]);
}
