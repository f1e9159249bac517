//! The public face: load a plugin, call it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::cache::Cache;
use crate::call::{Call, Setting};
use crate::contract::{CleanupResponse, Description, Request, Response};
use crate::deterministic::Origin;
use crate::digest::Digest;
use crate::engine::{Engine, EngineError, Seat, Turn};
use crate::limits::{EngineOptions, Limits};
use crate::load::{self, LoadError};
use crate::log::{Rate, Speaker};
use crate::maker::{Made, Maker, Prepared, Product};
use crate::outside::Compiler;

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
        let turn = self.0.engine.turn(&seat).await;
        let setting = Setting {
            origin: Origin::fixed(),
            speaker: nameless,
            limits: limits.of_description(),
            deadline: Instant::now() + limits.deadline,
        };
        let deadline = setting.deadline;
        let describe = match &prepared {
            Prepared::Component(form) => form.describe(setting),
            Prepared::Command(form) => form.describe(setting),
        };
        let described = seat.slow.run(deadline, describe).await;
        drop(turn);
        let description = described.outcome.map_err(LoadError::describe)?;
        load::check(&description)?;
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
        self.call_reconcile(request, Origin::of(request), &self.0.limits)
            .await
    }

    /// Calls `cleanup` in a fresh sandbox; otherwise as [`Plugin::reconcile`].
    pub async fn cleanup(&self, request: &Request) -> Call<CleanupResponse> {
        self.call_cleanup(request, Origin::of(request), &self.0.limits)
            .await
    }

    /// As [`Plugin::reconcile`], for a proof.
    pub async fn try_reconcile(&self, request: &Request, draw: Draw) -> Call<Response> {
        self.call_reconcile(request, draw.origin(request), &self.in_silence())
            .await
    }

    /// As [`Plugin::cleanup`], for a proof.
    pub async fn try_cleanup(&self, request: &Request, draw: Draw) -> Call<CleanupResponse> {
        self.call_cleanup(request, draw.origin(request), &self.in_silence())
            .await
    }

    /// What is said in a proof would look as if it had been done.
    fn in_silence(&self) -> Limits {
        Limits {
            log_lines: 0,
            ..self.0.limits
        }
    }

    async fn call_reconcile(&self, request: &Request, origin: Origin, limits: &Limits) -> Call<Response> {
        let _turn = self.turn().await;
        let (request, setting) = (request.clone(), self.setting(origin, limits));
        let deadline = setting.deadline;
        let call = match &self.0.prepared {
            Prepared::Component(form) => form.reconcile(request, setting),
            Prepared::Command(form) => form.reconcile(request, setting),
        };
        self.0.seat.slow.run(deadline, call).await
    }

    async fn call_cleanup(
        &self,
        request: &Request,
        origin: Origin,
        limits: &Limits,
    ) -> Call<CleanupResponse> {
        let _turn = self.turn().await;
        let (request, setting) = (request.clone(), self.setting(origin, limits));
        let deadline = setting.deadline;
        let call = match &self.0.prepared {
            Prepared::Component(form) => form.cleanup(request, setting),
            Prepared::Command(form) => form.cleanup(request, setting),
        };
        self.0.seat.slow.run(deadline, call).await
    }

    async fn turn(&self) -> Turn<'_> {
        self.0.runtime.0.engine.turn(&self.0.seat).await
    }

    /// For a call that begins now.
    fn setting(&self, origin: Origin, limits: &Limits) -> Setting {
        Setting {
            origin,
            speaker: Arc::clone(&self.0.speaker),
            limits: *limits,
            deadline: Instant::now() + limits.deadline,
        }
    }
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
