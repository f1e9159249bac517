//! Log lines for the host's log, where they get the parent's reference and the plugin's digest.

#[cfg(all(target_family = "wasm", not(feature = "command")))]
use crate::bindings::operator_host::plugin::logging;

macro_rules! levels {
    ($($(#[$doc:meta])* $name:ident $level:ident)*) => {$(
        $(#[$doc])*
        pub fn $name(message: &str) {
            #[cfg(all(target_family = "wasm", not(feature = "command")))]
            logging::log(logging::Level::$level, message);
            // A command logs to standard error, and so does a native test.
            #[cfg(not(all(target_family = "wasm", not(feature = "command"))))]
            eprintln!("{}: {message}", stringify!($name));
        }
    )*};
}

levels! {
    /// Logs one line for debugging this plugin.
    debug Debug
    /// Logs one line about normal operation.
    info Info
    /// Logs one line about something that may need attention.
    warn Warn
    /// Logs one line about a failure.
    error Error
}
