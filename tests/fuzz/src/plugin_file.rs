//! A plugin's file: any content is either refused with a message or is a plugin that answers within its limits.

use std::sync::LazyLock;
use std::time::Duration;

use operator_host_contract::is_dns_label;
use operator_host_runtime::fuzzing;
use operator_host_runtime::{Compiler, Limits, Plugin, Runtime, Subprocess};

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
/// Compiles in this process as the host does when it may start no other: it must refuse whatever would end this one.
static ENGINE: LazyLock<Runtime> = LazyLock::new(|| {
    let no_program = Subprocess::program("/dev/null/none", 1 << 30);
    Runtime::with(Default::default(), Compiler::Subprocess(no_program), None).expect("an engine")
});

/// libFuzzer ends the process at each panic. One of the compiler, on its own thread, is an error to the host.
static COMPILER_MAY_PANIC: LazyLock<()> = LazyLock::new(|| {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("compiler") {
            usual(panic);
        }
    }));
});

pub(crate) fn run(bytes: &[u8]) {
    let _ = (&*ENGINE, &*COMPILER_MAY_PANIC);
    let inspected = fuzzing::inspect(bytes);
    if let Err(error) = &inspected {
        speaks(&error.to_string());
    }
    match TOKIO.block_on(ENGINE.load(bytes.to_vec(), LIMITS)) {
        Ok(plugin) => {
            assert!(inspected.is_ok(), "loaded, though inspection refuses it");
            can_be_used(&plugin, bytes);
        }
        Err(error) => speaks(&error.to_string()),
    }
}

fn can_be_used(plugin: &Plugin, bytes: &[u8]) {
    let description = plugin.description();
    assert!(is_dns_label(&description.name), "{:?}", description.name);
    assert!(!description.parent.kind.is_empty());
    assert_eq!(plugin.size(), bytes.len());
    assert_eq!(*plugin.digest(), operator_host_runtime::Digest::of(bytes));
}

fn speaks(message: &str) {
    assert!(!message.is_empty());
    assert!(message.len() <= LONGEST_MESSAGE, "{} bytes", message.len());
}
