//! Prepares a plugin's file for calls: loads its code from the cache, or compiles it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;
use wasmtime::Engine;

use crate::cache::{self, Cache};
use crate::code::{Code, Machine};
use crate::command::CommandForm;
use crate::compile;
use crate::component::ComponentForm;
use crate::digest::Digest;
use crate::error::LoadError;
use crate::failures::{Failure, Within};
use crate::limits::Limits;
use crate::outside::{Compiler, Failed, Outside};

/// Maximum number of concurrent compilations: a long one does not block the next, and two fit into memory.
const AT_A_TIME: usize = 2;

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
    Restored,
}

/// A plugin, and how it was prepared.
pub(crate) struct Product {
    pub(crate) prepared: Prepared,
    pub(crate) digest: Digest,
    pub(crate) made: CodeOrigin,
    /// The duration, without the time spent waiting for other plugins.
    pub(crate) took: Duration,
}

/// Prepares plugins for one engine.
pub(crate) struct Maker {
    engine: Engine,
    /// The linkers for plugins.
    component: crate::component::Linker,
    command: crate::command::Linker,
    compiler: Compiler,
    cache: Option<Cache>,
    compatibility: u64,
    turns: Arc<Semaphore>,
    /// Whether it was already logged that no compiling process can be started.
    start_failure_logged: AtomicBool,
}

impl Maker {
    pub(crate) fn new(engine: &Engine, compiler: Compiler, cache: Option<Cache>) -> wasmtime::Result<Self> {
        Ok(Self {
            engine: engine.clone(),
            component: crate::component::linker(engine)?,
            command: crate::command::linker(engine)?,
            compiler,
            cache,
            compatibility: cache::compatibility(engine),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
            start_failure_logged: AtomicBool::new(false),
        })
    }

    /// Prepares a plugin from a file.
    pub(crate) async fn make(self: &Arc<Self>, file: Bytes, limits: &Limits) -> Result<Product, LoadError> {
        let start = Instant::now();
        let bytes = file.clone();
        let (digest, kept) = self
            .blocking(move |maker| {
                let digest = Digest::of(&bytes);
                (digest, maker.kept(&maker.name(&digest)))
            })
            .await?;
        let product = |prepared, made, start: Instant| Product {
            prepared,
            digest,
            made,
            took: start.elapsed(),
        };
        if let Some(kept) = kept {
            return Ok(product(self.link(kept).await?, CodeOrigin::Restored, start));
        }
        // The semaphore is never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        let start = Instant::now();
        let within = self.within(limits);
        // While this load waited, the same file may have been compiled, or failed to compile, for another
        // controller.
        let kept = self
            .blocking(move |maker| {
                let name = maker.name(&digest);
                let failure = maker.cache.as_ref().and_then(|cache| cache.failure(&name));
                match (
                    maker.kept(&name),
                    failure.and_then(|failure| failure.still(within)),
                ) {
                    (Some(kept), _) => Ok(Some(kept)),
                    (None, Some(error)) => Err(error),
                    (None, None) => Ok(None),
                }
            })
            .await??;
        if let Some(kept) = kept {
            return Ok(product(self.link(kept).await?, CodeOrigin::Restored, start));
        }
        let compiled = match &self.compiler {
            Compiler::Inside => self.inside(file, digest, limits, turn).await,
            Compiler::Outside(outside) => self.outside(outside, file, digest, limits, turn).await,
        };
        if let Err(error) = &compiled
            && error.is_of_compiling()
        {
            let failure = Failure::now(error, within);
            self.blocking(move |maker| {
                if let Some(cache) = &maker.cache {
                    cache.put_failure(&maker.name(&digest), &failure);
                }
            })
            .await?;
        }
        Ok(product(self.link(compiled?).await?, CodeOrigin::Compiled, start))
    }

    /// Compiles in a separate process; in this process when that cannot be started.
    async fn outside(
        self: &Arc<Self>,
        outside: &Outside,
        file: Bytes,
        digest: Digest,
        limits: &Limits,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Machine, LoadError> {
        match outside.compile(&file, limits.compile).await {
            Ok(code) => {
                drop(turn);
                self.blocking(move |maker| maker.loaded(&digest, Code::compiled(code)))
                    .await?
            }
            Err(Failed::Plugin(error)) => Err(error),
            Err(Failed::Start(error)) => {
                if !self.start_failure_logged.swap(true, Ordering::Relaxed) {
                    warn!(
                        error,
                        "cannot start a process to compile plugins, so the host compiles them in its own process: a \
                         plugin that is hard to compile uses the host's processor time and memory; allow the container \
                         to start processes"
                    );
                }
                self.inside(file, digest, limits, turn).await
            }
        }
    }

    /// Compiles in this process. The compiler cannot be interrupted: after the time limit it continues until
    /// it is done, and only then does its turn end.
    async fn inside(
        self: &Arc<Self>,
        file: Bytes,
        digest: Digest,
        limits: &Limits,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Machine, LoadError> {
        let work = self.blocking(move |maker| {
            let _turn = turn;
            let code = compile::machine_code(&maker.engine, &file)?;
            maker.loaded(&digest, Code::compiled(code))
        });
        tokio::time::timeout(limits.compile, work)
            .await
            .map_err(|_| LoadError::CompileTimeout(limits.compile))??
    }

    /// Stores new code in the cache, and loads it.
    fn loaded(&self, digest: &Digest, code: Code) -> Result<Machine, LoadError> {
        if let Some(cache) = &self.cache {
            cache.put(&self.name(digest), &code);
        }
        code.load(&self.engine).map_err(|error| LoadError::Host {
            message: format!("{error:#}"),
        })
    }

    fn kept(&self, name: &str) -> Option<Machine> {
        let load = |code: Code| code.load(&self.engine);
        self.cache.as_ref()?.get(name, load)
    }

    async fn link(self: &Arc<Self>, machine: Machine) -> Result<Prepared, LoadError> {
        let link = move |maker: &Self| match machine {
            Machine::Component(component) => {
                ComponentForm::new(&maker.engine, &maker.component, &component).map(Prepared::Component)
            }
            Machine::Module(module) => CommandForm::new(&maker.command, &module).map(Prepared::Command),
        };
        self.blocking(link).await?
    }

    fn name(&self, digest: &Digest) -> String {
        cache::name(self.compatibility, digest)
    }

    fn within(&self, limits: &Limits) -> Within {
        Within {
            time: limits.compile,
            memory: match &self.compiler {
                Compiler::Inside => usize::MAX,
                Compiler::Outside(outside) => outside.memory(),
            },
        }
    }

    /// Runs blocking work outside the threads that serve others.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, LoadError> {
        let maker = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || work(&maker));
        // The work panicked, or the process is shutting down.
        work.await.map_err(|error| LoadError::Host {
            message: error.to_string(),
        })
    }
}
