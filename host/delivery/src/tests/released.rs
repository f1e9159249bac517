//! Files of live versions, which are dropped from memory and read again when they are needed.

use super::super::registry::{PluginFile, Slot};
use super::promotion::{Fake, assert_live, because, digest, settle, slot};
use super::swaps::{plugin_file, version};
use operator_host_core::sync::lock;

/// Puts the file into the slot. Returns whether it is in memory afterwards.
async fn is_in_memory(slot: &Slot, file: &PluginFile) -> bool {
    slot.settle(Some(file)).await;
    lock(&file.bytes).is_some()
}

#[tokio::test]
async fn the_file_of_a_live_version_is_in_memory_only_if_it_is_not_kept() {
    let state = tempfile::tempdir().unwrap();
    let proof = Fake::new();
    let (first, second) = (plugin_file(&version(1)), plugin_file(&version(2)));
    let (unkept, _) = slot(&proof, None);
    assert!(is_in_memory(&unkept, &first).await);
    let (kept, receiver) = slot(&proof, Some(state.path()));
    assert!(!is_in_memory(&kept, &first).await);
    proof.hold(&[2]);
    assert!(is_in_memory(&kept, &second).await, "it is not live");
    proof.hold(&[]);
    assert!(!is_in_memory(&kept, &second).await);
    assert_live(&receiver, 2);
    while kept.history().entries().is_empty() {
        tokio::task::yield_now().await;
    }
    // After a restart, with the version pinned and not.
    for pin in [None, Some(digest(2).to_string())] {
        proof.order(None, pin.as_deref());
        let (restarted, receiver) = slot(&proof, Some(state.path()));
        restarted.restore().await;
        assert!(
            !is_in_memory(&restarted, &plugin_file(&version(2))).await,
            "{pin:?}"
        );
        assert_live(&receiver, 2);
        assert_eq!(because(&restarted), "proved: 2 objects", "it is the same version");
        let since = restarted.report().borrow().live.clone().unwrap().since;
        assert_eq!(since, kept.history().entries()[0].at);
    }
}

#[tokio::test]
async fn a_file_that_was_dropped_from_memory_is_read_again_when_its_version_goes_live_again() {
    let state = tempfile::tempdir().unwrap();
    let proof = Fake::new();
    let (slot, receiver) = slot(&proof, Some(state.path()));
    settle(&slot, 1).await;
    let file = plugin_file(&version(2));
    assert!(!is_in_memory(&slot, &file).await);
    assert_live(&receiver, 2);
    proof.order(None, Some(&digest(1).to_string()));
    assert!(is_in_memory(&slot, &file).await, "it is not live");
    assert_live(&receiver, 1);
    proof.order(None, None);
    slot.settle(Some(&file)).await;
    assert_live(&receiver, 2);
}
