//! Loads a plugin's file: takes its machine code from the cache or compiles it, and links it for calls.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tracing::debug;
use wasmtime::Engine;

use crate::call::{Call, Setting};
use crate::code::{Code, Machine};
use crate::code_cache::{self, Cache, Described, Stored};
use crate::command::CommandForm;
use crate::compile::machine_code;
use crate::component::ComponentForm;
use crate::contract::{Asked, CommandOutput};
use crate::error::{LoadError, with_causes};
use crate::fair::{Fair, Member};
use crate::form::Form;
use crate::lane::Owned;
use crate::limits::Limits;
use crate::subprocess::Compiler;
use operator_host_core::digest::Digest;

/// Maximum number of plugins that are unpacked, compiled and described at the same time: a long compilation does not block the
/// next.
const MAX_COMPILATIONS: usize = 2;

/// Maximum number of concurrent loads from the cache for calls: each holds the code a second time meanwhile, and may
/// occupy a processor.
const MAX_RESTORATIONS: usize = 2;

/// A plugin of either form, compiled and linked: created once, instantiated for each call.
pub(crate) enum Prepared {
    Component(ComponentForm),
    Command(CommandForm),
}

/// Where machine code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOrigin {
    /// Compiled for this load.
    Compiled,
    /// Loaded from the cache.
    Cached,
}

impl Prepared {
    pub(crate) const fn form(&self) -> Form {
        match self {
            Self::Component(_) => Form::Component,
            Self::Command(_) => Form::Command,
        }
    }

    /// Calls an export once in its own sandbox.
    pub(crate) fn ask(&self, asked: Asked, setting: Setting) -> Owned<Call<CommandOutput>> {
        match self {
            Self::Component(form) => form.ask(asked, setting),
            Self::Command(form) => form.ask(asked, setting),
        }
    }
}

/// Loads plugins.
pub(crate) struct Loader {
    /// Calls plugins in the pool, if there is one.
    pooled: Option<Target>,
    /// Calls plugins that do not fit into the pool. Code that was compiled for it runs in both.
    on_demand: Target,
    compiler: Compiler,
    cache: Option<Cache>,
    compatibility: u64,
    /// Of those who deliver plugins, who take turns: none waits for more than one plugin of each of the others.
    turns: Fair,
    restorations: Semaphore,
}

/// An engine, and what it provides to plugins.
struct Target {
    engine: Engine,
    component: crate::linker::Linker,
    command: crate::command::Linker,
}

impl Target {
    fn new(engine: &Engine) -> wasmtime::Result<Self> {
        Ok(Self {
            engine: engine.clone(),
            component: crate::linker::linker(engine)?,
            command: crate::command::linker(engine)?,
        })
    }

    fn link(&self, machine: Machine) -> Result<Prepared, LoadError> {
        let images = machine.make_images();
        images.map_err(|error| LoadError::host(with_causes(&error)))?;
        match machine {
            Machine::Component(component) => {
                ComponentForm::new(&self.engine, &self.component, &component).map(Prepared::Component)
            }
            Machine::Module(module) => CommandForm::new(&self.command, &module).map(Prepared::Command),
        }
    }
}

impl Loader {
    pub(crate) fn new(
        engine: &crate::engine::Engine,
        compiler: Compiler,
        cache: Option<Cache>,
        files: usize,
    ) -> wasmtime::Result<Self> {
        let turns = (files / Limits::DEFAULT.module).clamp(1, MAX_COMPILATIONS);
        Ok(Self {
            pooled: engine.pooled().map(Target::new).transpose()?,
            on_demand: Target::new(engine.on_demand())?,
            compiler,
            cache,
            compatibility: code_cache::compatibility(engine.on_demand()),
            turns: Fair::new(turns, 1),
            restorations: Semaphore::new(MAX_RESTORATIONS),
        })
    }

    /// Returns the member whose turns those who deliver plugins together share.
    pub(crate) fn tenant(&self, name: &str) -> Arc<Member> {
        self.turns.named(name)
    }

    /// Compiles a plugin, and links it.
    pub(crate) async fn compile(
        self: &Arc<Self>,
        file: Bytes,
        limits: &Limits,
    ) -> Result<(Arc<Code>, Prepared), LoadError> {
        let compiled = match &self.compiler {
            Compiler::InProcess => {
                self.blocking(move |loader| machine_code(&loader.on_demand.engine, &file))
                    .await?
            }
            Compiler::Subprocess(subprocess) => subprocess.compile(&file, limits.compile).await,
        };
        let code = Arc::new(Code::compiled(compiled?));
        let loaded = Arc::clone(&code);
        let prepared = self.blocking(move |loader| loader.link(&loaded)).await?;
        Ok((code, prepared.map_err(LoadError::host)??))
    }

    /// Returns a plugin as the cache has it.
    pub(crate) async fn stored(
        self: &Arc<Self>,
        digest: Digest,
    ) -> Result<Option<(Arc<Stored>, Described)>, LoadError> {
        self.blocking(move |loader| {
            let (stored, described) = loader.cache.as_ref()?.get(&loader.name(&digest))?;
            Some((Arc::new(stored), described))
        })
        .await
    }

    /// Stores a plugin in the cache, and returns it as the cache has it; `None` when it does not.
    pub(crate) async fn store(
        self: &Arc<Self>,
        digest: Digest,
        code: Arc<Code>,
        described: Described,
    ) -> Result<Option<Arc<Stored>>, LoadError> {
        self.blocking(move |loader| {
            let (cache, name) = (loader.cache.as_ref()?, loader.name(&digest));
            cache.put(&name, &code, &described);
            Some(Arc::new(cache.get(&name)?.0))
        })
        .await
    }

    /// Loads code from an entry of the cache.
    ///
    /// # Errors
    /// Returns an error when the entry is damaged, or the engine refuses it. The entry is then removed.
    pub(crate) async fn restore(self: &Arc<Self>, stored: Arc<Stored>) -> Result<Prepared, LoadError> {
        // The semaphore is never closed.
        let _turn = self.restorations.acquire().await.ok();
        self.blocking(move |loader| {
            let code = stored.read().map_err(|error| error.to_string());
            let linked = code.and_then(|code| loader.link(&code).map_err(|error| with_causes(&error)));
            linked.unwrap_or_else(|reason| {
                if let Some(cache) = &loader.cache {
                    cache.discard(stored.name(), &reason);
                }
                Err(LoadError::host(format!(
                    "its compiled code in the cache is damaged ({reason}): restart the host, which compiles it again, and \
                     check the volume of the cache"
                )))
            })
        })
        .await?
    }

    /// Loads code into the pool, if it fits, and links it.
    ///
    /// # Errors
    /// Returns an error when the engine refuses the code.
    fn link(&self, code: &Code) -> wasmtime::Result<Result<Prepared, LoadError>> {
        if let Some(pooled) = &self.pooled {
            match code.load(&pooled.engine) {
                Ok(machine) => return Ok(pooled.link(machine)),
                Err(error) => {
                    let error = with_causes(&error);
                    debug!("a plugin is called outside of the pool, which is slower: {error}");
                }
            }
        }
        Ok(self.on_demand.link(code.load(&self.on_demand.engine)?))
    }

    fn name(&self, digest: &Digest) -> String {
        code_cache::name(self.compatibility, digest)
    }

    /// Runs blocking work outside the threads that serve others.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, LoadError> {
        let loader = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || work(&loader));
        // The work panicked, or the process is shutting down.
        work.await.map_err(LoadError::host)
    }
}
