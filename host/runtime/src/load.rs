//! Why a file is not a plugin of this host.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::call::{CallError, Class, mebibytes};
use crate::contract::{CONTRACT_VERSION, Description, is_dns_label};
use crate::counts::Count;
use crate::limits::{self, MIB};

/// Why a file is not a plugin of this host. The messages are for people: what is wrong, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Over [`Limits::module`].
    #[error("the file has {} MiB; the limit is {} MiB", size.div_ceil(MIB), limit / MIB)]
    TooLarge {
        /// Bytes of the file.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// Neither a core module nor a component.
    #[error("the file is not WebAssembly: a plugin is what a compiler for `wasm32-wasip1` writes")]
    NotWasm,
    /// WebAssembly that breaks off or breaks its rules.
    #[error("the file is not valid WebAssembly: {message}; was it cut off?")]
    Malformed {
        /// What the validator says, with the offset in the file.
        message: String,
    },
    /// There is nothing in it that this host could call.
    #[error(
        "the file is WebAssembly, but not a plugin: it does not export `{missing}`{}. A plugin exports \
         `operator-host:plugin/reconciler` or, as a WASI command, `_start`",
        listed(found)
    )]
    OtherWorld {
        /// The export that would make it one.
        missing: String,
        /// What it exports.
        found: Vec<String>,
    },
    /// It wants something from the host that no plugin gets.
    #[error(
        "the plugin imports {}, which this host does not give: plugins have no files, no network \
         and nothing of other hosts, only `operator-host:plugin/logging` and the basics of WASI",
        quoted(imports).join(", ")
    )]
    Forbidden {
        /// Each of them once.
        imports: Vec<String>,
    },
    /// Made for another version of the contract.
    #[error(
        "the plugin is made for version {plugin} of the contract and this host speaks {}: use a host that \
         speaks {plugin}, or build the plugin against {}",
        CONTRACT_VERSION,
        CONTRACT_VERSION
    )]
    Contract {
        /// The version that the plugin exports.
        plugin: String,
    },
    /// The embedded bindings and the module do not fit each other, or the host's.
    #[error("the plugin's bindings do not fit: {message}")]
    Bindings {
        /// What does not fit.
        message: String,
    },
    /// It has more of something than any compiler writes.
    #[error(
        "the plugin has {found} {what}, and may have {limit}: no compiler for `wasm32-wasip1` writes so many"
    )]
    Excessive {
        /// What it has too many of.
        what: Count,
        /// How many it has, or more.
        found: u64,
        /// How many it may have.
        limit: u64,
    },
    /// What a compiling process says of the file: the words of one of the others.
    #[error("{message}")]
    Refused {
        /// The words.
        message: String,
    },
    /// Compilation took more processor time than [`Limits::compile`](crate::Limits::compile).
    #[error(
        "the plugin was not compiled within {0:?} of processor time: make it smaller, or raise `limits.compile`"
    )]
    CompileTimeout(Duration),
    /// Compilation did not get its processor time.
    #[error(
        "the plugin was not compiled within {0:?} by the clock: the machine is too busy, or the plugin too large"
    )]
    CompileStalled(Duration),
    /// Compilation took more memory than the host gives it.
    #[error(
        "compiling the plugin takes more than {} MiB of memory: make it smaller, or give the container more memory, of which \
         compiling may take a part",
        limit / MIB
    )]
    CompileMemory {
        /// Bytes allowed.
        limit: usize,
    },
    /// It became too much machine code.
    #[error("the plugin is more than {} MiB of machine code: make it smaller", limit / MIB)]
    TooMuchCode {
        /// Bytes allowed.
        limit: usize,
    },
    /// The compiler failed.
    #[error("the compiler failed ({message}); this may be a bug of the host: report it, with the plugin")]
    Compiler {
        /// How it ended, and what it said.
        message: String,
    },
    /// It failed before, and not long ago.
    #[error(
        "{reason} (so it ended {} min ago, which is remembered: a start after {} min tries it again, as does one with a higher \
         `limits.compile` or with more memory)",
        age.as_secs() / 60,
        rest.as_secs().div_ceil(60)
    )]
    FailedBefore {
        /// Why.
        reason: String,
        /// How long ago.
        age: Duration,
        /// How long it is remembered.
        rest: Duration,
    },
    /// `describe` gave no description.
    #[error("`describe` failed: {0}")]
    Describe(CallError),
    /// `describe` said more than a description is.
    #[error(
        "`describe` answered with more than {} of text and {} JSON values: a description is a few names and, at the most, \
         one CustomResourceDefinition",
        mebibytes(limits::DESCRIPTION),
        limits::DESCRIPTION_VALUES
    )]
    DescriptionTooLarge,
    /// What `describe` said cannot be.
    #[error("the plugin's description is wrong: {message}")]
    Description {
        /// Which field, and what it should be.
        message: String,
    },
    /// The host could not do its part.
    #[error("the host could not load the plugin: {message}")]
    Host {
        /// What went wrong.
        message: String,
    },
}

impl LoadError {
    pub(crate) fn other_world(missing: impl Into<String>, found: Vec<String>) -> Self {
        Self::OtherWorld {
            missing: missing.into(),
            found,
        }
    }

    /// An error when there is any.
    pub(crate) fn forbidden(imports: impl Iterator<Item = String>) -> Result<(), Self> {
        let imports: BTreeSet<String> = imports.collect();
        if imports.is_empty() {
            return Ok(());
        }
        Err(Self::Forbidden {
            imports: imports.into_iter().collect(),
        })
    }

    /// Whether compiling the same file again would fail again.
    pub(crate) fn is_of_compiling(&self) -> bool {
        !matches!(
            self,
            Self::Host { .. }
                | Self::FailedBefore { .. }
                | Self::Describe(_)
                | Self::DescriptionTooLarge
                | Self::Description { .. }
        )
    }

    /// The limits of a description are none that a configuration could raise.
    pub(crate) fn describe(error: CallError) -> Self {
        match error.class() {
            Class::Output => Self::DescriptionTooLarge,
            _ => Self::Describe(error),
        }
    }

    /// With the error's causes, as the errors of wasmtime and of wit-component show them.
    pub(crate) fn bindings(error: impl std::fmt::Display) -> Self {
        Self::Bindings {
            message: format!("{error:#}"),
        }
    }
}

impl From<wasmparser::BinaryReaderError> for LoadError {
    fn from(error: wasmparser::BinaryReaderError) -> Self {
        Self::Malformed {
            message: error.to_string(),
        }
    }
}

fn quoted(names: &[String]) -> Vec<String> {
    names.iter().map(|name| format!("`{name}`")).collect()
}

fn listed(exports: &[String]) -> String {
    /// A library may export thousands of functions.
    const SHOWN: usize = 8;
    let mut names = quoted(&exports[..exports.len().min(SHOWN)]);
    match exports.len() {
        0 => return ", nor anything else".into(),
        count if count > SHOWN => names.push(format!("{} more", count - SHOWN)),
        _ => {}
    }
    format!(", but {}", names.join(", "))
}

/// Whether a description is one that the host can work with.
pub(crate) fn check(description: &Description) -> Result<(), LoadError> {
    let wrong = |message: String| Err(LoadError::Description { message });
    if !is_dns_label(&description.name) {
        return wrong(format!(
            "`name` is {:?}; it must be a DNS label: at most 63 of a-z, 0-9 and `-`, such as `echo`",
            description.name
        ));
    }
    for (field, kinds) in [("makes", &description.makes), ("reads", &description.reads)] {
        if kinds.len() > limits::DESCRIPTION_KINDS {
            return wrong(format!(
                "`{field}` lists {} kinds; it may list {}",
                kinds.len(),
                limits::DESCRIPTION_KINDS
            ));
        }
    }
    let kinds = std::iter::once(("parent", &description.parent))
        .chain(description.makes.iter().map(|kind| ("makes", kind)))
        .chain(description.reads.iter().map(|kind| ("reads", kind)));
    for (field, kind) in kinds {
        if kind.kind.is_empty() || kind.api_version.is_empty() || kind.api_version.matches('/').count() > 1 {
            return wrong(format!(
                "`{field}` names {:?} of API version {:?}; it must name a kind of `v1` or `group/version`",
                kind.kind, kind.api_version
            ));
        }
    }
    Ok(())
}
