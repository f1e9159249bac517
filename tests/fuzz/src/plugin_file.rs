//! A plugin's file before it is compiled: any content is refused with a message, or has one of the forms of a plugin. What
//! compiles it is a separate process, which may end.

use operator_host_runtime::fuzzing;

/// Maximum length of an error, which is shown in conditions and logs.
const LONGEST_MESSAGE: usize = 64 << 10;

pub(crate) fn run(bytes: &[u8]) {
    if let Err(error) = fuzzing::inspect(bytes) {
        let message = error.to_string();
        assert!(!message.is_empty());
        assert!(message.len() <= LONGEST_MESSAGE, "{} bytes", message.len());
    }
}
