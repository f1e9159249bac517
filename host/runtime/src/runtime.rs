//! The public interface: loads and calls plugins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::call::{Call, Setting};
use crate::code_cache::{Cache, Described, Stored};
use crate::contract::{
    Asked, CommandOutput, Conversion, Converted, Description, Export, FieldError, Json, Request, Response,
};
use crate::deterministic::Origin;
use crate::engine::{Engine, EngineError, Seat};
use crate::error::{self, CallError, LoadError};
use crate::fair::Member;
use crate::form::Form;
use crate::limits::{EngineOptions, Limits};
use crate::loader::{CodeOrigin, Loader, Prepared};
use crate::log::{LogSource, Rate};
use crate::memory_budget::Share;
use crate::resident::Resident;
use crate::subprocess::Compiler;
use operator_host_core::digest::Digest;

/// The WebAssembly runtime of a process. Cheap to clone; clones share one engine.
#[derive(Clone)]
pub struct Runtime(Arc<Shared>);

struct Shared {
    engine: Engine,
    loader: Arc<Loader>,
    /// How long code without a call stays in memory.
    idle: Duration,
}

impl Runtime {
    /// Starts the engine and the thread that interrupts guests. Plugins are compiled in this process on each
    /// load.
    ///
    /// # Errors
    /// Returns an error when the machine does not support the engine.
    pub fn new(options: EngineOptions) -> Result<Self, EngineError> {
        Self::with(options, Compiler::InProcess, None)
    }

    /// Does the same as [`Runtime::new`], with the given `compiler`, and loads code from `cache` and stores
    /// it there.
    ///
    /// # Errors
    /// See [`Runtime::new`].
    pub fn with(
        options: EngineOptions,
        compiler: Compiler,
        cache: Option<Cache>,
    ) -> Result<Self, EngineError> {
        let engine = Engine::new(options)?;
        let idle = options.idle;
        let loader = Loader::new(&engine, compiler, cache, options.files).map_err(EngineError::Engine)?;
        Ok(Self(Arc::new(Shared {
            engine,
            loader: Arc::new(loader),
            idle,
        })))
    }

    /// Compiles a plugin and calls its `describe`, unless the cache has the results of both. Machine code that is in the
    /// cache is loaded by the first call. Dropping the future ends a compilation in a separate
    /// process.
    ///
    /// # Errors
    /// Returns an error when the file is not a plugin that this host can run; the message is for users.
    pub async fn load(&self, bytes: impl Into<Bytes>, limits: Limits) -> Result<Plugin, LoadError> {
        let bytes = bytes.into();
        let size = bytes.len();
        if size > limits.module {
            return Err(LoadError::too_large(size, limits.module));
        }
        let file = bytes.clone();
        let digest = tokio::task::spawn_blocking(move || Digest::of(&file)).await;
        let digest = digest.map_err(LoadError::host)?;
        let read = async { Ok::<_, LoadError>(bytes) };
        self.load_in_turn(digest, size, &self.tenant(""), read, limits)
            .await
    }

    /// Returns the turns of those who deliver plugins under this name. They are shared as long as somebody holds them.
    #[must_use]
    pub fn tenant(&self, name: &str) -> Arc<Member> {
        self.0.loader.tenant(name)
    }

    /// Does the same as [`Runtime::load`] with a file of this digest and size that is not in memory: `read` reads it when it is the
    /// tenant's turn, if the cache lacks it. So what waits takes no memory.
    ///
    /// # Errors
    /// See [`Runtime::load`]; and why the file cannot be read.
    pub async fn load_in_turn<E: From<LoadError>>(
        &self,
        digest: Digest,
        size: usize,
        tenant: &Member,
        read: impl Future<Output = Result<Bytes, E>>,
        limits: Limits,
    ) -> Result<Plugin, E> {
        let mut start = Instant::now();
        let Shared { engine, loader, .. } = &*self.0;
        let mut stored = loader.stored(digest).await?;
        let mut _turn = None;
        if stored.is_none() {
            _turn = Some(tenant.acquire(1).await);
            start = Instant::now();
            // While this load waited, the same file may have been compiled for another controller.
            stored = loader.stored(digest).await?;
        }
        let seat = engine.seat();
        let (code, described, made, compile_time) = match stored {
            Some((stored, described)) => {
                error::check(&described.description)?;
                let code = self.parked(stored, None);
                (code, described, CodeOrigin::Cached, start.elapsed())
            }
            None => {
                let file = read.await?;
                start = Instant::now();
                let (code, prepared) = loader.compile(file, &limits).await?;
                let compile_time = start.elapsed();
                let described = self.describe(&prepared, digest, &seat, limits).await?;
                let stored = loader.store(digest, code, described.clone()).await?;
                let code = match stored {
                    Some(stored) => self.parked(stored, Some(prepared)),
                    None => Resident::Always(Arc::new(prepared)),
                };
                (code, described, CodeOrigin::Compiled, compile_time)
            }
        };
        let Described {
            form,
            refused,
            description,
        } = described;
        let log_source = Arc::new(LogSource {
            name: description.name.clone(),
            digest,
            rate: Rate::default(),
        });
        let runtime = self.clone();
        let loaded = Arc::new(Loaded {
            runtime,
            code,
            form,
            refused,
            seat,
            log_source,
            description,
            limits,
            size,
            made,
            compile_time,
        });
        Ok(Plugin { loaded, proof: None })
    }

    /// Asks a plugin what it is.
    async fn describe(
        &self,
        prepared: &Prepared,
        digest: Digest,
        seat: &Seat,
        limits: Limits,
    ) -> Result<Described, LoadError> {
        // The plugin's name is unknown until `describe` returns.
        let nameless = Arc::new(LogSource {
            name: String::new(),
            digest,
            rate: Rate::default(),
        });
        // A plugin is described once, so this waits without a limit.
        let describing = limits.of_description();
        let share = seat.memory.most(&describing).await;
        let turn = self.0.engine.turn(seat).await;
        let setting = Setting {
            origin: Origin::fixed(),
            log_source: nameless,
            limits: describing,
            deadline: Instant::now() + limits.deadline,
            room: share.room(),
        };
        let deadline = setting.deadline;
        let described = prepared.ask(Asked::Describe, setting);
        let described = seat.slow.run(deadline, described).await;
        drop((turn, share));
        let description = described.outcome.and_then(|output| match output {
            CommandOutput::Description(description) => Ok(description),
            other => Err(CallError::unexpected(Export::Describe, other)),
        });
        let description = description.map_err(|error| LoadError::describe(&error))?;
        error::check(&description)?;
        Ok(Described {
            form: prepared.form(),
            refused: match prepared {
                Prepared::Component(form) => form.refused.clone(),
                Prepared::Command(_) => Vec::new(),
            },
            description,
        })
    }

    fn parked(&self, stored: Arc<Stored>, prepared: Option<Prepared>) -> Resident {
        let Shared { loader, idle, .. } = &*self.0;
        Resident::parked(loader, stored, prepared, *idle)
    }
}

/// One version of a plugin, compiled and described. Cheap to clone; clones share it, and a clone keeps this
/// version alive while another version replaces it.
#[derive(Clone)]
pub struct Plugin {
    loaded: Arc<Loaded>,
    /// For a proof, whose calls get these random numbers.
    proof: Option<RandomSource>,
}

struct Loaded {
    runtime: Runtime,
    code: Resident,
    form: Form,
    refused: Vec<String>,
    seat: Seat,
    log_source: Arc<LogSource>,
    description: Description,
    limits: Limits,
    size: usize,
    made: CodeOrigin,
    compile_time: Duration,
}

impl Plugin {
    /// Returns the identity of this version.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.loaded.log_source.digest
    }

    /// Returns the plugin's description.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.loaded.description
    }

    /// Returns the binary form.
    #[must_use]
    pub fn form(&self) -> Form {
        self.loaded.form
    }

    /// Returns the interfaces that it imports and that end a call which uses them, such as `wasi:sockets/tcp@0.2.9`.
    #[must_use]
    pub fn refused_imports(&self) -> &[String] {
        &self.loaded.refused
    }

    /// Returns the caps on its calls.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.loaded.limits
    }

    /// Returns the size of the file in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.loaded.size
    }

    /// Returns where its machine code came from.
    #[must_use]
    pub fn code_origin(&self) -> CodeOrigin {
        self.loaded.made
    }

    /// Returns a function that reports whether this version and its machine code have been dropped. For
    /// tests.
    #[doc(hidden)]
    pub fn ended(&self) -> impl Fn() -> bool + use<> {
        let version = Arc::downgrade(&self.loaded);
        move || version.strong_count() == 0
    }

    /// Reports whether its machine code is in memory. For tests.
    #[doc(hidden)]
    pub async fn is_in_memory(&self) -> bool {
        self.loaded.code.is_loaded().await
    }

    /// Returns how long it took to obtain machine code for the file.
    #[must_use]
    pub fn compile_time(&self) -> Duration {
        self.loaded.compile_time
    }

    /// Returns the same version for a proof: its calls write no log, since its lines would look like real actions, and wait
    /// as long as they must, since a busy host is not a property of the version.
    #[must_use]
    pub fn proving(&self, random: RandomSource) -> Self {
        Self {
            proof: Some(random),
            ..self.clone()
        }
    }

    /// Calls `reconcile` in a fresh sandbox. The guest's output is written to the log, in the current span.
    ///
    /// Dropping the future ends the guest.
    pub async fn reconcile(&self, request: &Request) -> Call<Response> {
        self.respond(request.clone().asked_of(Export::Reconcile)).await
    }

    /// Calls `cleanup` in a fresh sandbox; otherwise like [`Plugin::reconcile`].
    pub async fn cleanup(&self, request: &Request) -> Call<Response> {
        self.respond(request.clone().asked_of(Export::Cleanup)).await
    }

    /// Calls `reconcile` or `cleanup`, as [`Plugin::reconcile`] does.
    pub async fn respond(&self, asked: Asked) -> Call<Response> {
        let is_cleanup = asked.export() == Export::Cleanup;
        let call = self.call(asked, |output| match output {
            CommandOutput::Response(response) => Ok(*response),
            other => Err(Box::new(other)),
        });
        call.await.and_then(|mut response| {
            if is_cleanup {
                // By the contract they have no effect.
                (response.keep, response.generate) = (Vec::new(), Vec::new());
            }
            Ok(response)
        })
    }

    /// Calls `convert` in a fresh sandbox: all objects in one call.
    ///
    /// The result has as many entries as there are objects; otherwise it is an error.
    pub async fn convert(&self, conversion: &Arc<Conversion>) -> Call<Vec<Converted>> {
        let count = conversion.objects.len();
        let call = self.call(Asked::Convert(Arc::clone(conversion)), |output| match output {
            CommandOutput::Converted(converted) => Ok(converted),
            other => Err(Box::new(other)),
        });
        call.await.and_then(|converted| {
            if converted.len() == count {
                Ok(converted)
            } else {
                Err(CallError::protocol(format!(
                    "it was asked to convert {count} objects and converted {}",
                    converted.len()
                )))
            }
        })
    }

    /// Calls `validate` in a fresh sandbox. `old_parent` is the stored object that `parent` would replace.
    pub async fn validate(&self, parent: &Json, old_parent: Option<&Json>) -> Call<Vec<FieldError>> {
        let asked = Asked::Validate(Arc::clone(parent), old_parent.map(Arc::clone));
        self.call(asked, |output| match output {
            CommandOutput::Validated(errors) => Ok(errors),
            other => Err(Box::new(other)),
        })
        .await
    }

    /// Calls `default` in a fresh sandbox. The response is the spec.
    pub async fn default(&self, parent: &Json) -> Call<Map<String, Value>> {
        self.call(Asked::Default(Arc::clone(parent)), |output| match output {
            CommandOutput::Defaulted(spec) => Ok(spec),
            other => Err(Box::new(other)),
        })
        .await
    }

    /// Calls with the memory that this plugin usually needs. If that was not enough, calls once more with all
    /// the memory it may have.
    async fn call<T>(&self, asked: Asked, read: Read<T>) -> Call<T> {
        let start = Instant::now();
        let code = match self.loaded.code.prepared().await {
            Ok(code) => code,
            Err(error) => return Call::failed(CallError::host(error)),
        };
        // Not a part of the time that the call may wait: a plugin with a short deadline gets its code, too.
        let loading = start.elapsed();
        let memory = &self.loaded.seat.memory;
        let mut call = self.once(memory.usual(), &asked, Duration::ZERO, &code).await;
        if call.share.as_ref().is_some_and(Share::is_outgrown) {
            let waited = call.stats.waited;
            // Released first, so that the call holds no memory while it waits.
            drop(call);
            let most = memory.most(&self.loaded.limits);
            call = self.once(most, &asked, waited, &code).await;
        }
        call.stats.waited += loading;
        call.and_then(|output| read(output).map_err(|other| CallError::unexpected(asked.export(), *other)))
    }

    async fn once(
        &self,
        share: impl Future<Output = Share>,
        asked: &Asked,
        mut waited: Duration,
        code: &Prepared,
    ) -> Call<CommandOutput> {
        let Loaded {
            seat,
            log_source,
            limits,
            runtime,
            ..
        } = &*self.loaded;
        let (mut limits, mut patience) = (*limits, limits.deadline);
        if self.proof.is_some() {
            (limits.log_lines, patience) = (0, Duration::MAX);
        }
        let start = Instant::now();
        let ready = async {
            // In this order, so that a call that waits for memory does not occupy a turn.
            let share = share.await;
            (share, runtime.0.engine.turn(seat).await)
        };
        let ready = tokio::time::timeout(patience.saturating_sub(waited), ready).await;
        waited += start.elapsed();
        let Ok((mut share, _turn)) = ready else {
            let mut call = Call::failed(CallError::busy(waited));
            call.stats.waited = waited;
            return call;
        };
        let deadline = Instant::now() + limits.deadline;
        let setting = Setting {
            origin: self.origin(asked),
            log_source: Arc::clone(log_source),
            limits,
            deadline,
            room: share.room(),
        };
        let mut call = seat.slow.run(deadline, code.ask(asked.clone(), setting)).await;
        seat.memory.note(&share);
        share.keep_for_answer();
        call.stats.waited = waited;
        call.share = Some(share);
        call
    }

    /// Returns what the clocks and the randomness of a call start from. Most answers depend on nothing but the objects.
    fn origin(&self, asked: &Asked) -> Origin {
        match (asked, self.proof) {
            (Asked::Reconcile(request) | Asked::Cleanup(request), Some(RandomSource::Second)) => {
                Origin::of(request).drawn_again()
            }
            (Asked::Reconcile(request) | Asked::Cleanup(request), _) => Origin::of(request),
            _ => Origin::fixed(),
        }
    }
}

/// Returns the answer to a call, or any other output.
type Read<T> = fn(CommandOutput) -> Result<T, Box<CommandOutput>>;

/// The random numbers for a call in a proof. A plugin must give the same answer for any of them, because they
/// change from one reconcile to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomSource {
    /// The numbers of a real call.
    First,
    /// Other numbers.
    Second,
}
