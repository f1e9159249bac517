//! `render --watch`: renders again at each save.

use std::fs::File;
use std::process::{Child, Command};
use std::time::Instant;

use super::{Desk, sample};
use crate::support::LIMIT;

struct Watching {
    process: Child,
    desk: Desk,
}

impl Watching {
    fn start(desk: Desk, plugin: &str) -> Self {
        let open = |name: &str| File::create(desk.0.path().join(name)).unwrap();
        let (out, err) = (open("out"), open("err"));
        let process = Command::new(env!("CARGO_BIN_EXE_operator-host"))
            .args([
                "render",
                "--watch",
                "--plugin",
                plugin,
                "-f",
                "resource.yaml",
                "-o",
                "name",
            ])
            .current_dir(desk.0.path())
            .stdout(out)
            .stderr(err)
            .spawn()
            .expect("it runs");
        Self { process, desk }
    }

    fn output(&self, name: &str) -> String {
        std::fs::read_to_string(self.desk.0.path().join(name)).unwrap()
    }

    /// Waits until standard output or standard error contains a text.
    fn until(&self, name: &str, text: &str) {
        let start = Instant::now();
        while !self.output(name).contains(text) {
            let (out, err) = (self.output("out"), self.output("err"));
            assert!(start.elapsed() < LIMIT, "{text:?} was never printed: {out}{err}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn echo(name: &str) -> String {
    format!(
        "apiVersion: my-operator.dev/v1\nkind: Echo\nmetadata: {{name: {name}}}\nspec: {{replicas: 1, image: i}}\n"
    )
}

#[test]
fn a_save_of_the_resource_or_of_the_plugin_renders_again_and_a_mistake_ends_nothing() {
    let desk = Desk::new();
    desk.file("resource.yaml", echo("one"));
    let plugin = desk.file("plugin.wasm", std::fs::read(sample("echo")).unwrap());
    let watching = Watching::start(desk, plugin.to_str().unwrap());
    watching.until("out", "pod/one-pod-0\n");

    watching.desk.file("resource.yaml", echo("two"));
    watching.until("out", "pod/two-pod-0\n");

    watching
        .desk
        .file("resource.yaml", echo("three").replace("image: i", "imgae: i"));
    watching.until("err", "spec.imgae: unknown field");

    // Replace the file, as editors do when they save.
    let new = watching.desk.file("resource.yaml.new", echo("four"));
    std::fs::rename(new, watching.desk.0.path().join("resource.yaml")).unwrap();
    watching.until("out", "pod/four-pod-0\n");

    watching.desk.file("plugin.wasm", "no plugin");
    watching.until("err", "not WebAssembly");
    watching
        .desk
        .file("plugin.wasm", std::fs::read(sample("echo-c")).unwrap());
    let start = Instant::now();
    while watching.output("out").matches("pod/four-pod-0\n").count() < 2 {
        assert!(start.elapsed() < LIMIT, "{}", watching.output("err"));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
