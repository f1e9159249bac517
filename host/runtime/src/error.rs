//! Errors of loading a plugin and of calling it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::component;
use crate::contract::{Condition, ContractVersion, Description, Failure, Kind, is_dns_label};
use crate::limits::{self, Limits, MIB};
use crate::memory_budget;

/// Why a file is not a plugin of this host. The messages are for users: they contain the problem and the next
/// step.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file exceeds [`Limits::module`](crate::Limits::module).
    #[error("the file is {} MiB; the limit is {} MiB", size.div_ceil(MIB), limit / MIB)]
    TooLarge {
        /// Bytes of the file.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The file is neither a core module nor a component.
    #[error("the file is not WebAssembly: a plugin is the output of a compiler for `wasm32-wasip1`")]
    NotWasm,
    /// The file is WebAssembly that is truncated or invalid.
    #[error("the file is not valid WebAssembly: {message}{}", cut_off(message))]
    Malformed {
        /// The validator's message, with the offset in the file.
        message: String,
    },
    /// The file exports nothing that this host can call.
    #[error(
        "the file is WebAssembly, but not a plugin: it does not export `{missing}`{}. {}",
        listed(found),
        other_wasi(found).unwrap_or(
            "A plugin exports `operator-host:plugin/reconciler` or, as a WASI command, `_start`"
        )
    )]
    OtherWorld {
        /// The export that is missing.
        missing: String,
        /// The exports that were found.
        found: Vec<String>,
    },
    /// The plugin imports something that the host does not provide to plugins.
    #[error(
        "the plugin imports {}, which this host does not provide: {}",
        quoted(imports).join(", "),
        other_wasi(imports).unwrap_or(
            "plugins have no files, no network and no imports of other hosts, only `operator-host:plugin/logging` and the \
             basics of WASI"
        )
    )]
    Forbidden {
        /// The imports, without duplicates.
        imports: Vec<String>,
    },
    /// The plugin is built for another version of the contract.
    #[error(
        "the plugin is built for version {plugin} of the contract; this host supports {0}: use a host that \
         supports {plugin}, or build the plugin against {0}",
        ContractVersion::V1
    )]
    Contract {
        /// The version that the plugin exports.
        plugin: String,
    },
    /// The embedded bindings do not match the module, or the host's bindings.
    #[error("the plugin's bindings do not fit: {message}")]
    Bindings {
        /// What does not match.
        message: String,
    },
    /// The file has more of something than any compiler writes.
    #[error(
        "the plugin has {found} {what}; the limit is {limit}: no compiler for `wasm32-wasip1` writes so many"
    )]
    Excessive {
        /// What is counted.
        what: Count,
        /// The number found; the real number may be higher.
        found: u64,
        /// The number allowed.
        limit: u64,
    },
    /// A compiling process rejected the file, with the message of another variant.
    #[error("{message}")]
    Refused {
        /// That variant's [`LoadError::part`].
        part: Part,
        /// The message.
        message: String,
    },
    /// The compilation took more processor time than [`Limits::compile`](crate::Limits::compile).
    #[error(
        "the plugin was not compiled within {0:?} of processor time: make it smaller, or raise `limits.compile`"
    )]
    CompileTimeout(Duration),
    /// The compilation did not get its processor time.
    #[error(
        "the plugin was not compiled within {0:?} of wall-clock time: the machine is too busy, or the plugin too large"
    )]
    CompileStalled(Duration),
    /// The compilation took more memory than the host gives it.
    #[error(
        "compiling the plugin takes more than {} MiB of memory: make it smaller, or give the container more memory, part of \
         which the compiler may use, or raise `--compile-memory`",
        limit / MIB
    )]
    CompileMemory {
        /// Bytes allowed.
        limit: usize,
    },
    /// The compilation produced too much machine code.
    #[error("the plugin is more than {} MiB of machine code: make it smaller", limit / MIB)]
    TooMuchCode {
        /// Bytes allowed.
        limit: usize,
    },
    /// The compiler failed.
    #[error("internal error: the compiler failed ({message}); please report it, with the plugin")]
    Compiler {
        /// How the compiler ended, and its output.
        message: String,
    },
    /// The host cannot start the process that compiles the file.
    #[error(
        "cannot start a process to compile the plugin ({message}): allow the container to start processes"
    )]
    NoProcess {
        /// Why not.
        message: String,
    },
    /// `describe` failed.
    #[error("`describe` failed: {0}")]
    Describe(CallError),
    /// `describe` returned more data than a description needs.
    #[error(
        "`describe` answered with more than {} of text and {} JSON values: a description is a few names and, at the most, \
         one CustomResourceDefinition",
        mebibytes(limits::DESCRIPTION),
        limits::DESCRIPTION_VALUES
    )]
    DescriptionTooLarge,
    /// `describe` returned an invalid description.
    #[error("the plugin's description is invalid: {message}")]
    Description {
        /// The field, and the expected value.
        message: String,
    },
    /// The host failed.
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

    /// Returns an error when there are any imports.
    pub(crate) fn forbidden(imports: impl Iterator<Item = String>) -> Result<(), Self> {
        let imports: BTreeSet<String> = imports.collect();
        if imports.is_empty() {
            return Ok(());
        }
        Err(Self::Forbidden {
            imports: imports.into_iter().collect(),
        })
    }

    /// Returns what the error is about.
    #[must_use]
    pub const fn part(&self) -> Part {
        match self {
            Self::TooLarge { .. }
            | Self::Excessive { .. }
            | Self::CompileTimeout(_)
            | Self::CompileStalled(_)
            | Self::CompileMemory { .. }
            | Self::TooMuchCode { .. } => Part::Size,
            Self::NotWasm | Self::Malformed { .. } | Self::OtherWorld { .. } => Part::Form,
            Self::Forbidden { .. } => Part::Imports,
            Self::Contract { .. } | Self::Bindings { .. } => Part::Contract,
            Self::Refused { part, .. } => *part,
            Self::Compiler { .. } => Part::Compiler,
            Self::Describe(_) | Self::DescriptionTooLarge | Self::Description { .. } => Part::Describe,
            Self::Host { .. } | Self::NoProcess { .. } => Part::Host,
        }
    }

    /// No configuration can raise the limits of a description.
    pub(crate) fn describe(error: CallError) -> Self {
        match error.class() {
            Class::Output => Self::DescriptionTooLarge,
            _ => Self::Describe(error),
        }
    }

    /// Formats the error with its causes, as the errors of wasmtime and of wit-component display them.
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

/// Returns the advice for a message of the validator.
fn cut_off(message: &str) -> &'static str {
    if message.contains("unexpected end") {
        "; was it cut off?"
    } else {
        ""
    }
}

/// Returns what to do when one of the names is of another WASI.
fn other_wasi(names: &[String]) -> Option<&'static str> {
    names.iter().any(|name| component::is_of_other_wasi(name)).then_some(
        "this host supports modules of WASI preview 1 and components of WASI 0.2: compile the plugin for `wasm32-wasip1` or \
         `wasm32-wasip2`",
    )
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

/// Maximum length of a plugin's version, in characters.
const MAX_VERSION: usize = 64;

/// Checks that the host can use a description: its values become metric labels, log lines and text in
/// conditions.
pub(crate) fn check(description: &Description) -> Result<(), LoadError> {
    let wrong = |message: String| Err(LoadError::Description { message });
    if !is_dns_label(&description.name) {
        return wrong(format!(
            "`name` is {:?}; it must be a DNS label: at most 63 of a-z, 0-9 and `-`, such as `echo`",
            description.name.chars().take(MAX_VERSION).collect::<String>()
        ));
    }
    let version = &description.version;
    let printable = version.bytes().all(|byte| byte.is_ascii_graphic());
    if version.is_empty() || version.len() > MAX_VERSION || !printable {
        let shown: String = version.chars().take(MAX_VERSION).collect();
        return wrong(format!(
            "`version` is {shown:?}; it must be 1 to {MAX_VERSION} printable ASCII characters without spaces, such as `1.4.0`"
        ));
    }
    check_versions(description)?;
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
        if !is_kind(kind) {
            let shown = |text: &str| text.chars().take(MAX_VERSION).collect::<String>();
            return wrong(format!(
                "`{field}` names {:?} of API version {:?}; it must name a kind of `v1` or `group/version`",
                shown(&kind.kind),
                shown(&kind.api_version)
            ));
        }
    }
    Ok(())
}

/// Checks the versions that `convert` converts between.
fn check_versions(description: &Description) -> Result<(), LoadError> {
    let versions = &description.versions;
    let wrong = |message: String| Err(LoadError::Description { message });
    if versions.is_empty() {
        return Ok(());
    }
    if versions.len() > limits::DESCRIPTION_VERSIONS {
        return wrong(format!(
            "`versions` lists {}; it may list {}",
            versions.len(),
            limits::DESCRIPTION_VERSIONS
        ));
    }
    if let Some(version) = versions.iter().find(|version| !is_dns_label(version)) {
        let shown: String = version.chars().take(MAX_VERSION).collect();
        return wrong(format!(
            "`versions` contains {shown:?}; it must contain names such as `v1beta1`, without the group"
        ));
    }
    let distinct: BTreeSet<&str> = versions.iter().map(String::as_str).collect();
    let own = description.parent.version();
    if distinct.len() < versions.len() || !distinct.contains(own) {
        return wrong(format!(
            "`versions` is {versions:?}; it must contain each version once, and the parent's own, {own:?}"
        ));
    }
    let crd = description.definition();
    let defined = crd.as_ref().and_then(|crd| crd["spec"]["versions"].as_array());
    let defined: BTreeSet<&str> = defined
        .into_iter()
        .flatten()
        .filter_map(|version| version["name"].as_str())
        .collect();
    let differs = |name: &&str| distinct.contains(name) != defined.contains(name);
    let mut names = versions.iter().map(String::as_str).chain(defined.iter().copied());
    if !defined.is_empty()
        && let Some(name) = names.find(differs)
    {
        let shown: String = name.chars().take(MAX_VERSION).collect();
        return wrong(format!(
            "`versions` is {versions:?}, and the CustomResourceDefinition has other versions: {shown:?} is only in one of \
             them"
        ));
    }
    Ok(())
}

/// Whether this can be a Kubernetes kind: a name of letters and digits, and an API version of lower-case
/// names.
fn is_kind(kind: &Kind) -> bool {
    let name = &kind.kind;
    let (group, version) = kind
        .api_version
        .split_once('/')
        .unwrap_or(("", &kind.api_version));
    (1..=63).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && is_dns_label(version)
        && group.len() <= 253
        && (group.is_empty() != kind.api_version.contains('/'))
        && (group.is_empty() || group.split('.').all(is_dns_label))
}

/// What a [`LoadError`] is about. Each is a check of `operator-host check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The size of the file, or what it costs to compile.
    Size,
    /// Whether it is WebAssembly of one of the two forms.
    Form,
    /// Its imports.
    Imports,
    /// The contract that it is built for.
    Contract,
    /// The compiler.
    Compiler,
    /// Its `describe`.
    Describe,
    /// The host itself.
    Host,
}

impl Part {
    pub(crate) const ALL: [Self; 7] = [
        Self::Size,
        Self::Form,
        Self::Imports,
        Self::Contract,
        Self::Compiler,
        Self::Describe,
        Self::Host,
    ];

    /// Returns the name in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Form => "form",
            Self::Imports => "imports",
            Self::Contract => "contract",
            Self::Compiler => "compiler",
            Self::Describe => "describe",
            Self::Host => "host",
        }
    }
}

/// The items that are counted, over all modules in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Core modules, and components in components.
    Modules,
    /// Types, of core modules and of components.
    Types,
    /// Imports.
    Imports,
    /// Defined functions.
    Functions,
    /// Tables and memories.
    Memories,
    /// Globals and tags.
    Globals,
    /// Exports.
    Exports,
    /// Element segments.
    Elements,
    /// Data segments.
    Data,
    /// Instances, aliases and canonical functions of components.
    Instances,
    /// Bytes of one function's body.
    Body,
    /// Local variables of one function.
    Locals,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Modules => "modules",
            Self::Types => "types",
            Self::Imports => "imports",
            Self::Functions => "functions",
            Self::Memories => "tables and memories",
            Self::Globals => "globals",
            Self::Exports => "exports",
            Self::Elements => "element segments",
            Self::Data => "data segments",
            Self::Instances => "instances, aliases and canonical functions",
            Self::Body => "bytes in one function",
            Self::Locals => "local variables in one function",
        })
    }
}

/// The result of a call as one word, for a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The plugin reports that the user must change the resource.
    Invalid,
    /// The plugin asks for a retry.
    Retry,
    /// The guest trapped or exited.
    Trap,
    /// The call exceeded its deadline.
    Timeout,
    /// The call exceeded the memory limit.
    Memory,
    /// The request would exceed its limit.
    Request,
    /// The response exceeded a limit.
    Output,
    /// The response does not follow the contract.
    Protocol,
    /// Other calls used all the memory or all the turns.
    Busy,
    /// The host could not make the call; the plugin is not the cause.
    Host,
}

impl Class {
    /// Returns the class in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Retry => "retry",
            Self::Trap => "trap",
            Self::Timeout => "timeout",
            Self::Memory => "memory",
            Self::Request => "request",
            Self::Output => "output",
            Self::Protocol => "protocol",
            Self::Busy => "busy",
            Self::Host => "host",
        }
    }
}

/// What a failure of the plugin shows on the parent, in addition to the host's conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The plugin's whole status; `None`: it does not change.
    pub status: Option<Map<String, Value>>,
    /// Conditions to add to those of the parent.
    pub conditions: Vec<Condition>,
}

/// Maximum size in bytes of a text of a plugin in an error, which conditions, spans and the log repeat.
const MAX_TEXT: usize = 4 << 10;

/// Cuts a text that a plugin or a file determines.
pub(crate) fn shortened(text: &str) -> String {
    shorten(text, MAX_TEXT)
}

/// Truncates the text to at most `max` bytes (at least 3) at a character boundary, and appends `…` if it was cut.
#[must_use]
pub fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max - '…'.len_utf8());
    format!("{}…", &text[..end])
}

/// Why a call gave no response. The messages are for users: they contain what happened and the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The plugin reports that the user must change the resource.
    #[error("{message}")]
    Invalid {
        /// CamelCase reason.
        reason: Option<String>,
        /// The plugin's message.
        message: String,
        /// What the parent shows.
        shown: Shown,
    },
    /// The plugin reports that something does not exist yet.
    #[error("{message}")]
    Retry {
        /// The plugin's message.
        message: String,
        /// When to retry; `None`: the host's back-off.
        after: Option<Duration>,
        /// What the parent shows.
        shown: Shown,
    },
    /// The guest trapped, panicked or exited with an error.
    #[error("the plugin stopped: {message}")]
    Trap {
        /// The guest's last lines on standard error, and the trap.
        message: String,
        /// Guest functions, innermost first, one per line; can be empty.
        backtrace: String,
    },
    /// The call took longer than its deadline.
    #[error(
        "the plugin did not answer within {limit:?}: make it do less in one call (a plugin cannot wait \
         or sleep), or raise `limits.deadline` of this controller"
    )]
    Timeout {
        /// The deadline.
        limit: Duration,
    },
    /// The guest requested more memory than it may have.
    #[error(
        "the plugin asked for {} of memory; the limit is {}: make it need less, or raise `limits.memory` \
         of this controller", mebibytes(*wanted), mebibytes(*limit)
    )]
    Memory {
        /// Bytes that the call may have.
        limit: usize,
        /// Bytes that the call would have had.
        wanted: usize,
    },
    /// The guest consists of more parts than a call may have.
    #[error(
        "the plugin has too many parts ({message}): one call may have {} core instances, {} memories and {} tables; \
         compose the plugin of fewer components",
        limits::INSTANCES_PER_CALL,
        limits::MEMORIES_PER_CALL,
        limits::TABLES_PER_CALL
    )]
    TooManyParts {
        /// Which of them, and how many.
        message: String,
    },
    /// The guest's answer is larger than allowed.
    #[error(
        "the plugin answered with more than {}: make it answer with less, or raise `limits.response` of \
         this controller", mebibytes(*limit)
    )]
    Output {
        /// Bytes that a response may have.
        limit: usize,
    },
    /// The answer is a small text that would become a large tree.
    #[error(
        "the plugin answered with more than {limit} JSON values: make it answer with less, or raise `limits.values` of \
         this controller"
    )]
    Values {
        /// JSON values that a response may have.
        limit: usize,
    },
    /// The answer is a small text that would become a large tree, though it does not have too many values.
    #[error(
        "the plugin's answer would take more than {} in the host: make it answer with less, or raise `limits.memory` of this \
         controller, which bounds that together with `limits.request` and `limits.response`", mebibytes(*limit)
    )]
    Heavy {
        /// Bytes that it may take.
        limit: usize,
    },
    /// A list in the answer is too long.
    #[error(
        "the plugin answered with {count} {what}; it may answer with {limit}: make it answer with fewer{}",
        raise(*key)
    )]
    TooMany {
        /// The kind of items in the list.
        what: &'static str,
        /// The number of items.
        count: usize,
        /// The maximum number of items.
        limit: usize,
        /// The configuration key of the limit, if there is one.
        key: Option<&'static str>,
    },
    /// The request would be too large; the plugin was not called.
    #[error(
        "the request to the plugin would be larger than {}: {children} children and {related} objects that it asked to read \
         are too much for one call; make it need less (a label selector, a name), or raise `limits.request` of this \
         controller", mebibytes(*limit)
    )]
    Request {
        /// Bytes that a request may have.
        limit: usize,
        /// The number of children in the request.
        children: usize,
        /// The number of other objects in the request.
        related: usize,
    },
    /// The objects to convert would be too large; the plugin was not called.
    #[error(
        "{objects} objects to convert are together larger than {}: raise `limits.request` of this controller",
        mebibytes(*limit)
    )]
    Conversion {
        /// Bytes that a request may have.
        limit: usize,
        /// The number of objects.
        objects: usize,
    },
    /// The response does not follow the contract.
    #[error("the plugin's answer does not follow the contract: {message}")]
    Protocol {
        /// The problem, and where in the response it is.
        message: String,
    },
    /// Other calls used all the memory or all the turns for as long as the call itself may take.
    #[error(
        "the plugin was not called: for {waited:?} other calls had all the memory that plugin calls may hold; it is retried. \
         Give the host more memory (or a larger `--memory`), or lower `limits.memory`, `limits.deadline` or \
         `concurrency` of controllers whose plugins take much"
    )]
    Busy {
        /// How long the call waited.
        waited: Duration,
    },
    /// The host could not make the call.
    #[error("the host could not call the plugin: {message}")]
    Host {
        /// What went wrong.
        message: String,
    },
}

impl CallError {
    /// Returns what the plugin wants the parent to show, if the plugin reports the failure itself.
    #[must_use]
    pub const fn shown(&self) -> Option<&Shown> {
        match self {
            Self::Invalid { shown, .. } | Self::Retry { shown, .. } => Some(shown),
            _ => None,
        }
    }

    /// Reports whether the host is the cause, so that nothing is known about the plugin.
    #[must_use]
    pub const fn is_of_host(&self) -> bool {
        matches!(self.class(), Class::Busy | Class::Host)
    }

    /// Returns the class of this error.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Invalid { .. } => Class::Invalid,
            Self::Retry { .. } => Class::Retry,
            Self::Trap { .. } => Class::Trap,
            Self::Timeout { .. } => Class::Timeout,
            Self::Memory { .. } | Self::TooManyParts { .. } => Class::Memory,
            Self::Request { .. } | Self::Conversion { .. } => Class::Request,
            Self::Output { .. } | Self::Values { .. } | Self::Heavy { .. } | Self::TooMany { .. } => {
                Class::Output
            }
            Self::Protocol { .. } => Class::Protocol,
            Self::Busy { .. } => Class::Busy,
            Self::Host { .. } => Class::Host,
        }
    }

    pub(crate) const fn too_many_objects(limit: usize, objects: usize) -> Self {
        Self::Conversion { limit, objects }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::Protocol {
            message: shortened(&message.into()),
        }
    }

    /// Returned only when the call had all the memory it may have.
    pub(crate) const fn heavy(limits: &Limits) -> Self {
        Self::Heavy {
            limit: memory_budget::max_memory_of_call(limits),
        }
    }

    /// Returns the error of a call that the host could not make.
    pub fn host(error: impl std::fmt::Display) -> Self {
        Self::Host {
            message: error.to_string(),
        }
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid {
                reason,
                message,
                status,
                conditions,
            } => Self::Invalid {
                reason: reason.as_deref().map(shortened),
                message: shortened(&message),
                shown: Shown { status, conditions },
            },
            Failure::Retry {
                message,
                after_ms,
                status,
                conditions,
            } => Self::Retry {
                message: shortened(&message),
                after: after_ms.map(Duration::from_millis),
                shown: Shown { status, conditions },
            },
        }
    }
}

fn raise(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| {
        format!(", or raise `{key}` of this controller")
    })
}

pub(crate) fn mebibytes(bytes: usize) -> String {
    // Rounded up, so that a size slightly over the limit is not displayed as the limit.
    let tenths = (bytes * 10).div_ceil(MIB);
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} MiB"),
        (whole, tenth) => format!("{whole}.{tenth} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(api_version: &str, kind: &str) -> Kind {
        Kind {
            api_version: api_version.into(),
            kind: kind.into(),
        }
    }

    fn description() -> Description {
        Description {
            contract: ContractVersion::V1,
            name: "echo".into(),
            version: "1.4.0-rc.1+build".into(),
            parent: kind("my-operator.dev/v1", "Echo"),
            makes: vec![kind("v1", "Pod")],
            reads: Vec::new(),
            finalizer: false,
            crd: None,
            versions: Vec::new(),
            defaults: false,
            validates: false,
        }
    }

    fn refusal(change: impl FnOnce(&mut Description)) -> String {
        let mut description = description();
        change(&mut description);
        check(&description).expect_err("it is refused").to_string()
    }

    #[test]
    fn what_becomes_a_label_or_a_line_of_the_log_is_short_and_printable() {
        check(&description()).unwrap();
        let long = "1".repeat(1 << 20);
        for version in [
            "",
            "1.0\n2026-01-01 ERROR forged",
            "1.0 beta",
            "1.0\u{1b}[31m",
            "1.0\u{202e}",
            &long,
        ] {
            let message = refusal(|d| version.clone_into(&mut d.version));
            assert!(
                message.contains("`version` is") && message.len() < 400,
                "{message}"
            );
            assert!(!message.contains(char::is_control), "{message:?}");
        }
        for name in ["", "Echo", "echo\r", &long] {
            let message = refusal(|d| name.clone_into(&mut d.name));
            assert!(message.contains("DNS label") && message.len() < 400, "{message}");
        }
    }

    #[test]
    fn the_versions_are_names_with_the_parents_own_each_once() {
        let versions = |versions: &[&str]| versions.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let described = |names: &[&str]| Description {
            versions: versions(names),
            ..description()
        };
        check(&described(&["v1alpha1", "v1"])).unwrap();
        for (names, expected) in [
            (&["v1alpha1"] as &[&str], "the parent's own"),
            (&["v1", "v1"], "each version once"),
            (&["v1", "my-operator.dev/v2"], "without the group"),
            (&["v1", ""], "without the group"),
        ] {
            let message = refusal(|d| d.versions = versions(names));
            assert!(message.contains(expected), "{message}");
        }
        let defines = |names: &[&str]| {
            let versions: Vec<_> = names
                .iter()
                .map(|name| serde_json::json!({ "name": name }))
                .collect();
            Some(serde_json::json!({ "spec": { "versions": versions } }).into())
        };
        check(&Description {
            crd: defines(&["v1", "v1alpha1"]),
            ..described(&["v1alpha1", "v1"])
        })
        .unwrap();
        for names in [&["v1"] as &[&str], &["v1", "v1alpha1", "v2"]] {
            let other = refusal(|d| {
                d.versions = versions(&["v1", "v1alpha1"]);
                d.crd = defines(names);
            });
            assert!(other.contains("is only in one of them"), "{other}");
        }
        let many = refusal(|d| d.versions = vec!["v1".into(); limits::DESCRIPTION_VERSIONS + 1]);
        assert!(many.contains("`versions` lists"), "{many}");
    }

    #[test]
    fn a_kind_that_kubernetes_cannot_have_is_refused() {
        for (api_version, name) in [
            ("v1", "Pod\n"),
            ("v1", ""),
            ("v1", "../pods"),
            ("", "Pod"),
            ("/v1", "Pod"),
            ("a/b/v1", "Pod"),
            ("a..b/v1", "Pod"),
            ("A.dev/v1", "Pod"),
        ] {
            let message = refusal(|d| d.makes = vec![kind(api_version, name)]);
            assert!(message.contains("`makes` names"), "{message}");
        }
        let many = refusal(|d| d.reads = vec![kind("v1", "Pod"); limits::DESCRIPTION_KINDS + 1]);
        assert!(many.contains("`reads` lists"), "{many}");
    }
}
