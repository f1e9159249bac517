//! Which version a slot makes live: of its file's, the kept and the live ones, depending on the proof and the
//! orders.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::super::candidate_check::{
    CandidateCheck, HeldBack, OrderKind, Orders, Progress, ProofResult, Recorded,
};
use super::super::kept::Versions;
use super::super::registry::{Live, Slot};
use super::super::report::CandidateState;
use super::RUNTIME;
use super::swaps::{expected, live, metrics, plugin_file, version};
use operator_host_core::digest::{Digest, Prefix};
use operator_host_runtime::{Limits, Plugin};

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
                message: "it fails: o: it trapped".into(),
                summary: "it fails".into(),
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

    async fn who(&self, order: OrderKind, _digest: &Digest) -> Option<String> {
        Some(format!("{order:?} by a user"))
    }

    fn how_to(&self, order: OrderKind, digest: Option<&Digest>) -> String {
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
    let proof = Arc::clone(proof) as _;
    let (slot, receiver) = Slot::new(RUNTIME.clone(), expected("Fixture"), metrics(), proof);
    match state.map(|state| Versions::open(state, "test", 5, 1 << 30).unwrap()) {
        None => (slot, receiver),
        Some(versions) => (slot.keeping(versions), receiver),
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
    let is_longer = first < second && second < Duration::from_secs(60);
    assert!(is_longer, "{first:?} {second:?}");
    assert_live(&receiver, 1);
    let report = slot.report().borrow().candidate.clone().unwrap();
    assert_eq!(report.state, CandidateState::HeldBack);
    assert_eq!(report.diff, "-a\n+b");
    assert!(slot.report().borrow().trouble().unwrap().contains("it fails"));
    assert_eq!(proof.announced(), [Some("Fails".into())], "reported once");
    // The objects have changed.
    proof.hold(&[]);
    assert_eq!(settle(&slot, 2).await, None);
    assert_live(&receiver, 2);
    assert_eq!(because(&slot), "proved: 2 objects");
    assert_eq!(proof.announced(), [None]);
    assert_eq!(slot.report().borrow().trouble(), None);
}

#[tokio::test]
async fn nothing_is_held_back_any_more_when_the_file_holds_another_version() {
    let proof = Fake::new();
    proof.hold(&[2, 3]);
    let (slot, receiver) = slot(&proof, None);
    settle(&slot, 1).await;
    settle(&slot, 2).await;
    settle(&slot, 3).await;
    let expected = [Some("Fails".into()), None, Some("Fails".into())];
    assert_eq!(proof.announced(), expected);
    settle(&slot, 1).await;
    assert_eq!(proof.announced(), [None]);
    assert_live(&receiver, 1);
    assert!(slot.report().borrow().candidate.is_none());
    // A file that is not a plugin replaces it too.
    settle(&slot, 2).await;
    slot.settle(Some(&plugin_file(b"nothing"))).await;
    assert_eq!(proof.announced(), [Some("Fails".into()), None]);
    let refused = slot.report().borrow().candidate.clone().unwrap();
    assert_eq!(refused.state, CandidateState::Refused);
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
