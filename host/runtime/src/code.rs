//! Machine code as bytes: produced by the compiler, stored by the cache, and loaded only here.

use std::io;

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

impl Machine {
    /// Makes the images of the memories that calls begin with, which the first call would make otherwise.
    ///
    /// # Errors
    /// Returns an error when the machine does not give them; the code is not the cause.
    pub(crate) fn make_images(&self) -> wasmtime::Result<()> {
        sealed(|| match self {
            Self::Component(component) => component.initialize_copy_on_write_image(),
            Self::Module(module) => module.initialize_copy_on_write_image(),
        })
    }
}

/// How often an image is made while the kernel does not seal it. It waits for some 150 ms itself each time.
const MAX_SEALINGS: usize = 20;

/// Makes an image again while the kernel refuses to seal it against writes: it does so (`EBUSY`) as long as it holds one of
/// its pages itself, which with busy processors can take longer than it waits.
fn sealed(mut make: impl FnMut() -> wasmtime::Result<()>) -> wasmtime::Result<()> {
    let is_busy = |error: &wasmtime::Error| {
        let mut causes = error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>());
        causes.any(|cause| cause.kind() == io::ErrorKind::ResourceBusy)
    };
    let mut made = make();
    for _ in 1..MAX_SEALINGS {
        match &made {
            Err(error) if is_busy(error) => made = make(),
            _ => break,
        }
    }
    made
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::with_causes;

    /// As the crate that makes the file reports it.
    #[derive(Debug, thiserror::Error)]
    #[error("cannot add seals to the memfd")]
    struct NotSealed(#[source] io::Error);

    /// Returns what making an image comes to when it fails with `error` for `failures` times, and how often it was made.
    fn made(failures: usize, error: rustix::io::Errno) -> (wasmtime::Result<()>, usize) {
        let mut times = 0;
        let made = sealed(|| {
            times += 1;
            if times > failures {
                return Ok(());
            }
            Err(NotSealed(error.into()).into())
        });
        (made, times)
    }

    #[test]
    fn an_image_that_the_kernel_does_not_seal_is_made_again_a_few_times() {
        let busy = rustix::io::Errno::BUSY;
        assert!(matches!(made(3, busy), (Ok(()), 4)));
        let (given_up, times) = made(usize::MAX, busy);
        assert_eq!(times, MAX_SEALINGS);
        assert!(with_causes(&given_up.unwrap_err()).contains("memfd: Device or resource busy"));
        assert!(matches!(made(3, rustix::io::Errno::MFILE), (Err(_), 1)));
    }
}
