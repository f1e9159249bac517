//! Values made of files that others renew while the process runs, such as certificates and tokens.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use operator_host_core::sync::lock;

/// How often the files are compared at most. They are small, and a mounted Secret changes as a whole.
const PERIOD: Duration = Duration::from_secs(1);

/// The files, and what is made of them.
pub trait Source {
    /// What is compared.
    type Contents: PartialEq;
    /// What is made of it.
    type Value;
    /// Why the files cannot be used.
    type Error: Display;

    /// Returns what the files are for, for the log.
    fn what(&self) -> String;

    /// Reads the files.
    ///
    /// # Errors
    /// When one of them cannot be read.
    fn read(&self) -> Result<Self::Contents, Self::Error>;

    /// Makes the value.
    ///
    /// # Errors
    /// When the files cannot be used, for example because only one of two is renewed yet.
    fn make(&self, contents: &Self::Contents) -> Result<Self::Value, Self::Error>;
}

/// A value that is made again when its files have other contents. Files that cannot be used leave it as it is.
pub struct Renewed<S: Source> {
    source: S,
    state: Mutex<State<S>>,
}

struct State<S: Source> {
    contents: S::Contents,
    value: Arc<S::Value>,
    compared: Instant,
    /// Why the files cannot be used since the value was made.
    refused: Option<String>,
}

impl<S: Source> Renewed<S> {
    /// Makes the first value.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn new(source: S) -> Result<Self, S::Error> {
        let contents = source.read()?;
        let value = Arc::new(source.make(&contents)?);
        let state = Mutex::new(State {
            contents,
            value,
            compared: Instant::now(),
            refused: None,
        });
        Ok(Self { source, state })
    }

    /// Returns the value of the files, as they were at most a second ago. Without a change it is the same one.
    pub fn current(&self) -> Arc<S::Value> {
        let mut state = lock(&self.state);
        if state.compared.elapsed() >= PERIOD {
            state.compared = Instant::now();
            self.compare(&mut state);
        }
        Arc::clone(&state.value)
    }

    fn compare(&self, state: &mut State<S>) {
        let made = match self.source.read() {
            Ok(contents) if contents == state.contents => {
                state.refused = None;
                return;
            }
            Ok(contents) => self.source.make(&contents).map(|value| (contents, value)),
            Err(error) => Err(error),
        };
        match made {
            Ok((contents, value)) => {
                info!("{} has been renewed", self.source.what());
                (state.contents, state.value, state.refused) = (contents, Arc::new(value), None);
            }
            Err(error) => {
                let why = error.to_string();
                if state.refused.as_ref() != Some(&why) {
                    let what = self.source.what();
                    warn!("{what} has changed and cannot be used, so the last state stays in use: {why}");
                    state.refused = Some(why);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    struct Number(PathBuf);

    impl Source for Number {
        type Contents = String;
        type Value = u32;
        type Error = String;

        fn what(&self) -> String {
            "the number".into()
        }

        fn read(&self) -> Result<String, String> {
            std::fs::read_to_string(&self.0).map_err(|error| error.to_string())
        }

        fn make(&self, contents: &String) -> Result<u32, String> {
            contents.parse().map_err(|_| format!("{contents} is no number"))
        }
    }

    impl Renewed<Number> {
        /// Returns the value a period later.
        fn later(&self) -> Arc<u32> {
            let mut state = lock(&self.state);
            state.compared = state.compared.checked_sub(PERIOD).unwrap();
            drop(state);
            self.current()
        }
    }

    /// A mounted Secret: files in a folder that a link names.
    fn mount(root: &Path, version: &str, text: &str) {
        std::fs::create_dir(root.join(version)).unwrap();
        std::fs::write(root.join(version).join("number"), text).unwrap();
        let link = root.join("next");
        std::os::unix::fs::symlink(version, &link).unwrap();
        std::fs::rename(link, root.join("..data")).unwrap();
    }

    #[test]
    fn a_value_follows_its_files_and_outlives_those_that_cannot_be_used() {
        let folder = tempfile::tempdir().unwrap();
        mount(folder.path(), "a", "1");
        let file = folder.path().join("..data/number");
        let number = Renewed::new(Number(file.clone())).unwrap();
        let first = number.current();
        assert!(Arc::ptr_eq(&first, &number.later()), "nothing has changed");
        mount(folder.path(), "b", "2");
        assert_eq!(*number.later(), 2);
        std::fs::write(&file, "nonsense").unwrap();
        assert_eq!(*number.later(), 2);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(*number.later(), 2);
        std::fs::write(&file, "3").unwrap();
        assert_eq!(*number.later(), 3);
        assert!(Renewed::new(Number(folder.path().join("none"))).is_err());
    }
}
