//! One program for all targets, since linking takes a minute: `FUZZ_TARGET` selects the target.

#![no_main]

use std::sync::LazyLock;

use fuzz_targets::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let Some(target) = fuzz_targets::find(&name) else {
        let names: Vec<_> = fuzz_targets::TARGETS.iter().map(|target| target.name).collect();
        eprintln!("FUZZ_TARGET is {name:?}; it must be one of {}", names.join(", "));
        std::process::exit(2);
    };
    target
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
