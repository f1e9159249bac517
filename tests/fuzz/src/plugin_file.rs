//! A plugin's file: any content is either refused with a message or is a plugin that answers within its limits.

use std::sync::LazyLock;
use std::time::Duration;

use operator_host::plugin::contract::is_dns_label;
use operator_host::plugin::{Limits, Plugin, Runtime};
use operator_host_runtime::fuzzing;

const LIMITS: Limits = Limits {
    memory: 4 << 20,
    deadline: Duration::from_millis(200),
    response: 64 << 10,
    compile: Duration::from_secs(20),
    ..Limits::DEFAULT
};
/// Maximum length of an error, which is shown in conditions and logs.
const LONGEST_MESSAGE: usize = 64 << 10;

static TOKIO: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().expect("threads")
});
static ENGINE: LazyLock<Runtime> = LazyLock::new(|| Runtime::new(Default::default()).expect("an engine"));

pub(crate) fn run(bytes: &[u8]) {
    let _ = &*ENGINE;
    let inspected = fuzzing::inspect(bytes);
    if let Err(error) = &inspected {
        speaks(&error.to_string());
    }
    if has_other_bindings(bytes) {
        return;
    }
    match TOKIO.block_on(ENGINE.load(bytes.to_vec(), LIMITS)) {
        Ok(plugin) => {
            assert!(inspected.is_ok(), "loaded, though inspection refuses it");
            can_be_used(&plugin, bytes);
        }
        Err(error) => speaks(&error.to_string()),
    }
}

/// Reports whether a module has bindings that are not those of a plugin in the corpus. wit-component follows circular
/// packages in them until its stack overflows (`corpora/plugin-file/circular-packages`). In the host that ends only the
/// process that compiles, but it would end this one.
fn has_other_bindings(bytes: &[u8]) -> bool {
    static KNOWN: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/corpora/plugin-file");
        let files = ["command", "component", "empty-component", "other-world"].iter();
        let read = |name| std::fs::read(format!("{corpus}/{name}")).expect("a file of the corpus");
        files.flat_map(|name| bindings(&read(name))).collect()
    });
    bindings(bytes).iter().any(|found| !KNOWN.contains(found))
}

/// Returns the custom sections of a module that contain bindings.
fn bindings(module: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = module.get(8..).unwrap_or_default();
    while let Some((id, after)) = rest.split_first() {
        let Some((length, after)) = leb128(after) else {
            break;
        };
        let (section, after) = after.split_at(length.min(after.len()));
        let name = leb128(section).and_then(|(length, name)| name.get(..length));
        if *id == 0 && name.is_some_and(|name| name.starts_with(b"component-type")) {
            found.push(section.to_vec());
        }
        rest = after;
    }
    found
}

/// Reads a number, and returns the bytes after it.
fn leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let (number, rest) = bytes.split_at(end + 1);
    let shifted = number
        .iter()
        .zip((0..).step_by(7))
        .try_fold(0_usize, |sum, (byte, shift)| {
            Some(sum | usize::from(byte & 0x7f).checked_shl(shift)?)
        });
    Some((shifted?, rest))
}

fn can_be_used(plugin: &Plugin, bytes: &[u8]) {
    let description = plugin.description();
    assert!(is_dns_label(&description.name), "{:?}", description.name);
    assert!(!description.parent.kind.is_empty());
    assert_eq!(plugin.size(), bytes.len());
    assert_eq!(*plugin.digest(), operator_host::plugin::Digest::of(bytes));
}

fn speaks(message: &str) {
    assert!(!message.is_empty());
    assert!(message.len() <= LONGEST_MESSAGE, "{} bytes", message.len());
}
