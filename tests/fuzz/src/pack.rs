//! Packed plugins: the unpacked data never exceeds the limit and always matches the index; an index refers only to
//! files in its own folder.

use operator_host_core::digest::Digest;
use operator_host_delivery::pack::{Compression, Index, MAX_PARTS};

use crate::draw::RandomSource;

const NAME: &str = "p.wasm";
const LIMIT: usize = 1 << 20;

pub(crate) fn run(bytes: &[u8]) {
    let mut draw = RandomSource::new(bytes);
    match draw.below(3) {
        0 => unpack(draw),
        1 => index(draw.rest()),
        _ => there_and_back(draw),
    }
}

/// Unpacks arbitrary bytes.
fn unpack(mut draw: RandomSource<'_>) {
    let compression = draw.pick(&Compression::ALL);
    let limit = draw.pick(&[0, 1, 100, 4096, LIMIT]);
    let packed = draw.rest();
    let Ok(unpacked) = compression.unpack(packed, limit) else {
        return;
    };
    assert!(unpacked.len() <= limit, "{} of {limit}", unpacked.len());
    // The limit does not change the result.
    assert_eq!(compression.unpack(packed, LIMIT).as_ref(), Ok(&unpacked));
    if unpacked.len() < 4096 {
        let again = compression.pack(&unpacked).expect("memory");
        assert_eq!(compression.unpack(&again, limit), Ok(unpacked));
    }
}

/// Parses arbitrary text as an index.
fn index(text: &[u8]) {
    let Ok(index) = Index::read(NAME, text, LIMIT) else {
        return;
    };
    assert!((1..=MAX_PARTS).contains(&index.parts.len()));
    assert!(index.size <= LIMIT);
    let mut names = Vec::new();
    let mut all = 0;
    for part in &index.parts {
        let is_beside = std::path::Path::new(&part.file).file_name() == Some(part.file.as_ref());
        assert!(is_beside && part.file.starts_with("p.wasm."), "{:?}", part.file);
        assert!(!part.file.contains('\0'), "{:?}", part.file);
        assert!(!names.contains(&&part.file), "{:?} is there twice", part.file);
        names.push(&part.file);
        all += part.size;
    }
    assert!(all <= LIMIT);
    let same = serde_json::to_vec(&index).expect("an index");
    assert_eq!(Index::read(NAME, &same, LIMIT), Ok(index));
}

/// Splits a plugin, possibly damages it, and joins it.
fn there_and_back(mut draw: RandomSource<'_>) {
    let compression = draw.pick(&Compression::ALL);
    let size = 1 + draw.below(64) * 16;
    let damage = (draw.byte(), draw.below(8));
    let plugin = draw.rest();
    let (index, parts) = Index::split(NAME, plugin, compression, size).expect("memory");
    let mut joined = parts.concat();
    assert_eq!(index.join(&joined).as_deref(), Ok(plugin));
    let at = usize::from(damage.0) % joined.len().max(1);
    if let Some(byte) = joined.get_mut(at) {
        *byte ^= 1 << damage.1;
        // Some bits do not matter, such as those of a header.
        if let Ok(other) = index.join(&joined) {
            assert_eq!(other, plugin, "damaged and taken");
            assert_eq!(Digest::of(&other), index.sha256);
        }
    }
}
