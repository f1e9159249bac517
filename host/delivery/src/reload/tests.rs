use std::io::Write as _;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::super::source::SETTLE;
use super::*;

const LIMIT: Duration = Duration::from_secs(30);

/// A folder watched by the scanner: the file `p.wasm`, and a second file whose events arrive after all
/// earlier ones.
struct Folder {
    root: TempDir,
    path: PathBuf,
    looks: mpsc::Receiver<(usize, Look)>,
    marks: u32,
    _files: Files,
    _watched: Vec<Watched>,
}

impl Folder {
    fn new(hints: bool, fill: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("plugins");
        fs::create_dir(&path).unwrap();
        let marks = root.path().join("marks");
        fs::create_dir(&marks).unwrap();
        fs::write(marks.join("m"), "0").unwrap();
        fill(&path);
        let sources = vec![
            WatchedFile::new(path.join("p.wasm"), 1 << 20),
            WatchedFile::new(marks.join("m"), 100),
        ];
        let (sender, looks) = mpsc::channel();
        let files = Files::with(hints, std::env::temp_dir(), Arc::new(Metrics::unread())).unwrap();
        let watch = |(index, source)| {
            let sender = sender.clone();
            files.watch(source, move |look, _| {
                let _ = sender.send((index, look));
            })
        };
        let watched = sources.into_iter().enumerate().map(watch).collect();
        let mut folder = Self {
            root,
            path,
            looks,
            marks: 0,
            _files: files,
            _watched: watched,
        };
        folder.looks_until_mark();
        folder
    }

    fn with(content: &str) -> Self {
        Self::new(true, |path| fs::write(path.join("p.wasm"), content).unwrap())
    }

    fn file(&self) -> PathBuf {
        self.path.join("p.wasm")
    }

    /// Returns the next event of the file.
    fn next(&self) -> Look {
        loop {
            let (index, look) = self.looks.recv_timeout(LIMIT).expect("a look at the file");
            if index == 0 {
                return look;
            }
        }
    }

    fn next_is(&self, content: &[u8]) {
        match self.next() {
            Look::New(new) => assert_eq!(new.bytes, content),
            look => panic!("{look:?}"),
        }
    }

    /// Returns all events of the file up to the event of a change made now.
    fn looks_until_mark(&mut self) -> Vec<Look> {
        let file = self.root.path().join("marks/m");
        if self.marks > 0 {
            fs::write(file, self.marks.to_string()).unwrap();
        }
        self.marks += 1;
        let mut looks = Vec::new();
        loop {
            match self.looks.recv_timeout(LIMIT).expect("a look at the mark") {
                (0, look) => looks.push(look),
                _ => return looks,
            }
        }
    }

    fn quiet(&mut self) {
        assert_eq!(self.looks_until_mark(), []);
    }
}

/// Changes the folder as the kubelet changes a mounted ConfigMap.
fn project(folder: &Path, version: u32, content: &str) {
    let name = format!("..2026_11_21_{version}");
    fs::create_dir(folder.join(&name)).unwrap();
    fs::write(folder.join(&name).join("p.wasm"), content).unwrap();
    let data = folder.join("..data");
    let old = fs::read_link(&data).ok();
    symlink(&name, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), &data).unwrap();
    if old.is_none() {
        symlink("..data/p.wasm", folder.join("p.wasm")).unwrap();
    }
    if let Some(old) = old {
        fs::remove_dir_all(folder.join(old)).unwrap();
    }
}

#[test]
fn a_config_map_mount_that_is_swapped_is_read_once() {
    let mut folder = Folder::new(true, |path| project(path, 1, "one"));
    let path = folder.path.clone();
    for version in 2..5 {
        let content = format!("version {version}");
        project(&path, version, &content);
        folder.next_is(content.as_bytes());
        folder.quiet();
    }
    project(&path, 5, "version 4");
    folder.quiet();
}

#[test]
fn a_file_that_grows_is_read_once_when_it_is_whole() {
    let mut folder = Folder::with("one");
    for attempt in 0.. {
        let (whole, pause) = grow(&folder.file(), attempt);
        let mut looks = vec![folder.next()];
        while !matches!(looks.last(), Some(Look::New(new)) if new.bytes == whole) {
            looks.push(folder.next());
        }
        folder.quiet();
        // Otherwise the machine delayed the writer until the file had settled.
        if pause < SETTLE - Duration::from_millis(10) {
            assert_eq!(looks.len(), 1, "{looks:?}");
            return;
        }
    }
}

/// Rewrites a file slowly: returns its contents, and the longest pause of the writer.
fn grow(path: &Path, attempt: u32) -> (Vec<u8>, Duration) {
    let mut file = fs::File::create(path).unwrap();
    let (mut whole, mut pause, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
    for _ in 0..40 {
        let more = format!("more {attempt}");
        file.write_all(more.as_bytes()).unwrap();
        file.flush().unwrap();
        whole.extend_from_slice(more.as_bytes());
        pause = pause.max(last.elapsed());
        last = Instant::now();
        // The scenario under test.
        std::thread::sleep(Duration::from_millis(20));
    }
    (whole, pause.max(last.elapsed()))
}

#[test]
fn a_file_that_is_renamed_into_place_is_read_once() {
    let mut folder = Folder::with("one");
    let new = folder.path.join(".p.wasm.swp");
    fs::write(&new, "two").unwrap();
    fs::rename(new, folder.file()).unwrap();
    folder.next_is(b"two");
    folder.quiet();
}

#[test]
fn a_folder_that_goes_and_comes_back_is_watched_again() {
    let mut folder = Folder::with("one");
    let away = folder.root.path().join("away");
    fs::rename(&folder.path, &away).unwrap();
    assert!(matches!(folder.next(), Look::Trouble(_)));
    folder.quiet();
    fs::create_dir(&folder.path).unwrap();
    fs::write(folder.file(), "two").unwrap();
    folder.next_is(b"two");
    fs::write(folder.file(), "three").unwrap();
    folder.next_is(b"three");
    folder.quiet();
}

#[test]
fn a_volume_without_notifications_is_looked_at_from_time_to_time() {
    let mut folder = Folder::new(false, |path| fs::write(path.join("p.wasm"), "one").unwrap());
    fs::write(folder.file(), "two").unwrap();
    folder.next_is(b"two");
    folder.quiet();
}

#[test]
fn other_files_are_ignored() {
    let mut folder = Folder::with("one");
    for i in 0..1000 {
        fs::write(folder.path.join(format!("{i}.txt")), "x").unwrap();
    }
    folder.quiet();
    fs::write(folder.file(), "two").unwrap();
    folder.next_is(b"two");
}

#[test]
fn looking_at_the_files_makes_no_hints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.wasm");
    fs::write(&file, "one").unwrap();
    let source = WatchedFile::new(file.clone(), 100);
    let (sender, hints) = mpsc::channel();
    let mut folders = Folders::new(Some(sender));
    folders.follow(std::iter::once(source.folder()));
    for _ in 0..10 {
        fs::read(&file).unwrap();
    }
    fs::write(folder.path().join("other"), "x").unwrap();
    // Events arrive in order: if reading were a change, there would be more hints than the few of the write.
    let mut count = 0;
    while hints.recv_timeout(Duration::from_secs(1)).is_ok() {
        count += 1;
    }
    assert!((1..=5).contains(&count), "{count} hints");
}

#[test]
fn a_file_that_nobody_wants_any_more_is_left_alone_and_a_new_one_is_looked_at() {
    let mut folder = Folder::with("one");
    let other = folder.root.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("q.wasm"), "q").unwrap();
    let (sender, looks) = mpsc::channel();
    let source = WatchedFile::new(other.join("q.wasm"), 100);
    let on_look = move |look, _| {
        let _ = sender.send(look);
    };
    let watched = folder._files.watch(source, on_look);
    assert!(matches!(looks.recv_timeout(LIMIT), Ok(Look::New(..))));
    drop(watched);
    // The thread has dropped the callback.
    assert_eq!(looks.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected));
    fs::write(folder.file(), "two").unwrap();
    folder.next_is(b"two");
    folder.quiet();
}
