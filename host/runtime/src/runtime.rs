//! The public face: load a plugin, call it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::cache::Cache;
use crate::call::{Call, Setting};
use crate::contract::{CleanupResponse, Description, Request, Response};
use crate::deterministic::Origin;
use crate::digest::Digest;
use crate::engine::{Engine, EngineError, Seat};
use crate::error::{self, CallError, LoadError};
use crate::lane::Owned;
use crate::limits::{EngineOptions, Limits};
use crate::log::{Rate, Speaker};
use crate::maker::{Made, Maker, Prepared, Product};
use crate::outside::Compiler;
use crate::share::Share;

/// The WebAssembly runtime of a process. Cheap to clone; clones share one engine.
#[derive(Clone)]
pub struct Runtime(Arc<Shared>);

struct Shared {
    engine: Engine,
    maker: Arc<Maker>,
}

impl Runtime {
    /// Starts the engine and the thread that interrupts guests. Plugins are compiled in this process, each time.
    ///
    /// # Errors
    /// When the machine cannot run it.
    pub fn new(options: EngineOptions) -> Result<Self, EngineError> {
        Self::with(options, Compiler::Inside, None)
    }

    /// As [`Runtime::new`]; plugins are compiled as `compiler` says, and their code is kept in `cache` and taken from there.
    ///
    /// # Errors
    /// As [`Runtime::new`].
    pub fn with(
        options: EngineOptions,
        compiler: Compiler,
        cache: Option<Cache>,
    ) -> Result<Self, EngineError> {
        let engine = Engine::new(options)?;
        let maker = Maker::new(engine.wasm(), compiler, cache).map_err(EngineError::Engine)?;
        Ok(Self(Arc::new(Shared {
            engine,
            maker: Arc::new(maker),
        })))
    }

    /// Compiles a plugin and asks it for its description. Dropping the future ends a compilation in a process of its own.
    ///
    /// # Errors
    /// When the file is not a plugin that this host can run; the message is for people.
    pub async fn load(&self, file: impl Into<Bytes>, limits: Limits) -> Result<Plugin, LoadError> {
        let file = file.into();
        let size = file.len();
        if size > limits.module {
            return Err(LoadError::TooLarge {
                size,
                limit: limits.module,
            });
        }
        let Product {
            prepared,
            digest,
            made,
            took,
        } = self.0.maker.make(file, &limits).await?;

        // A plugin has no name until it has said it.
        let nameless = Arc::new(Speaker {
            name: String::new(),
            digest,
            rate: Rate::default(),
        });
        let seat = self.0.engine.seat();
        let describing = limits.of_description();
        // A plugin is loaded once, so this waits for as long as it takes.
        let share = seat.memory.most(&describing).await;
        let turn = self.0.engine.turn(&seat).await;
        let setting = Setting {
            origin: Origin::fixed(),
            speaker: nameless,
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
        let description = described.outcome.map_err(LoadError::describe)?;
        error::check(&description)?;
        let prepared = match prepared {
            Prepared::Command(form) => Prepared::Command(form.made_for(description.contract)),
            component @ Prepared::Component(_) => component,
        };
        let speaker = Arc::new(Speaker {
            name: description.name.clone(),
            digest,
            rate: Rate::default(),
        });
        let runtime = self.clone();
        Ok(Plugin(Arc::new(Loaded {
            runtime,
            prepared,
            seat,
            speaker,
            description,
            limits,
            size,
            made,
            compile_time: took,
        })))
    }
}

/// Which of the two binary forms a plugin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// The WIT world, as a component or to be made one.
    Component,
    /// A WASI command with JSON on standard input and output.
    Command,
}

impl Form {
    /// The form in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Component => "component",
            Self::Command => "command",
        }
    }
}

/// One version of a plugin, compiled and described. Cheap to clone; clones share it, and a clone that is
/// held keeps this version alive while another takes its place.
#[derive(Clone)]
pub struct Plugin(Arc<Loaded>);

struct Loaded {
    runtime: Runtime,
    prepared: Prepared,
    seat: Seat,
    speaker: Arc<Speaker>,
    description: Description,
    limits: Limits,
    size: usize,
    made: Made,
    compile_time: Duration,
}

impl Plugin {
    /// The identity of this version.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.0.speaker.digest
    }

    /// What the plugin says about itself.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Which binary form it has.
    #[must_use]
    pub fn form(&self) -> Form {
        match self.0.prepared {
            Prepared::Component(_) => Form::Component,
            Prepared::Command(_) => Form::Command,
        }
    }

    /// The caps on its calls.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Where its machine code came from.
    #[must_use]
    pub fn made(&self) -> Made {
        self.0.made
    }

    /// Tells, later, whether nobody holds this version any more, and its machine code is gone. For tests.
    #[doc(hidden)]
    pub fn ended(&self) -> impl Fn() -> bool + use<> {
        let version = Arc::downgrade(&self.0);
        move || version.strong_count() == 0
    }

    /// How long it took to make machine code of the file.
    #[must_use]
    pub fn compile_time(&self) -> Duration {
        self.0.compile_time
    }

    /// Calls `reconcile` in a fresh sandbox. What the guest says goes to the log, in the current span.
    ///
    /// Dropping the future ends the guest.
    pub async fn reconcile(&self, request: &Request) -> Call<Response> {
        self.call_reconcile(request, self.in_earnest(request)).await
    }

    /// Calls `cleanup` in a fresh sandbox; otherwise as [`Plugin::reconcile`].
    pub async fn cleanup(&self, request: &Request) -> Call<CleanupResponse> {
        self.call_cleanup(request, self.in_earnest(request)).await
    }

    /// As [`Plugin::reconcile`], for a proof.
    pub async fn try_reconcile(&self, request: &Request, draw: Draw) -> Call<Response> {
        self.call_reconcile(request, self.in_proof(request, draw)).await
    }

    /// As [`Plugin::cleanup`], for a proof.
    pub async fn try_cleanup(&self, request: &Request, draw: Draw) -> Call<CleanupResponse> {
        self.call_cleanup(request, self.in_proof(request, draw)).await
    }

    fn in_earnest(&self, request: &Request) -> Manner {
        Manner {
            origin: Origin::of(request),
            limits: self.0.limits,
            patience: self.0.limits.deadline,
        }
    }

    /// What is said in a proof would look as if it had been done, and that the host is busy says nothing about the version.
    fn in_proof(&self, request: &Request, draw: Draw) -> Manner {
        Manner {
            origin: draw.origin(request),
            limits: Limits {
                log_lines: 0,
                ..self.0.limits
            },
            patience: Duration::MAX,
        }
    }

    async fn call_reconcile(&self, request: &Request, manner: Manner) -> Call<Response> {
        let begin = |setting| match &self.0.prepared {
            Prepared::Component(form) => form.reconcile(request.clone(), setting),
            Prepared::Command(form) => form.reconcile(request.clone(), setting),
        };
        self.call(manner, begin).await
    }

    async fn call_cleanup(&self, request: &Request, manner: Manner) -> Call<CleanupResponse> {
        let begin = |setting| match &self.0.prepared {
            Prepared::Component(form) => form.cleanup(request.clone(), setting),
            Prepared::Command(form) => form.cleanup(request.clone(), setting),
        };
        self.call(manner, begin).await
    }

    /// Makes a call with the memory that this plugin usually takes, and when that was not enough once more with all that
    /// it may take.
    async fn call<T: Send + 'static>(
        &self,
        manner: Manner,
        begin: impl Fn(Setting) -> Owned<Call<T>>,
    ) -> Call<T> {
        let memory = &self.0.seat.memory;
        let first = self.once(memory.usual(), &manner, Duration::ZERO, &begin).await;
        if !first.share.as_ref().is_some_and(Share::is_outgrown) {
            return first;
        }
        let waited = first.stats.waited;
        // What it has goes first: nothing is held while it waits.
        drop(first);
        self.once(memory.most(&manner.limits), &manner, waited, &begin)
            .await
    }

    async fn once<T: Send + 'static>(
        &self,
        share: impl Future<Output = Share>,
        manner: &Manner,
        mut waited: Duration,
        begin: impl Fn(Setting) -> Owned<Call<T>>,
    ) -> Call<T> {
        let Loaded { seat, speaker, .. } = &*self.0;
        let start = Instant::now();
        let ready = async {
            // In this order: who waits for memory takes nobody's turn.
            let share = share.await;
            (share, self.0.runtime.0.engine.turn(seat).await)
        };
        let ready = tokio::time::timeout(manner.patience.saturating_sub(waited), ready).await;
        waited += start.elapsed();
        let Ok((mut share, _turn)) = ready else {
            let mut call = Call::failed(CallError::Busy { waited });
            call.stats.waited = waited;
            return call;
        };
        let deadline = Instant::now() + manner.limits.deadline;
        let setting = Setting {
            origin: manner.origin,
            speaker: Arc::clone(speaker),
            limits: manner.limits,
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

/// How a call is made.
struct Manner {
    origin: Origin,
    limits: Limits,
    /// How long it waits for its turn and its memory.
    patience: Duration,
}

/// Which random numbers a call in a proof gets. A plugin must answer the same whichever they are: they change from one
/// pass to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Those of a real call.
    First,
    /// Others.
    Second,
}

impl Draw {
    fn origin(self, request: &Request) -> Origin {
        let origin = Origin::of(request);
        match self {
            Self::First => origin,
            Self::Second => origin.drawn_again(),
        }
    }
}
