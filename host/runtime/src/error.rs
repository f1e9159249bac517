//! Errors of loading a plugin and of calling it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contract::{CommandOutput, Description, Export, Failure, is_dns_label};
use crate::limits::{self, Limits, MIB};
use crate::memory_budget;

/// Why a file is not a plugin of this host. The message is for users: it contains the problem and the next step.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct LoadError {
    part: Part,
    message: String,
}

impl LoadError {
    pub(crate) fn new(part: Part, message: impl Into<String>) -> Self {
        Self {
            part,
            message: message.into(),
        }
    }

    /// Returns what the error is about.
    #[must_use]
    pub const fn part(&self) -> Part {
        self.part
    }

    /// Returns the error of a file that exceeds [`Limits::module`](crate::Limits::module).
    #[must_use]
    pub fn too_large(size: usize, limit: usize) -> Self {
        let (size, limit) = (size.div_ceil(MIB), limit / MIB);
        Self::new(
            Part::Size,
            format!("the file is {size} MiB; the limit is {limit} MiB"),
        )
    }

    /// Returns the error of a file that does not export what this host can call.
    pub(crate) fn other_world(missing: &str) -> Self {
        let message = format!(
            "the file is WebAssembly, but not a plugin: it does not export `{missing}`. A plugin exports \
             `operator-host:plugin/reconciler` or, as a WASI command, `_start`: compile it for `wasm32-wasip1` or `wasm32-wasip2`"
        );
        Self::new(Part::Form, message)
    }

    /// Returns an error when there are any imports.
    pub(crate) fn forbidden(imports: impl Iterator<Item = String>) -> Result<(), Self> {
        let imports: BTreeSet<String> = imports.collect();
        if imports.is_empty() {
            return Ok(());
        }
        let imports: Vec<String> = imports.iter().map(|name| format!("`{name}`")).collect();
        let message = format!(
            "the plugin imports {}, which this host does not provide: plugins have no files, no network and no imports of other \
             hosts, only `operator-host:plugin/logging` and the basics of WASI preview 1 and WASI 0.2",
            imports.join(", ")
        );
        Err(Self::new(Part::Imports, message))
    }

    /// Returns the error of a file that is WebAssembly, and truncated or invalid.
    pub(crate) fn malformed(error: impl fmt::Display) -> Self {
        let message = format!("the file is not valid WebAssembly (was it cut off?): {error:#}");
        Self::new(Part::Form, message)
    }

    /// Returns the error of a `describe` that failed. No configuration can raise the limits of a description.
    pub(crate) fn describe(error: &CallError) -> Self {
        let message = match error.class() {
            Class::Output => format!(
                "`describe` answered with more than {} of text and {} JSON values: a description is a few names and, at the \
                 most, one CustomResourceDefinition",
                mebibytes(limits::DESCRIPTION),
                limits::DESCRIPTION_VALUES
            ),
            _ => format!("`describe` failed: {error}"),
        };
        let part = if error.is_of_host() {
            Part::Host
        } else {
            Part::Describe
        };
        Self::new(part, message)
    }

    /// Formats the error with its causes, as the errors of wasmtime and of wit-component display them.
    pub(crate) fn bindings(error: impl fmt::Display) -> Self {
        Self::new(
            Part::Contract,
            format!(
                "the plugin's bindings do not fit this host: {error:#}; build it with the SDK or the `wit` of this host"
            ),
        )
    }

    pub(crate) fn host(error: impl fmt::Display) -> Self {
        Self::new(
            Part::Host,
            format!("the host could not load the plugin: {error:#}"),
        )
    }
}

impl From<wasmparser::BinaryReaderError> for LoadError {
    fn from(error: wasmparser::BinaryReaderError) -> Self {
        Self::malformed(error)
    }
}

/// Maximum length of a plugin's version, in characters.
const MAX_VERSION: usize = 64;

/// Checks that the host can use a description: its values become metric labels, log lines and text in
/// conditions.
pub(crate) fn check(description: &Description) -> Result<(), LoadError> {
    let checked = check_names(description).and_then(|()| check_versions(description));
    checked.map_err(|problem| {
        let message = format!("the plugin's description is invalid: {problem}");
        LoadError::new(Part::Describe, message)
    })
}

/// Cuts a text that is to be short.
fn start(text: &str) -> String {
    text.chars().take(MAX_VERSION).collect()
}

fn check_names(description: &Description) -> Result<(), String> {
    let Description { name, version, .. } = description;
    if !is_dns_label(name) {
        return Err(format!(
            "`name` is {:?}; it must be a DNS label: at most 63 of a-z, 0-9 and `-`, such as `echo`",
            start(name)
        ));
    }
    let printable = version.bytes().all(|byte| byte.is_ascii_graphic());
    if version.is_empty() || version.len() > MAX_VERSION || !printable {
        return Err(format!(
            "`version` is {:?}; it must be 1 to {MAX_VERSION} printable ASCII characters without spaces, such as `1.4.0`",
            start(version)
        ));
    }
    let lists = [
        ("parent", std::slice::from_ref(&description.parent)),
        ("also", &description.also),
        ("makes", &description.makes),
        ("reads", &description.reads),
    ];
    for (field, kinds) in lists {
        let (count, limit) = (kinds.len(), limits::DESCRIPTION_KINDS);
        if count > limit {
            return Err(format!("`{field}` lists {count} kinds; it may list {limit}"));
        }
        if let Some(kind) = kinds.iter().find(|kind| !kind.is_valid()) {
            return Err(format!(
                "`{field}` names {:?} of API version {:?}; it must name a kind of `v1` or `group/version`",
                start(&kind.kind),
                start(&kind.api_version)
            ));
        }
    }
    Ok(())
}

/// Checks the versions that `convert` converts between.
fn check_versions(description: &Description) -> Result<(), String> {
    let versions = &description.versions;
    if versions.is_empty() {
        return Ok(());
    }
    let (count, limit) = (versions.len(), limits::DESCRIPTION_VERSIONS);
    if count > limit {
        return Err(format!("`versions` lists {count}; it may list {limit}"));
    }
    if let Some(version) = versions.iter().find(|version| !is_dns_label(version)) {
        return Err(format!(
            "`versions` contains {:?}; it must contain names such as `v1beta1`, without the group",
            start(version)
        ));
    }
    let distinct: BTreeSet<&str> = versions.iter().map(String::as_str).collect();
    let own = description.parent.version();
    if distinct.len() < versions.len() || !distinct.contains(own) {
        return Err(format!(
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
    match distinct.symmetric_difference(&defined).next() {
        Some(name) if !defined.is_empty() => Err(format!(
            "`versions` is {versions:?}, and the CustomResourceDefinition has other versions: {:?} is only in one of \
             them",
            start(name)
        )),
        _ => Ok(()),
    }
}

/// What a [`LoadError`] is about. Each is a check of `operator-host check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Maximum size in bytes of a text of a plugin in an error, which conditions, spans and the log repeat.
const MAX_TEXT: usize = 4 << 10;

/// Cuts a text that a plugin or a file determines.
pub(crate) fn shortened(text: &str) -> String {
    operator_host_core::text::shorten(text, MAX_TEXT)
}

/// Formats an error of the engine with all its causes. Its own format has only those that it gave a context.
pub(crate) fn with_causes(error: &wasmtime::Error) -> String {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join(": ")
}

/// Why a call gave no response. The messages are for users: they contain what happened and the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The plugin reports why it gives none.
    #[error("{}", .0.message())]
    Failure(Failure),
    /// The guest trapped, panicked or exited with an error.
    #[error("the plugin stopped: {message}")]
    Trap {
        /// The guest's last lines on standard error, and the trap.
        message: String,
        /// Guest functions, innermost first, one per line; can be empty.
        backtrace: String,
    },
    /// Anything else.
    #[error("{message}")]
    Other {
        /// What it is.
        class: Class,
        /// What happened, and the next step.
        message: String,
    },
}

impl CallError {
    /// Returns the failure that the plugin itself reports.
    #[must_use]
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failure(failure) => Some(failure),
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
            Self::Failure(Failure::Invalid { .. }) => Class::Invalid,
            Self::Failure(Failure::Retry { .. }) => Class::Retry,
            Self::Trap { .. } => Class::Trap,
            Self::Other { class, .. } => *class,
        }
    }

    const fn other(class: Class, message: String) -> Self {
        Self::Other { class, message }
    }

    /// Returns the error of a call that took longer than its deadline.
    pub(crate) fn timeout(limit: Duration) -> Self {
        let message = format!(
            "the plugin did not answer within {limit:?}: make it do less in one call (a plugin cannot wait or sleep), or \
             raise `limits.deadline` of this controller"
        );
        Self::other(Class::Timeout, message)
    }

    /// Returns the error of a guest that requested more memory than it may have.
    pub(crate) fn memory(wanted: usize, limit: usize) -> Self {
        let message = format!(
            "the plugin asked for {} of memory; the limit is {}: make it need less, or raise `limits.memory` of this \
             controller",
            mebibytes(wanted),
            mebibytes(limit)
        );
        Self::other(Class::Memory, message)
    }

    /// Returns the error of a guest of more parts than a call may have; `which` says how many of what.
    pub(crate) fn too_many_parts(which: &str) -> Self {
        let message = format!(
            "the plugin has too many parts ({which}): one call may have {} core instances, {} memories and {} tables; \
             compose the plugin of fewer components",
            limits::INSTANCES_PER_CALL,
            limits::MEMORIES_PER_CALL,
            limits::TABLES_PER_CALL
        );
        Self::other(Class::Memory, message)
    }

    /// Returns the error of an answer of more bytes than allowed.
    pub(crate) fn output(limit: usize) -> Self {
        let message = format!(
            "the plugin answered with more than {}: make it answer with less, or raise `limits.response` of this controller",
            mebibytes(limit)
        );
        Self::other(Class::Output, message)
    }

    /// Returns the error of an answer that is a small text and would become a large tree.
    pub(crate) fn values(limit: usize) -> Self {
        let message = format!(
            "the plugin answered with more than {limit} JSON values: make it answer with less, or raise `limits.values` of \
             this controller"
        );
        Self::other(Class::Output, message)
    }

    /// Returns the same for one that does not have too many values. Only for a call that had all the memory it may have.
    pub(crate) fn heavy(limits: &Limits) -> Self {
        let message = format!(
            "the plugin's answer would take more than {} in the host: make it answer with less, or raise `limits.memory` of \
             this controller, which bounds that together with `limits.request` and `limits.response`",
            mebibytes(memory_budget::max_memory_of_call(limits))
        );
        Self::other(Class::Output, message)
    }

    /// Returns the error of an answer with a list that is too long. `key` is the configuration key of the limit, if there is
    /// one.
    pub(crate) fn too_many(what: &str, count: usize, limit: usize, key: Option<&str>) -> Self {
        let raise = key.map_or_else(String::new, |key| {
            format!(", or raise `{key}` of this controller")
        });
        let message = format!(
            "the plugin answered with {count} {what}; it may answer with {limit}: make it answer with fewer{raise}"
        );
        Self::other(Class::Output, message)
    }

    /// Returns the error of a request that would be too large; the plugin was not called.
    #[must_use]
    pub fn request(limit: usize, children: usize, related: usize) -> Self {
        let message = format!(
            "the request to the plugin would be larger than {}: {children} children and {related} objects that it asked to \
             read are too much for one call; make it need less (a label selector, a name), or raise `limits.request` of this \
             controller",
            mebibytes(limit)
        );
        Self::other(Class::Request, message)
    }

    /// Returns the same for objects to convert.
    pub(crate) fn too_many_objects(limit: usize, objects: usize) -> Self {
        let message = format!(
            "{objects} objects to convert are together larger than {}: raise `limits.request` of this controller",
            mebibytes(limit)
        );
        Self::other(Class::Request, message)
    }

    /// Returns the error of a call for which other calls used all the memory or all the turns, as long as it may take itself.
    pub(crate) fn busy(waited: Duration) -> Self {
        let message = format!(
            "the plugin was not called: for {waited:?} other calls had all the memory that plugin calls may hold; it is \
             retried. Give the host more memory (or a larger `--memory`), or lower `limits.memory`, `limits.deadline` or \
             `concurrency` of controllers whose plugins take much"
        );
        Self::other(Class::Busy, message)
    }

    /// Returns the error of an answer that does not follow the contract; `problem` says where.
    pub(crate) fn protocol(problem: impl Into<String>) -> Self {
        let message = format!(
            "the plugin's answer does not follow the contract: {}",
            shortened(&problem.into())
        );
        Self::other(Class::Protocol, message)
    }

    /// Returns the failure that a plugin answers with, or the error of a document that answers another call.
    pub(crate) fn unexpected(export: Export, output: CommandOutput) -> Self {
        let found = match output {
            CommandOutput::Failure(_) if export == Export::Validate => {
                return Self::protocol(
                    "its answer to `validate` has the field `failure`; it must have `validated`, a list of field errors",
                );
            }
            CommandOutput::Failure(failure) => return failure.into(),
            CommandOutput::Description(_) => "description",
            CommandOutput::Validated(_) => "validated",
            CommandOutput::Response(_) => "response",
            CommandOutput::Converted(_) => "converted",
            CommandOutput::Defaulted(_) => "defaulted",
        };
        Self::protocol(format!(
            "its answer to `{export}` has the field `{found}`, which belongs to another call"
        ))
    }

    /// Returns the error of a call that the host could not make.
    pub fn host(error: impl fmt::Display) -> Self {
        Self::other(
            Class::Host,
            format!("the host could not call the plugin: {error}"),
        )
    }
}

/// Cuts the plugin's texts.
impl From<Failure> for CallError {
    fn from(mut failure: Failure) -> Self {
        let (Failure::Invalid { message, .. } | Failure::Retry { message, .. }) = &mut failure;
        *message = shortened(message);
        if let Failure::Invalid { reason, .. } = &mut failure {
            *reason = reason.as_deref().map(shortened);
        }
        Self::Failure(failure)
    }
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
    use crate::contract::{ContractVersion, Kind};

    fn kind(api_version: &str, kind: &str) -> Kind {
        Kind::new(api_version, kind)
    }

    fn description() -> Description {
        Description {
            contract: ContractVersion::V1,
            name: "echo".into(),
            version: "1.4.0-rc.1+build".into(),
            parent: kind("my-operator.dev/v1", "Echo"),
            also: Vec::new(),
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
    fn a_description_that_the_host_could_not_ask_for_is_not_blamed_on_the_plugin() {
        let part = |error: CallError| LoadError::describe(&error).part();
        assert_eq!(part(CallError::host("no memory")), Part::Host);
        assert_eq!(part(CallError::busy(Duration::from_secs(1))), Part::Host);
        assert_eq!(part(CallError::timeout(Duration::from_secs(1))), Part::Describe);
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
