//! The tools for plugin authors, and the contract's page. Some of them need a cluster.

use crate::support::prelude::*;

use plugin_fixtures::{Fixture, Form};
use tempfile::TempDir;

mod check;
mod contract;
mod diff;
pub mod new;
mod odd;
mod render;
mod replay;
mod schema;

/// A folder for one test's files.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a file, and returns its path.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let file = self.0.path().join(name);
        std::fs::write(&file, content).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Checks a plugin with a resource and additional arguments.
    fn check(&self, plugin: &str, resource: &str, more: &[&str]) -> Answer {
        let file = self.file("sample.yaml", resource);
        host(&[&["check", plugin, "--sample", &file][..], more].concat())
    }

    /// Renders a sample plugin with one resource and additional arguments.
    fn render(&self, name: &str, resource: &str, more: &[&str]) -> Answer {
        let file = self.file("resource.yaml", resource);
        host(&[&["render", "--plugin", name, "-f", &file][..], more].concat())
    }

    /// Renders a plugin of the fixtures with its resource.
    fn fixture(&self, case: &str) -> Answer {
        let file = self.file("fixture.wasm", Fixture::new(case).build(Form::Command));
        let resource = "apiVersion: fixtures.dev/v1\nkind: Fixture\nmetadata: {name: f}\n";
        self.render(&file, resource, &[])
    }
}

/// Calls the host.
fn host(arguments: &[&str]) -> Answer {
    program(arguments).call()
}

/// Calls the host with a cache that these tests share, for plugins that take long to compile.
fn host_with_cache(arguments: &[&str]) -> Answer {
    program(arguments)
        .env("OPERATOR_HOST_CACHE_DIR", compiled())
        .call()
}

/// Returns the folder of that cache.
fn compiled() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled")
}

fn sample(name: &str) -> String {
    plugin(name).to_str().unwrap().to_owned()
}

/// Regression: it panicked, with a backtrace.
#[test]
fn a_command_ends_in_silence_when_nobody_reads_its_output() {
    let echo = plugin("echo").display().to_string();
    let commands: [&[&str]; 4] = [
        &["schema", "request"],
        &["completions", "bash"],
        &["crd", &echo],
        &["check", &echo],
    ];
    for arguments in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program(arguments)
            .stdout(writer)
            .output()
            .expect("the program runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && errors.is_empty(),
            "{arguments:?}: {} {errors}",
            output.status
        );
    }
}
