//! From the bytes of a file to something that can be called.

use std::collections::BTreeSet;

use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::cache::{self, Cache, Deserialize};
use crate::call::CallError;
use crate::command::CommandForm;
use crate::component::ComponentForm;
use crate::contract::{CONTRACT_VERSION, Description, is_dns_label};
use crate::inspect::{Shape, inspect};
use crate::limits::{Limits, MIB};

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
    /// Compilation took longer than [`Limits::compile`]. The compiler itself cannot be interrupted: it goes
    /// on in the background until it is done.
    #[error("the plugin was not compiled within {0:?}: make it smaller")]
    CompileTimeout(std::time::Duration),
    /// `describe` gave no description.
    #[error("`describe` failed: {0}")]
    Describe(CallError),
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

/// Made once for an engine: what plugins are linked against.
pub(crate) struct Linkers {
    pub(crate) component: crate::component::Linker,
    pub(crate) command: crate::command::Linker,
}

impl Linkers {
    pub(crate) fn new(engine: &Engine) -> wasmtime::Result<Self> {
        Ok(Self {
            component: crate::component::linker(engine)?,
            command: crate::command::linker(engine)?,
        })
    }
}

/// A plugin of either form, compiled and linked: made once, instantiated for each call.
pub(crate) enum Prepared {
    Component(ComponentForm),
    Command(CommandForm),
}

/// Where machine code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It was compiled for this load.
    Compiled,
    /// It was kept from an earlier one.
    Restored,
}

/// What makes machine code.
#[derive(Clone, Copy)]
pub(crate) struct Compiler<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) cache: Option<&'a Cache>,
}

/// Compiles for as long as it takes: not for a thread that serves others.
pub(crate) fn prepare(
    compiler: Compiler<'_>,
    linkers: &Linkers,
    bytes: &[u8],
    limits: &Limits,
) -> Result<(Prepared, Made), LoadError> {
    if bytes.len() > limits.module {
        return Err(LoadError::TooLarge {
            size: bytes.len(),
            limit: limits.module,
        });
    }
    match inspect(bytes)? {
        Shape::Component => component(compiler, linkers, bytes),
        Shape::Bindings => component(compiler, linkers, &crate::component::encode(bytes)?),
        Shape::Command => {
            let (module, made) = compile::<Module>(compiler, bytes)?;
            let form = CommandForm::new(&linkers.command, &module)?;
            Ok((Prepared::Command(form), made))
        }
    }
}

fn component(compiler: Compiler<'_>, linkers: &Linkers, bytes: &[u8]) -> Result<(Prepared, Made), LoadError> {
    let (component, made) = compile::<Component>(compiler, bytes)?;
    let form = ComponentForm::new(compiler.engine, &linkers.component, &component)?;
    Ok((Prepared::Component(form), made))
}

/// What wasmtime compiles, alike for both forms.
trait Code: Sized {
    const FORM: &str;
    const DESERIALIZE: Deserialize<Self>;
    fn compile(engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Self>;
    fn serialize(&self) -> wasmtime::Result<Vec<u8>>;
}

impl Code for Component {
    const FORM: &str = "component";
    const DESERIALIZE: Deserialize<Self> = Component::deserialize;

    fn compile(engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Self> {
        Component::new(engine, bytes)
    }

    fn serialize(&self) -> wasmtime::Result<Vec<u8>> {
        Component::serialize(self)
    }
}

impl Code for Module {
    const FORM: &str = "module";
    const DESERIALIZE: Deserialize<Self> = Module::deserialize;

    fn compile(engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Self> {
        Module::new(engine, bytes)
    }

    fn serialize(&self) -> wasmtime::Result<Vec<u8>> {
        Module::serialize(self)
    }
}

/// The one place where machine code is made, or taken from the cache: by what the compiler would be given, so that
/// nothing that comes before it can be out of date.
fn compile<T: Code>(compiler: Compiler<'_>, bytes: &[u8]) -> Result<(T, Made), LoadError> {
    let Compiler { engine, cache } = compiler;
    let kept = cache.map(|cache| (cache, cache::name(engine, bytes, T::FORM)));
    if let Some((cache, name)) = &kept
        && let Some(code) = cache.get(engine, name, T::DESERIALIZE)
    {
        return Ok((code, Made::Restored));
    }
    let code = T::compile(engine, bytes).map_err(|error| LoadError::Malformed {
        message: format!("{error:#}"),
    })?;
    if let Some((cache, name)) = &kept
        && let Ok(bytes) = code.serialize()
    {
        cache.put(name, &bytes);
    }
    Ok((code, Made::Compiled))
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
