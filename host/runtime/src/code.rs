//! Machine code as bytes: produced by the compiler, stored by the cache, and loaded only here.

use wasmtime::component::Component;
use wasmtime::{Engine, Module, Precompiled};

/// Machine code exactly as wasmtime's compiler wrote it. Each of the two constructors guarantees that.
pub(crate) struct Code(Vec<u8>);

/// Loaded machine code.
pub(crate) enum Machine {
    /// Of a component.
    Component(Component),
    /// Of a core module.
    Module(Module),
}

impl Code {
    /// Wraps the output of the compiler, which ran in this process or in one that this process started from
    /// the same program, and whose standard output no other process can write to.
    pub(crate) fn compiled(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Wraps bytes that the cache has verified to be written by this host.
    pub(crate) fn authentic(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Loads the bytes as machine code. No other function does this.
    ///
    /// # Errors
    /// Returns an error when they are for another version, another processor or other settings.
    #[allow(unsafe_code, reason = "see SAFETY")]
    pub(crate) fn load(&self, engine: &Engine) -> wasmtime::Result<Machine> {
        let form = Engine::detect_precompiled(&self.0);
        // SAFETY: wasmtime requires that the bytes come from its own compiler, unchanged. They do: a `Code`
        // consists of the compiler's output, or of bytes that the cache has verified, in memory that nothing
        // else writes to.
        // - `Code::compiled` receives the return value of `compile::machine_code`, in this process or in a
        //   child. The child is the same program (`/proc/self/exe`) under the same user, is started with an
        //   empty environment, and answers over a pipe that only the two processes have. It reads nothing but
        //   the plugin. Anything a plugin could do to the compiler there it could also do to a compiler in
        //   this process: the trust in Cranelift is the same, and its failures cost less.
        // - `Code::authentic` receives bytes whose HMAC has just been verified, in memory, with a key that
        //   only this host's user can read. The code that computes such HMACs received the output of
        //   `Code::compiled`.
        // wasmtime itself checks that the bytes fit this engine and this processor.
        unsafe {
            match form {
                Some(Precompiled::Component) => {
                    Component::deserialize(engine, &self.0).map(Machine::Component)
                }
                Some(Precompiled::Module) => Module::deserialize(engine, &self.0).map(Machine::Module),
                None => Err(wasmtime::Error::msg("it is not machine code")),
            }
        }
    }
}
