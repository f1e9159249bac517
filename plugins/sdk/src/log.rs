//! Lines in the host's log, with the parent's reference and the plugin's digest beside them.

#[cfg(all(target_family = "wasm", not(feature = "command")))]
use crate::bindings::operator_host::plugin::logging;

macro_rules! levels {
    ($($(#[$doc:meta])* $name:ident $level:ident)*) => {$(
        $(#[$doc])*
        pub fn $name(message: &str) {
            #[cfg(all(target_family = "wasm", not(feature = "command")))]
            logging::log(logging::Level::$level, message);
            // A command's log is its standard error; so is that of a native test.
            #[cfg(not(all(target_family = "wasm", not(feature = "command"))))]
            eprintln!("{}: {message}", stringify!($name));
        }
    )*};
}

levels! {
    /// Logs one line for those who debug this plugin.
    debug Debug
    /// Logs one line about what went as it should.
    info Info
    /// Logs one line about what may need attention.
    warn Warn
    /// Logs one line about what failed.
    error Error
}
