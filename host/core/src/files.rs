//! Reads files that other users may write to: only regular files, and never more than a limit.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Reads a whole regular file, following links anywhere.
///
/// # Errors
/// When it cannot be read, is not a regular file, or is larger than `limit` bytes.
pub fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    read_open(file, limit)?.ok_or_else(|| io::Error::other(format!("it is larger than {limit} bytes")))
}

/// Opens a path that may not be a regular file. Does not wait for the other end of a pipe or a device.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn pipe(path: &Path) {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    #[test]
    fn a_pipe_is_neither_read_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        pipe(&folder.path().join("pipe"));
        let error = read(&folder.path().join("pipe"), 10).unwrap_err().to_string();
        assert!(error.contains("not a file"), "{error}");
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
