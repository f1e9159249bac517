//! Divides the memory of the process between plugin calls, the callers of the webhook, the files of plugins that are compiled,
//! records, and everything else.

use tracing::info;

use crate::{Config, ControllerConfig};
use operator_host_runtime::{container, max_memory_of_call, max_memory_of_one_call};

/// The divisor of the process's memory that gives the memory for plugin calls. The rest is for caches, which hold the
/// objects of all kinds that controllers need, for compiled plugins and for the program itself.
const CALLS_PART: usize = 2;
/// The divisor for what callers of the webhook can make the host hold.
const WEBHOOK_PART: usize = 4;
/// The divisor for the files of plugins while they are compiled.
const FILES_PART: usize = 8;
/// The divisor for recorded calls that wait to be written.
const RECORDS_PART: usize = 32;

const MIB: usize = 1 << 20;

/// The memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The total bytes.
    pub process: usize,
}

impl Memory {
    /// Uses the limit that the user gave, or otherwise that of the container or the machine.
    pub fn of_process(given: Option<usize>) -> Self {
        let process = given.or_else(container::memory).unwrap_or(usize::MAX);
        Self { process }
    }

    /// Returns the bytes that all plugin calls together may use.
    pub const fn calls(&self) -> usize {
        self.process / CALLS_PART
    }

    /// Returns the bytes that callers of the webhook can make the host hold.
    pub const fn webhook(&self) -> usize {
        self.process / WEBHOOK_PART
    }

    /// Returns the bytes that the files of plugins may take while they are compiled.
    pub const fn files(&self) -> usize {
        self.process / FILES_PART
    }

    /// Returns the bytes of recorded calls that wait to be written.
    pub const fn records(&self) -> usize {
        self.process / RECORDS_PART
    }

    /// Logs the limits.
    pub fn log_limits(&self) {
        info!(
            process_mib = self.process / MIB,
            calls_mib = self.calls() / MIB,
            one_call_mib = max_memory_of_one_call(self.calls()) / MIB,
            "memory limits: for the process, for all plugin calls together, and for one call"
        );
    }

    /// Checks that a single call of each controller fits.
    ///
    /// # Errors
    /// The first controller whose call does not fit, and what to do.
    pub fn check(&self, config: &Config) -> Result<(), String> {
        let mut controllers = config.controllers.iter();
        controllers.try_for_each(|controller| self.check_one(controller))
    }

    /// Checks that a single call of this controller fits.
    ///
    /// # Errors
    /// That it does not, and what to do.
    pub fn check_one(&self, controller: &ControllerConfig) -> Result<(), String> {
        let room = max_memory_of_one_call(self.calls()) / MIB;
        let limits = &controller.limits;
        let needed = max_memory_of_call(limits).div_ceil(MIB);
        if needed <= room {
            return Ok(());
        }
        // The smallest process memory whose share for one call is large enough.
        let process = needed.saturating_mul(4).div_ceil(3).saturating_mul(CALLS_PART);
        Err(format!(
            "one call of the controller {:?} may take {needed} MiB (`limits.memory` {} MiB, `limits.request` {} MiB and \
             `limits.response` {} MiB), but the limit for one call is {room} MiB of the process's {} MiB (half of it is \
             for plugin calls, and a quarter of that for small ones): lower these limits, or give the process {process} MiB \
             (the container's limit, or `--memory`)",
            controller.name,
            limits.memory.div_ceil(MIB),
            limits.request.div_ceil(MIB),
            limits.response.div_ceil(MIB),
            self.process / MIB,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_could_never_be_made_is_refused_with_what_it_would_need() {
        let text = "controllers:\n  - name: big\n    parent: {apiVersion: a.dev/v1, kind: K}\n    plugin: k.wasm\n    \
                    limits: {memory: 200Mi}\n";
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("k.wasm"), b"").unwrap();
        let parse = |text: &str| Config::parse(&folder.path().join("config.yaml"), text).unwrap();
        let of = |mebibytes: usize| Memory {
            process: mebibytes * MIB,
        };
        let config = parse(text);
        let message = of(512).check(&config).unwrap_err();
        for words in [
            "\"big\" may take 224 MiB",
            "`limits.memory` 200 MiB",
            "limit for one call is 192 MiB",
            "of the process's 512 MiB",
            "give the process 598 MiB",
        ] {
            assert!(message.contains(words), "{words:?} is not in: {message}");
        }
        assert!(of(597).check(&config).is_err());
        of(598).check(&config).unwrap();
        // The defaults fit into the container of manifests/deploy, and into half of it.
        let defaults = parse(&text.replace("memory: 200Mi", ""));
        of(256).check(&defaults).unwrap();
        Memory { process: usize::MAX }.check(&config).unwrap();
    }
}
