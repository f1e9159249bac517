//! What is said of one controller's plugin at `/plugins` and by `operator-host plugins`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Digest, Plugin};

/// One controller's plugin: what is live, what is not, and what could be again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginReport {
    /// The controller's name.
    pub controller: String,
    /// The plugin's file.
    pub file: String,
    /// The version that answers; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveVersion>,
    /// The version in the file, when that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<CandidateVersion>,
    /// What may be live and nothing else, as it was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// Versions that were live and can be again, the last first; the live one among them.
    #[serde(default)]
    pub kept: Vec<KeptVersion>,
}

/// The version that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveVersion {
    /// The digest of its file.
    pub digest: String,
    /// The plugin's own name.
    pub name: String,
    /// The plugin's own version.
    pub version: String,
    /// When it took over.
    pub since: Timestamp,
    /// How it came to be live, for people.
    pub because: String,
    /// The first differences to the answers of the version before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
}

/// A version that is not live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateVersion {
    /// The digest of its file; absent when the file cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The plugin's own version, when it could be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What is the matter with it.
    pub state: CandidateState,
    /// Of one that is held back, in CamelCase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    pub message: String,
    /// The first differences to the live version's answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
    /// Since when it is so.
    pub since: Timestamp,
}

impl CandidateVersion {
    /// A version that could be loaded, from now on.
    pub(super) fn of(plugin: &Plugin, state: CandidateState, message: &str) -> Self {
        Self {
            digest: Some(plugin.digest().to_string()),
            version: Some(plugin.description().version.clone()),
            state,
            reason: None,
            message: message.to_owned(),
            diff: String::new(),
            since: Timestamp::now(),
        }
    }

    /// A file that could not, from now on.
    pub(super) fn refused(digest: Option<&Digest>, message: &str) -> Self {
        Self {
            digest: digest.map(ToString::to_string),
            version: None,
            state: CandidateState::Refused,
            reason: None,
            message: message.to_owned(),
            diff: String::new(),
            since: Timestamp::now(),
        }
    }
}

/// What is the matter with a version that is not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CandidateState {
    /// It is being compared with the live one.
    Proving,
    /// It would do worse than the live one.
    HeldBack,
    /// Another version is pinned.
    PutAside,
    /// It is no plugin of this controller.
    Refused,
}

impl CandidateState {
    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proving => "proving",
            Self::HeldBack => "held back",
            Self::PutAside => "put aside",
            Self::Refused => "refused",
        }
    }
}

/// A version on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeptVersion {
    /// The digest of its file.
    pub digest: String,
    /// The plugin's own version.
    pub version: String,
    /// When it last became live.
    pub since: Timestamp,
}

impl KeptVersion {
    /// For a version that becomes live now.
    #[must_use]
    pub fn of(plugin: &Plugin) -> Self {
        Self {
            digest: plugin.digest().to_string(),
            version: plugin.description().version.clone(),
            since: Timestamp::now(),
        }
    }
}
