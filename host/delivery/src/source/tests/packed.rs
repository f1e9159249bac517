//! Plugins that are compressed, split into parts, or signed.

use super::*;
use crate::pack::{Compression, INDEX_SUFFIX, Index};

fn content(seed: u8) -> Vec<u8> {
    (0..900_u32)
        .map(|n| (n * n * 31 + n * u32::from(seed)).to_le_bytes()[1])
        .collect()
}

/// Writes a pack with parts of 100 bytes; returns the parts' files.
fn pack(folder: &std::path::Path, bytes: &[u8]) -> Vec<PathBuf> {
    let (index, parts) = Index::split("p.wasm", bytes, Compression::Gzip, 100).unwrap();
    assert!(parts.len() > 3);
    let files: Vec<_> = index.parts.iter().map(|part| folder.join(&part.file)).collect();
    for (file, part) in files.iter().zip(parts) {
        fs::write(file, part).unwrap();
    }
    let text = serde_json::to_vec(&index).unwrap();
    fs::write(folder.join(format!("p.wasm{INDEX_SUFFIX}")), text).unwrap();
    files
}

#[test]
fn a_compressed_file_is_its_contents() {
    for compression in [Compression::Zstd, Compression::Gzip] {
        let (folder, _, mut source) = source();
        let packed = compression.pack(&content(1)).unwrap();
        let file = format!("p.wasm{}", compression.suffix());
        fs::write(folder.path().join(file), packed).unwrap();
        assert_eq!(settled(&mut source), new(&content(1)));
        assert_eq!(settled(&mut source), Look::Same);
    }
}

#[test]
fn the_same_contents_in_another_form_are_not_new() {
    let (folder, file, mut source) = source();
    fs::write(&file, content(1)).unwrap();
    assert_eq!(settled(&mut source), new(&content(1)));
    fs::remove_file(&file).unwrap();
    pack(folder.path(), &content(1));
    assert_eq!(settled(&mut source), Look::Same);
}

#[test]
fn a_bomb_is_refused_once_and_not_unpacked_again() {
    let (folder, _, mut source) = source();
    let bomb = Compression::Gzip.pack(&vec![0; 50_000]).unwrap();
    assert!(bomb.len() < 1000);
    fs::write(folder.path().join("p.wasm.gz"), bomb).unwrap();
    assert_says(trouble(settled(&mut source)), "the limit");
    assert!(source.told.is_some(), "it is remembered");
    assert_eq!(settled(&mut source), Look::Same);
}

#[test]
fn a_pack_is_put_together_and_a_new_one_is_read_when_all_of_it_is_there() {
    let (folder, _, mut source) = source();
    let old = pack(folder.path(), &content(1));
    assert_eq!(settled(&mut source), new(&content(1)));
    let kept: Vec<_> = old.iter().map(|file| fs::read(file).unwrap()).collect();
    let files = pack(folder.path(), &content(2));
    let last = fs::read(files.last().unwrap()).unwrap();
    // The last ConfigMap is still the old one.
    fs::write(files.last().unwrap(), kept.last().unwrap()).unwrap();
    std::thread::sleep(SETTLE * 2);
    assert_eq!(source.look(), Look::Same, "not all there yet");
    assert_says(trouble(at_rest(&mut source)), "is not the one in the index");
    assert_eq!(at_rest(&mut source), Look::Same, "reported once");
    fs::write(files.last().unwrap(), last).unwrap();
    assert_eq!(settled(&mut source), new(&content(2)));
}

#[test]
fn a_pack_with_a_part_missing_or_doubled_is_never_used() {
    let (folder, _, mut source) = source();
    let files = pack(folder.path(), &content(1));
    let third = fs::read(&files[2]).unwrap();
    fs::remove_file(&files[2]).unwrap();
    std::thread::sleep(SETTLE * 2);
    assert_eq!(source.look(), Look::Same);
    assert_says(trouble(at_rest(&mut source)), "the part p.wasm.gz.2 is missing");
    fs::copy(&files[1], &files[2]).unwrap();
    assert_says(trouble(at_rest(&mut source)), "p.wasm.gz.2 is not the one");
    fs::write(&files[2], third).unwrap();
    assert_eq!(settled(&mut source), new(&content(1)));
}

#[test]
fn a_pack_whose_digest_is_wrong_is_refused_at_once() {
    let (folder, _, mut source) = source();
    pack(folder.path(), &content(1));
    let file = folder.path().join("p.wasm.pack");
    let text = fs::read_to_string(&file).unwrap();
    let right = Digest::of(&content(1)).to_string();
    fs::write(&file, text.replace(&right, &Digest::of(b"other").to_string())).unwrap();
    let words = format!("{right} … pack the plugin again");
    assert_says(trouble(settled(&mut source)), &words);
    fs::write(&file, "{}").unwrap();
    assert_says(trouble(settled(&mut source)), "index");
}

#[test]
fn two_forms_of_one_plugin_are_refused_by_name() {
    let (folder, file, mut source) = source();
    fs::write(&file, content(1)).unwrap();
    let packed = folder.path().join("p.wasm.gz");
    fs::write(&packed, Compression::Gzip.pack(&content(1)).unwrap()).unwrap();
    let words = "p.wasm and p.wasm.gz: remove all except one";
    assert_says(trouble(at_rest(&mut source)), words);
    fs::remove_file(packed).unwrap();
    assert_eq!(settled(&mut source), new(&content(1)));
}

#[test]
fn a_signature_comes_with_the_contents_and_a_new_one_is_a_change() {
    let (folder, file, mut source) = source();
    fs::write(&file, "one").unwrap();
    assert_eq!(settled(&mut source), new(b"one"));
    fs::write(folder.path().join("p.wasm.sig"), "signature").unwrap();
    let signed = Look::New(Found {
        digest: Digest::of(b"one"),
        size: 3,
        signature: Some(Bytes::from_static(b"signature")),
        bytes: None,
    });
    assert_eq!(settled(&mut source), signed);
    assert_eq!(settled(&mut source), Look::Same);
}

#[test]
fn an_index_or_a_signature_that_is_empty_is_waited_for_and_named_when_it_stays_so() {
    for empty in [format!("p.wasm{INDEX_SUFFIX}"), "p.wasm.sig".to_owned()] {
        let (folder, file, mut source) = source();
        let is_index = empty.ends_with(INDEX_SUFFIX);
        if !is_index {
            fs::write(&file, content(1)).unwrap();
        }
        fs::write(folder.path().join(&empty), "").unwrap();
        assert_eq!(settled(&mut source), Look::Same);
        let words = format!("the file {empty} is empty");
        assert_says(trouble(at_rest(&mut source)), &words);
        match is_index {
            true => drop(pack(folder.path(), &content(1))),
            false => fs::write(folder.path().join(&empty), "signature").unwrap(),
        }
        assert!(matches!(settled(&mut source), Look::New(new) if new.digest == Digest::of(&content(1))));
    }
}

#[test]
fn a_configuration_is_a_plain_file() {
    let (folder, file, _) = source();
    fs::write(folder.path().join("p.wasm.gz"), "x").unwrap();
    let mut source = WatchedFile::plain(file.clone(), 1000);
    assert!(trouble(settled(&mut source)).contains("not there"));
    fs::write(&file, "one").unwrap();
    assert!(matches!(settled(&mut source), Look::New(new) if new.bytes.as_deref() == Some(b"one")));
}
