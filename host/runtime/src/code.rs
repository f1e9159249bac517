//! Machine code as bytes: made by the compiler, kept by the cache, loaded here and nowhere else.

use wasmtime::component::Component;
use wasmtime::{Engine, Module, Precompiled};

/// Machine code that wasmtime's compiler wrote, to the last byte. The two constructors are the two ways to know that.
pub(crate) struct Code(Vec<u8>);

/// Machine code, loaded.
pub(crate) enum Machine {
    /// Of a component.
    Component(Component),
    /// Of a core module.
    Module(Module),
}

impl Code {
    /// What the compiler gave, in this process or in one that this process started from the same program and whose
    /// standard output nobody else can write to.
    pub(crate) fn compiled(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// What the cache has checked to be what this host gave it.
    pub(crate) fn authentic(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The one place where bytes become machine code.
    ///
    /// # Errors
    /// When they are of another version, another processor, or other settings.
    #[allow(unsafe_code, reason = "see SAFETY")]
    pub(crate) fn load(self, engine: &Engine) -> wasmtime::Result<Machine> {
        let form = Engine::detect_precompiled(&self.0);
        // SAFETY: wasmtime asks that the bytes come from its own compiler, unchanged. They do: a `Code` is made of what
        // the compiler gave, or of what the cache has checked, in memory that nobody else writes to.
        // - `Code::compiled` is given what `compile::machine_code` returned, in this process or in a child. The child is
        //   the same program (`/proc/self/exe`) under the same user, started with an empty environment, and answers over
        //   a pipe that only the two have. It reads nothing but the plugin. What a plugin could do to the compiler there
        //   it could as well do to the compiler here: the trust in Cranelift is the same, and its failures cost less.
        // - `Code::authentic` is given bytes whose HMAC has just been checked, in memory, with a key that only this
        //   host's user can read; the maker of such HMACs is given what `Code::compiled` was given.
        // That they fit this engine and this processor wasmtime checks by itself.
        unsafe {
            match form {
                Some(Precompiled::Component) => {
                    Component::deserialize(engine, &self.0).map(Machine::Component)
                }
                Some(Precompiled::Module) => Module::deserialize(engine, &self.0).map(Machine::Module),
                None => Err(wasmtime::Error::msg("it is no machine code")),
            }
        }
    }
}
