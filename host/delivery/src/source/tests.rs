use std::fs::File;

use tempfile::TempDir;

use super::*;
use crate::tests::assert_says;

mod packed;

/// Looks until the file has settled.
fn settled(source: &mut WatchedFile) -> Look {
    loop {
        match source.look() {
            Look::Unsettled => std::thread::sleep(SETTLE),
            look => return look,
        }
    }
}

/// Looks as if the files had not changed for long.
fn at_rest(source: &mut WatchedFile) -> Look {
    loop {
        match source.look() {
            Look::Unsettled => std::thread::sleep(SETTLE),
            Look::Same if source.told != source.seen.as_ref().map(|(files, _)| files.clone()) => {
                source.seen.as_mut().unwrap().1 -= PATIENCE;
            }
            look => return look,
        }
    }
}

fn new(bytes: &[u8]) -> Look {
    Look::New(Found {
        digest: Digest::of(bytes),
        size: bytes.len(),
        signature: None,
        bytes: None,
    })
}

fn source() -> (TempDir, PathBuf, WatchedFile) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.wasm");
    let source = WatchedFile::new(file.clone(), 1000);
    (folder, file, source)
}

fn trouble(look: Look) -> String {
    match look {
        Look::Trouble(reason) => reason,
        look => panic!("{look:?}"),
    }
}

#[test]
fn new_contents_are_given_once_and_the_same_contents_never_again() {
    let (_folder, file, mut source) = source();
    fs::write(&file, "one").unwrap();
    assert_eq!(settled(&mut source), new(b"one"));
    assert_eq!(settled(&mut source), Look::Same);
    fs::write(&file, "one").unwrap();
    assert_eq!(
        settled(&mut source),
        Look::Same,
        "it was written, but is the same"
    );
    fs::write(&file, "two").unwrap();
    assert_eq!(settled(&mut source), new(b"two"));
}

#[test]
fn a_file_that_was_just_written_to_is_not_read_yet() {
    let (_folder, file, mut source) = source();
    fs::write(&file, "on").unwrap();
    assert!(matches!(source.look(), Look::Unsettled));
    fs::write(&file, "one").unwrap();
    assert!(matches!(source.look(), Look::Unsettled));
    assert_eq!(settled(&mut source), new(b"one"));
}

#[test]
fn an_empty_file_is_about_to_be_written_and_is_reported_when_it_stays_empty() {
    let (_folder, file, mut source) = source();
    fs::write(&file, "").unwrap();
    assert_eq!(settled(&mut source), Look::Same);
    fs::write(&file, "one").unwrap();
    assert_eq!(settled(&mut source), new(b"one"));
    fs::write(&file, "").unwrap();
    let reason = trouble(at_rest(&mut source));
    assert!(reason.starts_with("the file p.wasm is empty"), "{reason}");
    assert_eq!(settled(&mut source), Look::Same);
    fs::write(&file, "one").unwrap();
    assert_eq!(settled(&mut source), new(b"one"), "the trouble is over");
}

#[test]
fn a_file_whose_time_is_in_the_future_is_read_when_it_has_rested() {
    let (_folder, file, mut source) = source();
    fs::write(&file, "one").unwrap();
    let later = SystemTime::now() + Duration::from_secs(3600);
    let writable = File::options().write(true).open(&file).unwrap();
    writable.set_modified(later).unwrap();
    assert!(matches!(source.look(), Look::Unsettled));
    assert_eq!(settled(&mut source), new(b"one"));
}

#[test]
fn a_missing_file_and_its_return_are_reported_once() {
    let (folder, file, mut source) = source();
    fs::write(&file, "one").unwrap();
    assert_eq!(settled(&mut source), new(b"one"));
    fs::remove_file(&file).unwrap();
    // It may be about to be replaced.
    assert_eq!(source.look(), Look::Unsettled);
    assert_says(trouble(settled(&mut source)), "not there");
    assert_eq!(settled(&mut source), Look::Same);
    fs::write(&file, "one").unwrap();
    assert_eq!(settled(&mut source), new(b"one"), "the trouble is over");
    assert_eq!(settled(&mut source), Look::Same);

    fs::remove_dir_all(folder.path()).unwrap();
    assert_says(trouble(settled(&mut source)), "not there");
    fs::create_dir(folder.path()).unwrap();
    fs::write(&file, "two").unwrap();
    assert_eq!(settled(&mut source), new(b"two"));
}

#[test]
fn what_is_no_file_or_too_large_is_named_and_neither_read_nor_waited_for() {
    let (folder, file, mut source) = source();
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    };
    let mut is_refused = |words: &str| assert_says(trouble(settled(&mut source)), words);
    pipe(&file);
    is_refused("p.wasm: it is not a file");
    fs::remove_file(&file).unwrap();
    fs::write(&file, vec![0; 1001]).unwrap();
    is_refused("larger than 1000 bytes");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    is_refused("p.wasm: it is not a file");
    fs::remove_dir(&file).unwrap();
    fs::write(&file, "one").unwrap();
    let signature = folder.path().join("p.wasm.sig");
    pipe(&signature);
    is_refused("p.wasm.sig: it is not a file");
    fs::remove_file(&signature).unwrap();
    fs::write(&signature, vec![b' '; SIGNATURE_LIMIT + 1]).unwrap();
    is_refused("p.wasm.sig: it is larger than");
    fs::remove_file(&signature).unwrap();
    assert_eq!(settled(&mut source), new(b"one"), "and goes on");
    // What becomes a pipe while it is live.
    fs::remove_file(&file).unwrap();
    pipe(&file);
    assert!(trouble(settled(&mut source)).contains("not a file"));
}

#[test]
fn a_plugin_is_found_by_its_bare_name() {
    // A test cannot change the folder of the process for itself alone.
    let folder = tempfile::Builder::new().prefix("bare-").tempdir_in(".").unwrap();
    let name = format!("{}.wasm", folder.path().file_name().unwrap().to_str().unwrap());
    let signature = format!("{name}.sig");
    fs::write(&name, "one").unwrap();
    fs::write(&signature, "s").unwrap();
    let look = settled(&mut WatchedFile::new(PathBuf::from(&name), 1000));
    fs::remove_file(&name).unwrap();
    fs::remove_file(&signature).unwrap();
    assert!(matches!(look, Look::New(content) if content.signature.is_some()));
}

#[test]
fn what_others_keep_beside_a_plugin_does_not_delay_it() {
    let (folder, file, mut source) = source();
    fs::write(&file, "one").unwrap();
    std::thread::sleep(SETTLE);
    fs::write(folder.path().join("p.wasm.log"), "a line").unwrap();
    assert_eq!(source.look(), new(b"one"));
}

#[test]
fn a_file_that_keeps_changing_is_reported_once_and_used_when_it_stays() {
    let (_folder, file, mut source) = source();
    fs::write(&file, "one").unwrap();
    assert_eq!(source.look(), Look::Unsettled);
    source.changing = Some(Instant::now() - PATIENCE);
    fs::write(&file, "two").unwrap();
    assert_says(trouble(source.look()), "p.wasm keeps changing");
    fs::write(&file, "three").unwrap();
    assert_eq!(source.look(), Look::Unsettled);
    assert_eq!(settled(&mut source), new(b"three"));
}

#[test]
fn the_reason_why_a_mounted_file_is_missing_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = WatchedFile::mounted(folder.path().join("p.wasm"), 1000);
    for problem in ["forbidden", "another key"] {
        fs::write(folder.path().join(PROBLEM), problem).unwrap();
        assert_eq!(trouble(settled(&mut source)), problem);
        assert_eq!(settled(&mut source), Look::Same);
    }
}
