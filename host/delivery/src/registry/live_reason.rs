//! Why a version became live, for users.

use crate::candidate_check::Order;
use crate::history::Why;

/// Why a version became live.
pub(super) enum LiveReason {
    First,
    Proved { on: String, diff: String },
    NotCompared(String),
    Unproved,
    Reconfigured,
    Forced,
    RolledBack,
    Restored,
    Recorded,
}

impl std::fmt::Display for LiveReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::First => f.write_str("it was the first"),
            Self::Proved { on, .. } => write!(f, "proved: {on}"),
            Self::NotCompared(why) => write!(f, "not proved: {why}"),
            Self::Unproved => f.write_str("no proof is configured"),
            Self::Reconfigured => f.write_str("its limits were changed"),
            Self::Forced => f.write_str("promoted by force"),
            Self::RolledBack => f.write_str("rolled back to the pinned version"),
            Self::Recorded => f.write_str("it is the one that the cluster records as live"),
            Self::Restored => f.write_str("it was the last good one before the restart"),
        }
    }
}

impl LiveReason {
    /// Returns what the history says; `None` when the live version is the same as before.
    pub(super) const fn why(&self) -> Option<Why> {
        match self {
            Self::First => Some(Why::First),
            Self::Proved { .. } => Some(Why::Proved),
            Self::NotCompared(_) | Self::Unproved => Some(Why::NotCompared),
            Self::Forced => Some(Why::Forced),
            Self::RolledBack => Some(Why::RolledBack),
            Self::Reconfigured | Self::Restored | Self::Recorded => None,
        }
    }

    /// Returns the order that made the version live.
    pub(super) const fn order(&self) -> Option<Order> {
        match self {
            Self::Forced => Some(Order::Promote),
            Self::RolledBack => Some(Order::Pin),
            _ => None,
        }
    }

    /// Returns the changes to the previous version's answers, if they were compared; empty otherwise.
    pub(super) fn diff(&self) -> &str {
        match self {
            Self::Proved { diff, .. } => diff,
            _ => "",
        }
    }
}
