//! Runs every target on its corpus and on a fixed number of mutations of it, which are the same in every run.

// A helper that fails is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzz_targets::{TARGETS, Target};

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora")
}

/// Returns the files of a corpus with their names, sorted.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = corpora().join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Xorshift: random enough to change bytes, and reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }
}

/// Tokens that have a meaning for a parser.
const TOKENS: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"/",
    b"..",
    b"\n",
    b"\0",
    b"\xff",
    b"null",
    b"-1",
    b"0",
    b"1e999",
    b"18446744073709551616",
    b"\\u0000",
    b"\\\"",
    "\u{feff}".as_bytes(),
    "\u{202e}é".as_bytes(),
    b"&a",
    b"*a",
    b"<<: ",
];

/// Changes an input in one to eight places.
fn mutate(input: &[u8], other: &[u8], longest: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at).min(32) + 1);
        match random.below(8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[3],
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let from = random.below(other.len() + 1);
                let to = from + random.below((other.len() - from).min(64) + 1);
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            6 => bytes.truncate(at.max(1)),
            _ => {
                let token = TOKENS[random.below(TOKENS.len())];
                bytes.splice(at..end, token.iter().copied());
            }
        }
    }
    bytes.truncate(longest);
    bytes
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

/// Runs a target; if it fails, saves the input so that it can be examined and added to the corpus.
fn check(target: &Target, what: &str, input: &[u8]) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) else {
        return;
    };
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
    fs::write(&file, input).unwrap();
    panic!(
        "the target {} fails on {what}: {}\nThe input is in {}: keep it in tests/fuzz/corpora/{} as a regression.",
        target.name,
        words(&*panic),
        file.display(),
        target.name
    );
}

#[track_caller]
fn run(name: &str) {
    let target = fuzz_targets::find(name).expect("a target");
    let files = corpus(name);
    assert!(!files.is_empty(), "{name} has no corpus");
    for (file, input) in &files {
        check(&target, file, input);
    }
    let mut random = Random(0x5eed);
    for (file, input) in &files {
        for number in 0..target.mutations {
            let (_, other) = &files[random.below(files.len())];
            let mutation = mutate(input, other, target.longest, &mut random);
            check(&target, &format!("mutation {number} of {file}"), &mutation);
        }
    }
}

/// Defines a test for each target, so that they run in parallel.
macro_rules! targets {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                run($name);
            }
        )*

        #[test]
        fn every_target_has_a_test_and_every_corpus_a_target() {
            let tested = [$($name),*];
            let targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(targets, tested);
            for entry in fs::read_dir(corpora()).unwrap() {
                let name = entry.unwrap().file_name();
                assert!(targets.iter().any(|target| name == *target), "{name:?} is no target's corpus");
            }
        }
    };
}

targets! {
    a_plugin_file_is_refused_in_words_or_has_a_form_of_a_plugin: "plugin-file",
    no_answer_makes_a_plan_that_the_configuration_does_not_allow: "answer",
    packed_plugins_unpack_to_what_their_index_says_and_no_more: "pack",
    a_configuration_is_refused_with_its_place_or_can_be_run: "config",
    a_selector_picks_what_it_says: "selector",
    a_review_is_refused_in_words_or_answered_under_its_uid: "review",
    a_converted_object_has_its_own_metadata_and_the_spec_of_the_plugin: "conversion",
    what_a_registry_sends_is_shown_on_one_line_and_kept_within_limits: "registry",
    no_value_of_a_secret_is_left_in_a_record: "mask",
    the_text_of_an_object_answers_as_its_tree_does: "scan",
    what_a_watch_sends_is_read_and_kept_as_it_is: "watch",
}
