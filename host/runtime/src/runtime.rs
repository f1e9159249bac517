//! The public interface: loads and calls plugins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::call::{Call, Setting};
use crate::code_cache::{Cache, Described, Stored};
use crate::contract::{
    CleanupResponse, Conversion, Converted, Description, FieldError, Json, Request, Response,
};
use crate::deterministic::Origin;
use crate::digest::Digest;
use crate::engine::{Engine, EngineError, Seat};
use crate::error::{self, CallError, LoadError};
use crate::form::Form;
use crate::lane::Owned;
use crate::limits::{EngineOptions, Limits};
use crate::loader::{CodeOrigin, LoadedCode, LoadedPlugin, Loader, Prepared};
use crate::log::{LogSource, Rate};
use crate::memory_budget::Share;
use crate::resident::Resident;
use crate::subprocess::Compiler;

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
        let loader = Loader::new(&engine, compiler, cache).map_err(EngineError::Engine)?;
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
        let LoadedPlugin {
            code,
            digest,
            made,
            took,
        } = self.0.loader.load(bytes, &limits).await?;
        let seat = self.0.engine.seat();
        let (code, described) = match code {
            LoadedCode::Stored(stored, described) => {
                error::check(&described.description)?;
                (self.parked(stored, None), *described)
            }
            LoadedCode::Prepared(prepared) => self.describe(prepared, digest, &seat, limits).await?,
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
        Ok(Plugin(Arc::new(Loaded {
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
            compile_time: took,
        })))
    }

    /// Asks a plugin what it is.
    async fn describe(
        &self,
        prepared: Prepared,
        digest: Digest,
        seat: &Seat,
        limits: Limits,
    ) -> Result<(Resident, Described), LoadError> {
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
        let describe = match &prepared {
            Prepared::Component(form) => form.describe(setting),
            Prepared::Command(form) => form.describe(setting),
        };
        let described = seat.slow.run(deadline, describe).await;
        drop((turn, share));
        let description = described.outcome.map_err(|error| LoadError::describe(&error))?;
        error::check(&description)?;
        let described = Described {
            form: prepared.form(),
            refused: match &prepared {
                Prepared::Component(form) => form.refused.clone(),
                Prepared::Command(_) => Vec::new(),
            },
            description,
        };
        let stored = self.0.loader.store_description(digest, described.clone()).await?;
        let code = match stored {
            Some(stored) => self.parked(stored, Some(prepared)),
            None => Resident::Always(Arc::new(prepared)),
        };
        Ok((code, described))
    }

    fn parked(&self, stored: Arc<Stored>, prepared: Option<Prepared>) -> Resident {
        let Shared { loader, idle, .. } = &*self.0;
        Resident::parked(loader, stored, prepared, *idle)
    }
}

/// One version of a plugin, compiled and described. Cheap to clone; clones share it, and a clone keeps this
/// version alive while another version replaces it.
#[derive(Clone)]
pub struct Plugin(Arc<Loaded>);

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
        &self.0.log_source.digest
    }

    /// Returns the plugin's description.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Returns the binary form.
    #[must_use]
    pub fn form(&self) -> Form {
        self.0.form
    }

    /// Returns the interfaces that it imports and that end a call which uses them, such as `wasi:sockets/tcp@0.2.9`.
    #[must_use]
    pub fn refused_imports(&self) -> &[String] {
        &self.0.refused
    }

    /// Returns the caps on its calls.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Returns the size of the file in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Returns where its machine code came from.
    #[must_use]
    pub fn code_origin(&self) -> CodeOrigin {
        self.0.made
    }

    /// Returns a function that reports whether this version and its machine code have been dropped. For
    /// tests.
    #[doc(hidden)]
    pub fn ended(&self) -> impl Fn() -> bool + use<> {
        let version = Arc::downgrade(&self.0);
        move || version.strong_count() == 0
    }

    /// Reports whether its machine code is in memory. For tests.
    #[doc(hidden)]
    pub async fn is_in_memory(&self) -> bool {
        self.0.code.is_loaded().await
    }

    /// Returns how long it took to obtain machine code for the file.
    #[must_use]
    pub fn compile_time(&self) -> Duration {
        self.0.compile_time
    }

    /// Calls `reconcile` in a fresh sandbox. The guest's output is written to the log, in the current span.
    ///
    /// Dropping the future ends the guest.
    pub async fn reconcile(&self, request: &Request) -> Call<Response> {
        self.call_reconcile(request, self.options_for(request)).await
    }

    /// Calls `cleanup` in a fresh sandbox; otherwise like [`Plugin::reconcile`].
    pub async fn cleanup(&self, request: &Request) -> Call<CleanupResponse> {
        self.call_cleanup(request, self.options_for(request)).await
    }

    /// Calls `reconcile` for a proof.
    pub async fn try_reconcile(&self, request: &Request, random: RandomSource) -> Call<Response> {
        self.call_reconcile(request, self.for_proof(request, random))
            .await
    }

    /// Calls `cleanup` for a proof.
    pub async fn try_cleanup(&self, request: &Request, random: RandomSource) -> Call<CleanupResponse> {
        self.call_cleanup(request, self.for_proof(request, random)).await
    }

    /// Calls `convert` in a fresh sandbox: all objects in one call.
    ///
    /// The result has as many entries as there are objects; otherwise it is an error.
    pub async fn convert(&self, conversion: &Arc<Conversion>) -> Call<Vec<Converted>> {
        self.call_convert(conversion, self.pure()).await
    }

    /// Calls `convert` for a proof.
    pub async fn try_convert(&self, conversion: &Arc<Conversion>) -> Call<Vec<Converted>> {
        let options = self.pure().for_proof();
        self.call_convert(conversion, options).await
    }

    async fn call_convert(&self, conversion: &Arc<Conversion>, options: CallOptions) -> Call<Vec<Converted>> {
        let count = conversion.objects.len();
        let begin = |code: &Prepared, setting| match code {
            Prepared::Component(form) => form.convert(Arc::clone(conversion), setting),
            Prepared::Command(form) => form.convert(Arc::clone(conversion), setting),
        };
        self.call(options, begin).await.and_then(|converted| {
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
        self.call_validate(parent, old_parent, self.pure()).await
    }

    /// Calls `validate` for a proof.
    pub async fn try_validate(&self, parent: &Json) -> Call<Vec<FieldError>> {
        let options = self.pure().for_proof();
        self.call_validate(parent, None, options).await
    }

    async fn call_validate(
        &self,
        parent: &Json,
        old_parent: Option<&Json>,
        options: CallOptions,
    ) -> Call<Vec<FieldError>> {
        let begin = |code: &Prepared, setting| match code {
            Prepared::Component(form) => {
                form.validate(Arc::clone(parent), old_parent.map(Arc::clone), setting)
            }
            Prepared::Command(form) => form.validate(Arc::clone(parent), old_parent.map(Arc::clone), setting),
        };
        self.call(options, begin).await
    }

    /// Calls `default` in a fresh sandbox. The response is the spec.
    pub async fn default(&self, parent: &Json) -> Call<Map<String, Value>> {
        self.call_default(parent, self.pure()).await
    }

    /// Calls `default` for a proof.
    pub async fn try_default(&self, parent: &Json) -> Call<Map<String, Value>> {
        let options = self.pure().for_proof();
        self.call_default(parent, options).await
    }

    async fn call_default(&self, parent: &Json, options: CallOptions) -> Call<Map<String, Value>> {
        let begin = |code: &Prepared, setting| match code {
            Prepared::Component(form) => form.default(Arc::clone(parent), setting),
            Prepared::Command(form) => form.default(Arc::clone(parent), setting),
        };
        self.call(options, begin).await
    }

    /// The options of a call whose answer depends on nothing but the objects.
    fn pure(&self) -> CallOptions {
        CallOptions {
            origin: Origin::fixed(),
            limits: self.0.limits,
            patience: self.0.limits.deadline,
        }
    }

    fn options_for(&self, request: &Request) -> CallOptions {
        CallOptions {
            origin: Origin::of(request),
            limits: self.0.limits,
            patience: self.0.limits.deadline,
        }
    }

    fn for_proof(&self, request: &Request, random: RandomSource) -> CallOptions {
        CallOptions {
            origin: random.origin(request),
            ..self.options_for(request).for_proof()
        }
    }

    async fn call_reconcile(&self, request: &Request, options: CallOptions) -> Call<Response> {
        let begin = |code: &Prepared, setting| match code {
            Prepared::Component(form) => form.reconcile(request.clone(), setting),
            Prepared::Command(form) => form.reconcile(request.clone(), setting),
        };
        self.call(options, begin).await
    }

    async fn call_cleanup(&self, request: &Request, options: CallOptions) -> Call<CleanupResponse> {
        let begin = |code: &Prepared, setting| match code {
            Prepared::Component(form) => form.cleanup(request.clone(), setting),
            Prepared::Command(form) => form.cleanup(request.clone(), setting),
        };
        self.call(options, begin).await
    }

    /// Calls with the memory that this plugin usually needs. If that was not enough, calls once more with all
    /// the memory it may have.
    async fn call<T: Send + 'static>(
        &self,
        options: CallOptions,
        begin: impl Fn(&Prepared, Setting) -> Owned<Call<T>>,
    ) -> Call<T> {
        let start = Instant::now();
        let code = match self.0.code.prepared().await {
            Ok(code) => code,
            Err(error) => return Call::failed(CallError::host(error)),
        };
        // Not a part of the time that the call may wait: a plugin with a short deadline gets its code, too.
        let loading = start.elapsed();
        let memory = &self.0.seat.memory;
        let begin = |setting| begin(&code, setting);
        let mut call = self.once(memory.usual(), &options, Duration::ZERO, &begin).await;
        if call.share.as_ref().is_some_and(Share::is_outgrown) {
            let waited = call.stats.waited;
            // Released first, so that the call holds no memory while it waits.
            drop(call);
            call = self
                .once(memory.most(&options.limits), &options, waited, &begin)
                .await;
        }
        call.stats.waited += loading;
        call
    }

    async fn once<T: Send + 'static>(
        &self,
        share: impl Future<Output = Share>,
        options: &CallOptions,
        mut waited: Duration,
        begin: impl Fn(Setting) -> Owned<Call<T>>,
    ) -> Call<T> {
        let Loaded { seat, log_source, .. } = &*self.0;
        let start = Instant::now();
        let ready = async {
            // In this order, so that a call that waits for memory does not occupy a turn.
            let share = share.await;
            (share, self.0.runtime.0.engine.turn(seat).await)
        };
        let ready = tokio::time::timeout(options.patience.saturating_sub(waited), ready).await;
        waited += start.elapsed();
        let Ok((mut share, _turn)) = ready else {
            let mut call = Call::failed(CallError::busy(waited));
            call.stats.waited = waited;
            return call;
        };
        let deadline = Instant::now() + options.limits.deadline;
        let setting = Setting {
            origin: options.origin,
            log_source: Arc::clone(log_source),
            limits: options.limits,
            deadline,
            room: share.room(),
        };
        let mut call = seat.slow.run(deadline, begin(setting)).await;
        seat.memory.note(&share);
        share.keep_for_answer();
        call.stats.waited = waited;
        call.share = Some(share);
        call
    }
}

/// The parameters of a call.
struct CallOptions {
    origin: Origin,
    limits: Limits,
    /// How long the call waits for its turn and its memory.
    patience: Duration,
}

impl CallOptions {
    /// Log lines written during a proof would look like real actions, and a busy host is not a property of
    /// the version.
    fn for_proof(self) -> Self {
        Self {
            limits: Limits {
                log_lines: 0,
                ..self.limits
            },
            patience: Duration::MAX,
            ..self
        }
    }
}

/// The random numbers for a call in a proof. A plugin must give the same answer for any of them, because they
/// change from one reconcile to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomSource {
    /// The numbers of a real call.
    First,
    /// Other numbers.
    Second,
}

impl RandomSource {
    fn origin(self, request: &Request) -> Origin {
        let origin = Origin::of(request);
        match self {
            Self::First => origin,
            Self::Second => origin.drawn_again(),
        }
    }
}
