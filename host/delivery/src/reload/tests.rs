use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;
use tokio::sync::mpsc;

use std::time::Instant;

use super::*;
use operator_host_core::digest::Digest;

const LIMIT: Duration = Duration::from_secs(30);

/// A folder whose file `p.wasm` is watched.
struct Folder {
    root: TempDir,
    path: PathBuf,
    looks: mpsc::UnboundedReceiver<Look>,
    _watched: AbortOnDropHandle<()>,
}

impl Folder {
    /// Watches a folder with `one` in its file.
    async fn new(fill: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("plugins");
        fs::create_dir(&path).unwrap();
        fill(&path);
        let (sender, looks) = mpsc::unbounded_channel();
        let file = WatchedFile::new(path.join("p.wasm"), 1 << 20);
        let _watched = watch_file(file, None, move |look| {
            if !matches!(look, Look::Same | Look::Unsettled) {
                let _ = sender.send(look);
            }
        });
        let mut folder = Self {
            root,
            path,
            looks,
            _watched,
        };
        folder.next_is(b"one").await;
        folder
    }

    fn file(&self) -> PathBuf {
        self.path.join("p.wasm")
    }

    async fn next(&mut self) -> Look {
        let next = tokio::time::timeout(LIMIT, self.looks.recv()).await;
        next.expect("a look at the file").expect("a watched file")
    }

    async fn next_is(&mut self, content: &[u8]) {
        match self.next().await {
            Look::New(new) => assert_eq!(new.digest, Digest::of(content)),
            look => panic!("{look:?}"),
        }
    }

    async fn quiet(&mut self) {
        let next = tokio::time::timeout(POLL * 3, self.looks.recv()).await;
        assert!(next.is_err(), "{next:?}");
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

#[tokio::test]
async fn a_config_map_mount_that_is_swapped_is_read_once() {
    let mut folder = Folder::new(|path| project(path, 1, "one")).await;
    let path = folder.path.clone();
    for version in 2..4 {
        let content = format!("version {version}");
        project(&path, version, &content);
        folder.next_is(content.as_bytes()).await;
    }
    project(&path, 4, "version 3");
    folder.quiet().await;
}

#[tokio::test]
async fn a_file_that_grows_is_read_once_when_it_is_whole() {
    let mut folder = Folder::new(|path| fs::write(path.join("p.wasm"), "one").unwrap()).await;
    for attempt in 0.. {
        let path = folder.file();
        let grown = tokio::task::spawn_blocking(move || grow(&path, attempt)).await;
        let (whole, pause) = grown.unwrap();
        let mut looks = vec![folder.next().await];
        while !matches!(looks.last(), Some(Look::New(new)) if new.digest == Digest::of(&whole)) {
            looks.push(folder.next().await);
        }
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

#[tokio::test]
async fn a_folder_that_goes_and_comes_back_is_watched_again() {
    let mut folder = Folder::new(|path| fs::write(path.join("p.wasm"), "one").unwrap()).await;
    let away = folder.root.path().join("away");
    fs::rename(&folder.path, &away).unwrap();
    assert!(matches!(folder.next().await, Look::Trouble(_)));
    fs::create_dir(&folder.path).unwrap();
    let new = folder.path.join(".p.wasm.swp");
    fs::write(&new, "two").unwrap();
    fs::rename(new, folder.file()).unwrap();
    folder.next_is(b"two").await;
    folder.quiet().await;
}

#[tokio::test]
async fn a_file_that_nobody_wants_any_more_is_left_alone() {
    let mut folder = Folder::new(|path| fs::write(path.join("p.wasm"), "one").unwrap()).await;
    let (_sender, other) = mpsc::unbounded_channel::<Look>();
    let mut looks = std::mem::replace(&mut folder.looks, other);
    drop(folder);
    // The task has dropped the callback.
    let ended = tokio::time::timeout(LIMIT, looks.recv()).await;
    assert_eq!(ended, Ok(None));
}
