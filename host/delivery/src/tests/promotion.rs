//! Which version a slot makes live: of its file's, the kept and the live ones, depending on the proof and the
//! orders.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::super::candidate_check::{
    CandidateCheck, HeldBack, Order, Orders, Prefix, Progress, ProofResult, Recorded,
};
use super::super::kept::{StateLimit, Versions};
use super::super::registry::{Live, Slot};
use super::super::report::CandidateState;
use super::RUNTIME;
use super::swaps::{expected, live, metrics, plugin_file, version};
use operator_host_runtime::{Digest, Limits, Plugin};

/// Holds back the versions in its list.
pub(super) struct Fake {
    orders: watch::Sender<Option<Orders>>,
    recorded: Mutex<Recorded>,
    holds: Mutex<Vec<u8>>,
    /// The announced reasons; `None` for an announcement that no version is held back.
    announced: Mutex<Vec<Option<String>>>,
}

impl Fake {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            orders: watch::Sender::new(Some(Orders::default())),
            recorded: Mutex::default(),
            holds: Mutex::default(),
            announced: Mutex::default(),
        })
    }

    pub(super) fn hold(&self, numbers: &[u8]) {
        *self.holds.lock().unwrap() = numbers.to_vec();
    }

    pub(super) fn order(&self, promote: Option<u8>, pin: Option<&str>) {
        self.orders.send_replace(Some(Orders {
            promote: promote.map(prefix).into_iter().collect(),
            pin: pin.map(|pin| Prefix::parse(pin).unwrap()),
            ..Orders::default()
        }));
    }

    /// Records a version as live, as another replica does.
    fn record(&self, recorded: Recorded) {
        *self.recorded.lock().unwrap() = recorded;
    }

    fn announced(&self) -> Vec<Option<String>> {
        std::mem::take(&mut *self.announced.lock().unwrap())
    }
}

#[async_trait::async_trait]
impl CandidateCheck for Fake {
    fn orders(&self) -> watch::Receiver<Option<Orders>> {
        self.orders.subscribe()
    }

    async fn recorded(&self) -> Recorded {
        self.recorded.lock().unwrap().clone()
    }

    async fn accept(&self, version: &Plugin, _over: &Recorded) {
        *self.recorded.lock().unwrap() = Recorded::Version(*version.digest());
    }

    async fn prove(&self, _live: Option<&Plugin>, candidate: &Plugin, _say: Progress<'_>) -> ProofResult {
        let holds = self.holds.lock().unwrap();
        if holds.iter().any(|number| digest(*number) == *candidate.digest()) {
            return ProofResult::HeldBack(Box::new(HeldBack {
                reason: "Fails",
                message: "it fails".into(),
                advice: "correct it".into(),
                diff: "-a\n+b".into(),
                objects: Vec::new(),
            }));
        }
        ProofResult::Proved {
            on: "2 objects".into(),
            diff: String::new(),
        }
    }

    async fn install(&self, _candidate: &Plugin) {}

    async fn who(&self, order: Order, _digest: &Digest) -> Option<String> {
        Some(format!("{order:?} by a user"))
    }

    fn how_to(&self, order: Order, digest: Option<&Digest>) -> String {
        format!("{order:?} {digest:?}")
    }

    fn announce(&self, held: Option<&HeldBack>) {
        let held = held.map(|held| held.reason.to_owned());
        self.announced.lock().unwrap().push(held);
    }
}

pub(super) fn digest(number: u8) -> Digest {
    Digest::of(&version(number))
}

fn prefix(number: u8) -> Prefix {
    Prefix::parse(&digest(number).to_string()).unwrap()
}

pub(super) fn slot(proof: &Arc<Fake>, state: Option<&Path>) -> (Slot, watch::Receiver<Live>) {
    let (slot, receiver) = Slot::new(RUNTIME.clone(), expected("Fixture"), metrics());
    let slot = slot.proved(Arc::clone(proof) as _);
    match state {
        None => (slot, receiver),
        Some(state) => (
            slot.keeping(Versions::open(state, "test", 5, StateLimit(1 << 30)).unwrap()),
            receiver,
        ),
    }
}

pub(super) async fn settle(slot: &Slot, number: u8) -> Option<Duration> {
    slot.settle(Some(&plugin_file(&version(number)))).await
}

#[track_caller]
pub(super) fn assert_live(receiver: &watch::Receiver<Live>, number: u8) {
    assert_eq!(*live(receiver).unwrap().digest(), digest(number));
}

pub(super) fn because(slot: &Slot) -> String {
    slot.report().borrow().live.clone().unwrap().because
}

#[tokio::test]
async fn a_version_that_is_held_back_is_tried_again_after_longer_and_longer() {
    let proof = Fake::new();
    proof.hold(&[2]);
    let (slot, receiver) = slot(&proof, None);
    assert_eq!(settle(&slot, 1).await, None);
    assert_eq!(because(&slot), "it was the first");
    let first = settle(&slot, 2).await.unwrap();
    let second = settle(&slot, 2).await.unwrap();
    assert!(
        first < second && second < Duration::from_secs(60),
        "{first:?} {second:?}"
    );
    assert_live(&receiver, 1);
    let report = slot.report().borrow().candidate.clone().unwrap();
    assert_eq!(
        (report.state, report.diff.as_str()),
        (CandidateState::HeldBack, "-a\n+b")
    );
    assert!(slot.trouble().borrow().as_ref().unwrap().contains("it fails"));
    assert_eq!(proof.announced(), [Some("Fails".into())], "reported once");
    // The objects have changed.
    proof.hold(&[]);
    assert_eq!(settle(&slot, 2).await, None);
    assert_live(&receiver, 2);
    assert_eq!(because(&slot), "proved: 2 objects");
    assert_eq!(proof.announced(), [None]);
    assert!(slot.report().borrow().candidate.is_none() && slot.trouble().borrow().is_none());
}

#[tokio::test]
async fn nothing_is_held_back_any_more_when_the_file_holds_another_version() {
    let proof = Fake::new();
    proof.hold(&[2, 3]);
    let (slot, receiver) = slot(&proof, None);
    settle(&slot, 1).await;
    settle(&slot, 2).await;
    settle(&slot, 3).await;
    assert_eq!(
        proof.announced(),
        [Some("Fails".into()), None, Some("Fails".into())]
    );
    settle(&slot, 1).await;
    assert_eq!(proof.announced(), [None]);
    assert_live(&receiver, 1);
    assert!(slot.report().borrow().candidate.is_none());
    // A file that is not a plugin replaces it too.
    settle(&slot, 2).await;
    slot.offer(plugin_file(b"nothing")).await;
    assert_eq!(proof.announced(), [Some("Fails".into()), None]);
    let refused = slot.report().borrow().candidate.clone().unwrap();
    assert_eq!(refused.state, CandidateState::Refused);
}

#[tokio::test]
async fn a_version_takes_over_by_force_although_the_proof_holds_it_back() {
    let proof = Fake::new();
    proof.hold(&[2, 3]);
    let (slot, receiver) = slot(&proof, None);
    settle(&slot, 1).await;
    settle(&slot, 2).await;
    proof.order(Some(2), None);
    assert_eq!(settle(&slot, 2).await, None);
    assert_live(&receiver, 2);
    assert_eq!(because(&slot), "promoted by force");
    // The order applies to one version, not to the next.
    assert!(settle(&slot, 3).await.is_some());
    assert_live(&receiver, 2);
}

#[tokio::test]
async fn a_pin_goes_back_to_a_version_that_was_kept_and_puts_the_files_aside() {
    let state = tempfile::tempdir().unwrap();
    let proof = Fake::new();
    let (slot, receiver) = slot(&proof, Some(state.path()));
    settle(&slot, 1).await;
    settle(&slot, 2).await;
    assert_live(&receiver, 2);
    proof.hold(&[1]);
    proof.order(None, Some(&digest(1).to_string()));
    // The version in the file must then be put aside.
    assert_eq!(settle(&slot, 2).await, Some(Duration::ZERO));
    assert_live(&receiver, 1);
    assert_eq!(settle(&slot, 2).await, None);
    assert_live(&receiver, 1);
    let report = slot.report().borrow().clone();
    assert_eq!(report.candidate.unwrap().state, CandidateState::PutAside);
    assert_eq!(report.kept[0].digest, digest(1).to_string(), "the last good one");
    // Another file in the meantime changes nothing.
    settle(&slot, 3).await;
    assert_live(&receiver, 1);
    proof.order(None, None);
    settle(&slot, 3).await;
    assert_live(&receiver, 3);
}

#[tokio::test]
async fn a_version_that_a_pin_put_aside_is_held_back_again_without_the_pin() {
    let proof = Fake::new();
    proof.hold(&[2]);
    let (slot, receiver) = slot(&proof, None);
    settle(&slot, 1).await;
    settle(&slot, 2).await;
    proof.order(None, Some(&digest(1).to_string()));
    settle(&slot, 2).await;
    settle(&slot, 2).await;
    assert_eq!(proof.announced(), [Some("Fails".into()), None]);
    proof.order(None, None);
    settle(&slot, 2).await;
    assert_eq!(proof.announced(), [Some("Fails".into())]);
    assert!(slot.trouble().borrow().is_some());
    assert_live(&receiver, 1);
}

#[tokio::test]
async fn a_pin_that_matches_nothing_leaves_the_live_version_or_reports_why_there_is_none() {
    let proof = Fake::new();
    let (slot, receiver) = slot(&proof, None);
    proof.order(None, Some("0123456789abcdef"));
    settle(&slot, 1).await;
    let reason = live(&receiver).err().unwrap();
    assert!(reason.contains("0123456789abcdef is pinned"), "{reason}");
    proof.order(None, Some(&digest(1).to_string()));
    settle(&slot, 1).await;
    assert_live(&receiver, 1);
    proof.order(None, Some("0123456789abcdef"));
    settle(&slot, 2).await;
    assert_live(&receiver, 1);
}

#[tokio::test]
async fn the_last_good_version_is_live_again_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let proof = Fake::new();
    proof.hold(&[2]);
    let (before, _) = slot(&proof, Some(state.path()));
    settle(&before, 1).await;
    settle(&before, 2).await;
    drop(before);
    let (after, receiver) = slot(&proof, Some(state.path()));
    after.restore().await;
    assert_live(&receiver, 1);
    assert!(settle(&after, 2).await.is_some(), "it is held back again");
    assert_live(&receiver, 1);
    // Without a state folder there is no version to continue with.
    let (without, receiver) = slot(&proof, None);
    without.restore().await;
    assert_eq!(live(&receiver).err().unwrap(), "loading");
}

#[tokio::test]
async fn without_the_recorded_version_another_one_is_live_only_when_it_is_proved_or_promoted() {
    let proof = Fake::new();
    proof.hold(&[2]);
    for recorded in [
        Recorded::Version(digest(1)),
        Recorded::Unknown("it is no digest".into()),
    ] {
        proof.record(recorded.clone());
        let (slot, receiver) = slot(&proof, None);
        assert!(settle(&slot, 2).await.is_some(), "it is tried again");
        assert_eq!(live(&receiver).err().unwrap(), "correct it");
        assert!(proof.announced().contains(&Some("Fails".into())));
        settle(&slot, 3).await;
        assert_live(&receiver, 3);
        assert_eq!(because(&slot), "proved: 2 objects");
        proof.record(recorded);
        let (slot, receiver) = self::slot(&proof, None);
        proof.order(Some(2), None);
        settle(&slot, 2).await;
        assert_live(&receiver, 2);
        proof.order(None, None);
    }
    proof.record(Recorded::Version(digest(2)));
    let (slot, receiver) = slot(&proof, None);
    settle(&slot, 2).await;
    assert_live(&receiver, 2);
    assert_eq!(because(&slot), "it is the one that the cluster records as live");
}

#[tokio::test]
async fn only_the_recorded_one_of_the_kept_versions_is_live_again() {
    let state = tempfile::tempdir().unwrap();
    let proof = Fake::new();
    let (before, _) = slot(&proof, Some(state.path()));
    settle(&before, 1).await;
    settle(&before, 2).await;
    proof.record(Recorded::Version(digest(1)));
    let (after, receiver) = slot(&proof, Some(state.path()));
    after.settle(None).await;
    assert_live(&receiver, 1);
    proof.record(Recorded::Version(digest(3)));
    let (after, receiver) = slot(&proof, Some(state.path()));
    after.settle(None).await;
    assert_eq!(live(&receiver).err().unwrap(), "loading");
}

#[tokio::test]
async fn a_version_that_another_replica_has_replaced_is_decided_about_again_once() {
    let proof = Fake::new();
    let (slot, receiver) = slot(&proof, None);
    settle(&slot, 1).await;
    proof.hold(&[1]);
    let overtaken = |times| {
        proof.record(Recorded::Version(digest(2)));
        proof.orders.send_replace(Some(Orders {
            overtaken: times,
            ..Orders::default()
        }));
    };
    settle(&slot, 1).await;
    assert_live(&receiver, 1);
    overtaken(1);
    settle(&slot, 1).await;
    assert_eq!(live(&receiver).err().unwrap(), "correct it");
    settle(&slot, 2).await;
    assert_live(&receiver, 2);
    overtaken(1);
    settle(&slot, 2).await;
    assert_live(&receiver, 2);
    overtaken(2);
    slot.settle(None).await;
    let reason = live(&receiver).err().unwrap();
    assert!(reason.contains("the plugin's file cannot be read"), "{reason}");
}

#[tokio::test]
async fn no_version_takes_over_before_the_annotations_are_read() {
    let proof = Fake::new();
    proof.orders.send_replace(None);
    let (slot, receiver) = slot(&proof, None);
    let first = plugin_file(&version(1));
    let settling = slot.settle(Some(&first));
    let waited = tokio::time::timeout(Duration::from_millis(300), settling).await;
    assert!(waited.is_err() && live(&receiver).is_err());
    proof.order(None, None);
    settle(&slot, 1).await;
    assert_live(&receiver, 1);
}

#[tokio::test]
async fn other_limits_are_taken_without_a_proof_and_keep_what_is_held_back() {
    let proof = Fake::new();
    proof.hold(&[1, 2]);
    let (slot, receiver) = slot(&proof, None);
    settle(&slot, 1).await;
    settle(&slot, 2).await;
    let before = slot.report().borrow().live.clone();
    let mut other = expected("Fixture");
    other.limits = Limits {
        deadline: Duration::from_secs(1),
        ..other.limits
    };
    let slot = slot.expecting(other.clone());
    settle(&slot, 1).await;
    assert_eq!(*live(&receiver).unwrap().limits(), other.limits);
    assert_eq!(slot.report().borrow().live, before, "it is the same version");
    assert_eq!(proof.announced(), [Some("Fails".into()), None]);
}

mod signed {
    use plugin_fixtures::{Fixture, Form, cases};

    use super::super::super::acceptance::Trust;
    use super::super::super::acceptance::tests::{PRIVATE, PUBLIC, key};
    use super::super::super::keys::SigningKey;
    use super::super::super::registry::{Expected, PluginFile};
    use super::super::super::statement::Statement;
    use super::*;

    /// Returns a plugin of this version, signed as that one.
    async fn signed_file(version: &str, stated: &str) -> PluginFile {
        let bytes = Fixture::new(cases::ANSWER)
            .plugin_version(version)
            .build(Form::Component);
        let plugin = RUNTIME.load(bytes.clone(), Limits::default()).await.unwrap();
        let mut description = plugin.description().clone();
        stated.clone_into(&mut description.version);
        let statement = Statement::of(&description, *plugin.digest()).unwrap();
        let signature = statement.sign(&SigningKey::parse(PRIVATE.as_bytes()).unwrap());
        PluginFile {
            signature: Some(signature.into()),
            ..plugin_file(&bytes)
        }
    }

    fn slot(proof: &Arc<Fake>) -> (Slot, watch::Receiver<Live>) {
        let expected = Expected {
            trust: Trust {
                sha256: None,
                keys: Some(vec![key("release", PUBLIC)]),
            },
            ..expected("Fixture")
        };
        let (slot, receiver) = Slot::new(RUNTIME.clone(), expected, metrics());
        (slot.proved(Arc::clone(proof) as _), receiver)
    }

    fn version(receiver: &watch::Receiver<Live>) -> String {
        live(receiver).unwrap().description().version.clone()
    }

    #[tokio::test]
    async fn an_older_signed_version_takes_over_only_when_it_is_pinned() {
        let proof = Fake::new();
        let (slot, receiver) = slot(&proof);
        let old = signed_file("1.9.0", "1.9.0").await;
        slot.settle(Some(&signed_file("1.10.0", "1.10.0").await)).await;
        slot.settle(Some(&old)).await;
        assert_eq!(version(&receiver), "1.10.0");
        let refused = slot.report().borrow().candidate.clone().unwrap();
        assert_eq!(refused.state, CandidateState::Refused);
        assert!(
            refused
                .message
                .contains("1.9.0 is older than the live version 1.10.0"),
            "{}",
            refused.message
        );
        proof.order(None, Some(&old.digest.to_string()));
        slot.settle(Some(&old)).await;
        assert_eq!(version(&receiver), "1.9.0");
        proof.order(None, None);
        slot.settle(Some(&signed_file("2.0.0", "2.0.0").await)).await;
        assert_eq!(version(&receiver), "2.0.0");
    }

    #[tokio::test]
    async fn a_plugin_that_is_another_version_than_is_signed_is_refused() {
        let proof = Fake::new();
        let (slot, receiver) = slot(&proof);
        slot.settle(Some(&signed_file("1.0.0", "3.0.0").await)).await;
        let reason = live(&receiver).err().unwrap();
        assert!(
            reason.contains("for version 3.0.0, but the plugin has version 1.0.0"),
            "{reason}"
        );
    }
}
