//! Reads files that other users may write to: only regular files, never more than a limit, and, from a confined folder,
//! nothing outside of it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Flags for reading. Opening a pipe or a device must not wait for its other end.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// Flags for looking at the type of a file without opening it.
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// The number of lookups of a path that is renamed meanwhile.
const TRIES: usize = 8;

/// Reads a whole regular file, following links anywhere.
///
/// # Errors
/// When it cannot be read, is not a regular file, or is larger than `limit` bytes.
pub fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    whole(open(path)?, limit)
}

fn whole(file: File, limit: usize) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    read_open(file, limit)?.ok_or_else(|| io::Error::other(format!("it is larger than {limit} bytes")))
}

/// Opens a path that may not be a regular file, without blocking.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(READ.bits().cast_signed())
        .open(path)
}

/// Reads the rest of a file; returns `None` when it is larger than the limit.
pub fn read_open(file: File, limit: usize) -> io::Result<Option<Vec<u8>>> {
    // Reserve exactly the size of the file, since contents may be held for long. The size may change meanwhile.
    let size = file.metadata()?.len().min(limit as u64);
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() <= limit))
}

/// A confined folder: no path within it leads outside.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    folder: OwnedFd,
}

impl Folder {
    /// Opens a folder, following links to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let folder = openat(CWD, path, LOOK | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Self {
            path: path.to_owned(),
            folder,
        })
    }

    /// Returns the metadata of a path in the folder without opening it.
    ///
    /// # Errors
    /// `CrossesDevices` when the path leads out of the folder.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        File::from(self.beneath(path, LOOK)?).metadata()
    }

    /// Opens a file in the folder for reading. It may not be a regular file.
    ///
    /// # Errors
    /// `CrossesDevices` when the path leads out of the folder.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        self.beneath(path, READ).map(File::from)
    }

    /// Reads a whole regular file in the folder.
    ///
    /// # Errors
    /// When it cannot be read, is not a regular file, leads out of the folder, or is larger than `limit` bytes.
    pub fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let file = self.file(path).map_err(|error| match error.kind() {
            io::ErrorKind::CrossesDevices => io::Error::other("it is a link that leads out of its folder"),
            _ => error,
        })?;
        whole(file, limit)
    }

    /// Opens a path in one step, so that a link cannot be put into it between a check and its use.
    fn beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        loop {
            match openat2(&self.folder, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if tries < TRIES => tries += 1,
                // The system call needs Linux 5.6, and some sandboxes lack it.
                Err(Errno::NOSYS | Errno::PERM) => return self.checked(path, flags),
                opened => return Ok(opened?),
            }
        }
    }

    /// Opens a path in two steps: resolves and checks it, then opens the resolved path without following a link at its
    /// end.
    fn checked(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let real = self.path.join(path).canonicalize()?;
        if !real.starts_with(self.path.canonicalize()?) {
            return Err(Errno::XDEV.into());
        }
        Ok(openat(CWD, &real, flags | OFlags::NOFOLLOW, Mode::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    fn pipe(path: &Path) {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    type Opens = fn(&Folder, &Path, OFlags) -> io::Result<OwnedFd>;

    #[test]
    fn a_path_may_lead_through_links_within_its_folder_and_not_out_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let outside = elsewhere.path().join("secret");
        std::fs::write(&outside, "out").unwrap();
        // As in a mounted ConfigMap.
        std::fs::create_dir(folder.path().join("..2026")).unwrap();
        std::fs::write(folder.path().join("..2026/p.wasm"), "in").unwrap();
        symlink("..2026", folder.path().join("..data")).unwrap();
        symlink("..data/p.wasm", folder.path().join("p.wasm")).unwrap();
        symlink(&outside, folder.path().join("absolute")).unwrap();
        symlink("../", folder.path().join("up")).unwrap();
        symlink("/proc/self/root", folder.path().join("magic")).unwrap();
        let beneath = Folder::open(folder.path()).unwrap();
        for opens in [Folder::beneath as Opens, Folder::checked as Opens] {
            let file = File::from(opens(&beneath, "p.wasm".as_ref(), READ).unwrap());
            assert_eq!(read_open(file, 10).unwrap().unwrap(), b"in");
            for path in ["absolute", "up", "magic/etc/hostname", "../", "/etc/hostname"] {
                let error = opens(&beneath, path.as_ref(), LOOK).unwrap_err();
                let refused = [Errno::XDEV, Errno::LOOP].map(|errno| Some(errno.raw_os_error()));
                let refused = refused.contains(&error.raw_os_error());
                assert!(refused, "{path}: {error}");
            }
            let gone = opens(&beneath, "gone".as_ref(), READ).unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_pipe_is_neither_read_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        pipe(&folder.path().join("pipe"));
        let error = read(&folder.path().join("pipe"), 10).unwrap_err().to_string();
        assert!(error.contains("not a file"), "{error}");
        let opened = Folder::open(folder.path())
            .unwrap()
            .file("pipe".as_ref())
            .unwrap();
        assert!(!opened.metadata().unwrap().is_file());
        assert!(
            read("/dev/zero".as_ref(), 10)
                .unwrap_err()
                .to_string()
                .contains("not a file")
        );
    }

    #[test]
    fn no_more_than_the_limit_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [0; 11]).unwrap();
        assert!(
            read(&path, 10)
                .unwrap_err()
                .to_string()
                .contains("larger than 10 bytes")
        );
        assert_eq!(read(&path, 11).unwrap().len(), 11);
    }

    #[test]
    fn what_is_read_takes_no_more_memory_than_the_file_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for size in [0, 1, 101_399] {
            std::fs::write(&path, vec![1; size]).unwrap();
            let bytes = read(&path, 1 << 20).unwrap();
            assert_eq!((bytes.len(), bytes.capacity()), (size, size));
        }
    }
}
