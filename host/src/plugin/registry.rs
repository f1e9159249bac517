//! Which version of a plugin is live. A pass takes one and keeps it to its end, whatever is reloaded meanwhile.

use std::sync::Arc;

use super::Plugin;

/// What a controller calls.
#[derive(Clone)]
pub enum Live {
    /// The plugin is not loaded yet.
    Loading,
    /// This version answers.
    Plugin(Plugin),
    /// There is no version that could answer; the text says why and what to do.
    Failed(Arc<str>),
}
