//! Loads a plugin's file: takes its machine code from the cache or compiles it, and links it for calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tracing::debug;
use wasmtime::Engine;

use crate::code::{Code, Machine};
use crate::code_cache::{self, Cache, Described, Stored};
use crate::command::CommandForm;
use crate::compile::machine_code;
use crate::component::ComponentForm;
use crate::digest::Digest;
use crate::error::LoadError;
use crate::form::Form;
use crate::limits::Limits;
use crate::subprocess::Compiler;

/// Maximum number of concurrent compilations: a long one does not block the next, and two fit into memory.
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
}

/// The code of a plugin, and where it came from.
pub(crate) struct LoadedPlugin {
    pub(crate) code: LoadedCode,
    pub(crate) digest: Digest,
    pub(crate) made: CodeOrigin,
    /// The duration, without the time spent waiting for other plugins.
    pub(crate) took: Duration,
}

/// The code of a plugin, in memory or not.
pub(crate) enum LoadedCode {
    /// In the cache, with the description of the plugin.
    Stored(Arc<Stored>, Box<Described>),
    /// In memory.
    Prepared(Prepared),
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
    turns: Arc<Semaphore>,
    restorations: Semaphore,
}

/// An engine, and what it provides to plugins.
struct Target {
    engine: Engine,
    component: crate::component::Linker,
    command: crate::command::Linker,
}

impl Target {
    fn new(engine: &Engine) -> wasmtime::Result<Self> {
        Ok(Self {
            engine: engine.clone(),
            component: crate::component::linker(engine)?,
            command: crate::command::linker(engine)?,
        })
    }

    fn link(&self, machine: Machine) -> Result<Prepared, LoadError> {
        match machine {
            Machine::Component(component) => {
                ComponentForm::new(&self.engine, &self.component, &component).map(Prepared::Component)
            }
            Machine::Module(module) => CommandForm::new(&self.command, &module).map(Prepared::Command),
        }
    }
}

/// Machine code in the engine that calls it.
struct Loaded {
    machine: Machine,
    is_pooled: bool,
}

impl Loader {
    pub(crate) fn new(
        engine: &crate::engine::Engine,
        compiler: Compiler,
        cache: Option<Cache>,
    ) -> wasmtime::Result<Self> {
        Ok(Self {
            pooled: engine.pooled().map(Target::new).transpose()?,
            on_demand: Target::new(engine.on_demand())?,
            compiler,
            cache,
            compatibility: code_cache::compatibility(engine.on_demand()),
            turns: Arc::new(Semaphore::new(MAX_COMPILATIONS)),
            restorations: Semaphore::new(MAX_RESTORATIONS),
        })
    }

    /// Loads a plugin from a file.
    pub(crate) async fn load(
        self: &Arc<Self>,
        file: Bytes,
        limits: &Limits,
    ) -> Result<LoadedPlugin, LoadError> {
        let start = Instant::now();
        let bytes = file.clone();
        let (digest, stored) = self
            .blocking(move |loader| {
                let digest = Digest::of(&bytes);
                (digest, loader.stored(&digest))
            })
            .await?;
        let loaded = |code, made, start: Instant| LoadedPlugin {
            code,
            digest,
            made,
            took: start.elapsed(),
        };
        if let Some((stored, described)) = stored {
            let code = LoadedCode::Stored(stored, Box::new(described));
            return Ok(loaded(code, CodeOrigin::Cached, start));
        }
        let cached = self
            .blocking(move |loader| loader.cached(&loader.name(&digest)))
            .await?;
        let in_memory = |prepared, made, start| loaded(LoadedCode::Prepared(prepared), made, start);
        if let Some(cached) = cached {
            return Ok(in_memory(self.link(cached).await?, CodeOrigin::Cached, start));
        }
        // The semaphore is never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        let start = Instant::now();
        // While this load waited, the same file may have been compiled for another controller.
        let cached = self
            .blocking(move |loader| loader.cached(&loader.name(&digest)))
            .await?;
        if let Some(cached) = cached {
            return Ok(in_memory(self.link(cached).await?, CodeOrigin::Cached, start));
        }
        let compiled = match &self.compiler {
            Compiler::InProcess => {
                self.blocking(move |loader| machine_code(&loader.on_demand.engine, &file))
                    .await?
            }
            Compiler::Subprocess(subprocess) => subprocess.compile(&file, limits.compile).await,
        };
        drop(turn);
        let code = Code::compiled(compiled?);
        let loaded = self
            .blocking(move |loader| loader.store_and_load(&digest, &code))
            .await??;
        Ok(in_memory(self.link(loaded).await?, CodeOrigin::Compiled, start))
    }

    /// Stores a plugin's description, and returns its code as the cache has it; `None` when it does not.
    pub(crate) async fn store_description(
        self: &Arc<Self>,
        digest: Digest,
        described: Described,
    ) -> Result<Option<Arc<Stored>>, LoadError> {
        self.blocking(move |loader| {
            let cache = loader.cache.as_ref()?;
            let name = loader.name(&digest);
            let stored = cache.stored(&name)?;
            cache.put_described(&name, &described);
            Some(Arc::new(stored))
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
        let loaded = self
            .blocking(move |loader| {
                let code = stored.read().map_err(|error| error.to_string());
                let loaded =
                    code.and_then(|code| loader.load_code(&code).map_err(|error| format!("{error:#}")));
                loaded.map_err(|reason| {
                    if let Some(cache) = &loader.cache {
                        cache.discard(stored.name(), &reason);
                    }
                    LoadError::host(format!(
                        "its compiled code in the cache is damaged ({reason}): restart the host, which compiles it again, and \
                         check the volume of the cache"
                    ))
                })
            })
            .await??;
        self.link(loaded).await
    }

    fn stored(&self, digest: &Digest) -> Option<(Arc<Stored>, Described)> {
        let (cache, name) = (self.cache.as_ref()?, self.name(digest));
        let described = cache.described(&name)?;
        Some((Arc::new(cache.stored(&name)?), described))
    }

    /// Stores new code in the cache, and loads it.
    fn store_and_load(&self, digest: &Digest, code: &Code) -> Result<Loaded, LoadError> {
        if let Some(cache) = &self.cache {
            cache.put(&self.name(digest), code);
        }
        self.load_code(code).map_err(LoadError::host)
    }

    fn cached(&self, name: &str) -> Option<Loaded> {
        self.cache.as_ref()?.get(name, |code| self.load_code(&code))
    }

    /// Loads code into the pool, if it fits.
    fn load_code(&self, code: &Code) -> wasmtime::Result<Loaded> {
        if let Some(pooled) = &self.pooled {
            match code.load(&pooled.engine) {
                Ok(machine) => {
                    return Ok(Loaded {
                        machine,
                        is_pooled: true,
                    });
                }
                Err(error) => debug!("a plugin is called outside of the pool, which is slower: {error:#}"),
            }
        }
        let machine = code.load(&self.on_demand.engine)?;
        Ok(Loaded {
            machine,
            is_pooled: false,
        })
    }

    async fn link(self: &Arc<Self>, loaded: Loaded) -> Result<Prepared, LoadError> {
        let link = move |loader: &Self| {
            let pooled = loader.pooled.as_ref().filter(|_| loaded.is_pooled);
            pooled.unwrap_or(&loader.on_demand).link(loaded.machine)
        };
        self.blocking(link).await?
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
