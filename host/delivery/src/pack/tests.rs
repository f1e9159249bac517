use super::*;
use crate::testing::noise;
use crate::tests::assert_says;

const NAME: &str = "p.wasm";

#[test]
fn what_was_packed_is_unpacked_as_it_was() {
    let bytes = noise(10_000);
    for compression in Compression::ALL {
        let packed = compression.pack(&bytes).unwrap();
        assert_eq!(compression.unpack(&packed, 10_000).unwrap(), bytes);
        let file = format!("a/{NAME}{}", compression.suffix());
        assert_eq!(Compression::of(file.as_ref()), compression);
    }
}

#[test]
fn a_bomb_is_not_unpacked_further_than_the_limit() {
    let bomb = vec![0; 64 << 20];
    for compression in [Compression::Zstd, Compression::Gzip] {
        let packed = compression.pack(&bomb).unwrap();
        assert!(packed.len() < 100_000);
        assert_eq!(compression.unpack(&packed, 1 << 20), Err(too_large(1 << 20)));
    }
    let packed = Compression::Gzip.pack(&bomb).unwrap();
    let unpacked = read(flate2::read::MultiGzDecoder::new(&packed[..]), 1 << 20);
    assert_eq!(
        unpacked.unwrap().len(),
        (1 << 20) + 1,
        "and a byte to notice it by"
    );
}

#[test]
fn what_is_cut_off_or_something_else_is_refused_in_words() {
    for compression in [Compression::Zstd, Compression::Gzip] {
        let packed = compression.pack(&noise(10_000)).unwrap();
        for bytes in [&packed[..packed.len() / 2], b"nothing of the kind".as_slice()] {
            let error = compression.unpack(bytes, 10_000).unwrap_err();
            assert_says(error, &format!("{compression:?}"));
        }
    }
}

fn index() -> (Index, Vec<Vec<u8>>) {
    Index::split(NAME, &noise(2500), Compression::Zstd, 1000).unwrap()
}

fn refusal(index: &Index) -> String {
    let text = serde_json::to_vec(index).unwrap();
    Index::read(NAME, &text, 10_000).unwrap_err().to_string()
}

#[test]
fn a_plugin_is_split_and_joined() {
    let (index, parts) = index();
    let files: Vec<_> = index.parts.iter().map(|part| part.file.as_str()).collect();
    assert_eq!(files, ["p.wasm.zst.0", "p.wasm.zst.1", "p.wasm.zst.2"]);
    let text = serde_json::to_vec(&index).unwrap();
    assert_eq!(Index::read(NAME, &text, 3000).unwrap(), index);
    assert_eq!(index.join(&parts.concat()).unwrap(), noise(2500));
}

#[test]
fn an_index_that_asks_for_too_much_or_for_files_of_others_is_refused() {
    let (good, _) = index();
    let text = serde_json::to_vec(&good).unwrap();
    assert_eq!(Index::read(NAME, &text, 2499), Err(too_large(2499)));
    assert!(Index::read(NAME, b"{}", 2500).is_err());
    let with = |change: fn(&mut Index)| {
        let mut index = good.clone();
        change(&mut index);
        refusal(&index)
    };
    let twice = with(|index| index.parts[1].file = index.parts[0].file.clone());
    assert!(twice.contains("listed twice"), "{twice}");
    for file in ["q.wasm.0", "p.wasm./../../etc/passwd", "/etc/passwd", "p.wasm"] {
        let mut index = good.clone();
        index.parts[0].file = file.to_owned();
        assert_says(refusal(&index), "must begin with \"p.wasm.\"");
    }
    assert!(with(|index| index.parts.clear()).contains("0 parts"));
    assert!(with(|index| index.version = 2).contains("its version is 2"));
    assert!(with(|index| index.parts[0].size = usize::MAX).contains("the limit"));
}

#[test]
fn parts_that_make_something_else_are_refused_with_both_digests() {
    let (mut index, parts) = index();
    index.sha256 = Digest::of(b"something else");
    let words = format!("{} … {}", Digest::of(&noise(2500)), index.sha256);
    assert_says(index.join(&parts.concat()).unwrap_err(), &words);
}
