//! The report about one controller's plugin at `/plugins` and in `operator-host plugins`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use operator_host_core::digest::Digest;
use operator_host_runtime::Plugin;

/// One controller's plugin: the live version, the candidate, and the versions that can be live again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginReport {
    /// The controller's name.
    pub controller: String,
    /// The plugin's file, or its reference in a registry.
    pub file: String,
    /// The registry that it comes from; absent for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryReport>,
    /// The live version; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveVersion>,
    /// The version in the file, if it is not the live one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<CandidateVersion>,
    /// The only version that may be live, as specified in the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// Why that version is not live, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin_problem: Option<String>,
    /// Versions that were live and can be live again, the last first; includes the live one.
    #[serde(default)]
    pub kept: Vec<KeptVersion>,
}

/// Stands for differences where others than the host's own user may read.
pub const HIDDEN: &str = "(hidden: only the host's own user can see it; run `operator-host plugins` in the host's \
                                 pod, which requires --cache-dir)";

/// Hides a difference, if there is one.
pub fn hide(diff: &mut String) {
    if !diff.is_empty() {
        HIDDEN.clone_into(diff);
    }
}

impl PluginReport {
    /// Returns the problems while a version is live: of the plugin's file, of the registry that it comes from, and of a pin.
    pub fn trouble(&self) -> Option<String> {
        let file = self.candidate.as_ref().and_then(|it| match it.state {
            CandidateState::Refused => Some(it.message.clone()),
            CandidateState::HeldBack => Some(format!("the plugin's file is held back: {}", it.message)),
            CandidateState::Proving | CandidateState::PutAside => None,
        });
        let registry = self.registry.as_ref().and_then(|it| it.problem.as_ref());
        let registry =
            registry.map(|problem| format!("the plugin {} cannot be pulled: {problem}", self.file));
        let all = [file, registry, self.pin_problem.clone()].into_iter().flatten();
        Some(all.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
    }

    /// Hides the differences, which contain parts of children.
    pub fn hide_differences(&mut self) {
        let live = self.live.as_mut().map(|live| &mut live.diff);
        let candidate = self.candidate.as_mut().map(|candidate| &mut candidate.diff);
        live.into_iter().chain(candidate).for_each(hide);
    }
}

/// What is known about the registry that a plugin comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistryReport {
    /// The digest of the manifest that was pulled; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// When the registry last answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Timestamp>,
    /// Why it does not give the plugin at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem_since: Option<Timestamp>,
}

/// The live version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveVersion {
    /// The digest of its file.
    pub digest: String,
    /// The plugin's own name.
    pub name: String,
    /// The plugin's own version.
    pub version: String,
    /// When it became live.
    pub since: Timestamp,
    /// Why it became live, for users.
    pub because: String,
    /// The first differences to the answers of the previous version.
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
    /// The plugin's own version, if the file could be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The state of the version.
    pub state: CandidateState,
    /// The reason for holding it back, in CamelCase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A message for users.
    pub message: String,
    /// The same without what is said about single objects; absent where it says nothing about them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// The first differences to the live version's answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
    /// Since when it has this state.
    pub since: Timestamp,
}

impl CandidateVersion {
    /// Returns the message without what is said about single objects. A Controller has no namespace, so those who may read it may not
    /// be allowed to see them, and what a plugin says about one may contain anything that is in it.
    pub fn without_objects(&self) -> &str {
        match self.summary.as_str() {
            "" => &self.message,
            summary => summary,
        }
    }

    /// Creates the report of a version that could be loaded, starting now.
    pub(super) fn of(plugin: &Plugin, state: CandidateState, message: &str) -> Self {
        Self {
            version: Some(plugin.description().version.clone()),
            state,
            ..Self::refused(Some(plugin.digest()), message)
        }
    }

    /// Creates the report of a file that could not be loaded, starting now.
    pub(super) fn refused(digest: Option<&Digest>, message: &str) -> Self {
        Self {
            digest: digest.map(ToString::to_string),
            version: None,
            state: CandidateState::Refused,
            reason: None,
            message: message.to_owned(),
            summary: String::new(),
            diff: String::new(),
            since: Timestamp::now(),
        }
    }
}

/// The state of a version that is not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CandidateState {
    /// It is being compared with the live one.
    Proving,
    /// Its proof failed or could not be completed.
    HeldBack,
    /// Another version is pinned.
    PutAside,
    /// Its file cannot be loaded or is not accepted.
    Refused,
}

impl CandidateState {
    /// Returns the state in words.
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
    /// Creates the entry for a version that becomes live now.
    pub fn of(plugin: &Plugin) -> Self {
        Self {
            digest: plugin.digest().to_string(),
            version: plugin.description().version.clone(),
            since: Timestamp::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_problem_does_not_hide_the_other() {
        let mut report = PluginReport {
            candidate: Some(CandidateVersion::refused(None, "it is no plugin")),
            pin_problem: Some("nothing is pinned".into()),
            ..PluginReport::default()
        };
        assert_eq!(report.trouble().unwrap(), "it is no plugin; nothing is pinned");
        report.pin_problem = None;
        assert_eq!(report.trouble().unwrap(), "it is no plugin");
        report.candidate = None;
        assert_eq!(report.trouble(), None);
    }
}
