//! Files that wait to be loaded, which are read when it is their turn.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::super::registry::PluginFile;
use super::super::source::Found;
use super::promotion::{Fake, assert_live, because, digest, settle, slot};
use super::swaps::{live, version};
use super::*;
use crate::pack::Compression;
use operator_host_core::digest::Digest;

/// Writes a version to a folder, packed, as a look finds it.
fn found(folder: &Path, number: u8) -> PluginFile {
    let path = folder.join("fixture.wasm");
    let packed = Compression::Gzip.pack(&version(number)).unwrap();
    fs::write(path.with_extension("wasm.gz"), packed).unwrap();
    let found = Found {
        digest: digest(number),
        size: version(number).len(),
        signature: None,
        bytes: None,
    };
    PluginFile::found(path, found)
}

/// Regression: 24 plugins that were unpacked and waited took 24 times the memory of one.
#[tokio::test]
async fn a_file_that_waits_is_packed_and_is_read_when_it_is_its_turn() {
    let folder = tempfile::tempdir().unwrap();
    let (slot, receiver) = slot(&Fake::new(), None);
    let file = found(folder.path(), 1);
    // Somebody of the same tenant has all turns.
    let tenant = RUNTIME.tenant("waits");
    let slot = slot.expecting(super::super::registry::Expected {
        tenant: "waits".into(),
        ..slot.expected().clone()
    });
    let turns = tenant.acquire(usize::MAX).await;
    let mut settle = Box::pin(slot.settle(Some(&file)));
    let settled = tokio::time::timeout(Duration::from_millis(50), settle.as_mut()).await;
    assert!(settled.is_err());
    let waits = async {
        tokio::task::yield_now().await;
        // It was not read before.
        fs::remove_file(folder.path().join("fixture.wasm.gz")).unwrap();
        drop(turns);
    };
    tokio::join!(settle, waits);
    let error = live(&receiver).err().unwrap();
    assert_says(error, "its file cannot be read again");
    slot.settle(Some(&found(folder.path(), 1))).await;
    assert_live(&receiver, 1);
}

#[tokio::test]
async fn a_file_that_has_changed_meanwhile_is_not_what_was_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let (slot, receiver) = slot(&Fake::new(), None);
    let first = found(folder.path(), 1);
    let second = found(folder.path(), 2);
    let again = slot.settle(Some(&first)).await;
    assert!(again.is_some(), "it may change back");
    // Nothing is wrong with it.
    assert_eq!(live(&receiver).err().unwrap(), "loading");
    slot.settle(Some(&second)).await;
    assert_live(&receiver, 2);
}

#[tokio::test]
async fn what_was_pulled_waits_in_a_file_without_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let pulled = |folder: &Path| {
        let bytes = version(1);
        let digest = Digest::of(&bytes);
        PluginFile::pulled(folder, bytes.into(), digest, None)
    };
    let file = pulled(folder.path());
    assert!(!file.is_in_memory());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let (slot, receiver) = slot(&Fake::new(), None);
    slot.settle(Some(&file)).await;
    assert_live(&receiver, 1);
    assert!(pulled(&folder.path().join("missing")).is_in_memory());
}

#[tokio::test]
async fn a_version_stays_known_after_a_restart_and_goes_live_again_from_the_kept_ones() {
    let (state, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let proof = Fake::new();
    let (kept, receiver) = slot(&proof, Some(state.path()));
    settle(&kept, 1).await;
    let file = found(folder.path(), 2);
    kept.settle(Some(&file)).await;
    assert_live(&receiver, 2);
    while kept.history().entries().len() < 2 {
        tokio::task::yield_now().await;
    }
    // After a restart, with the version pinned and not.
    for pin in [None, Some(digest(2).to_string())] {
        proof.order(None, pin.as_deref());
        let (restarted, receiver) = slot(&proof, Some(state.path()));
        restarted.restore().await;
        restarted.settle(Some(&file)).await;
        assert_live(&receiver, 2);
        assert_eq!(because(&restarted), "proved: 2 objects", "it is the same version");
        let since = restarted.report().borrow().live.clone().unwrap().since;
        assert_eq!(since, kept.history().entries()[0].at);
    }
    proof.order(None, Some(&digest(1).to_string()));
    kept.settle(Some(&file)).await;
    assert_live(&receiver, 1);
    proof.order(None, None);
    kept.settle(Some(&file)).await;
    assert_live(&receiver, 2);
}
