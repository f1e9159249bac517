//! Candidates that are loaded and not live: retries them, holds them back, puts them aside, and releases
//! them.

use std::time::Duration;

use jiff::Timestamp;
use tracing::{debug, info, warn};

use super::Slot;
use crate::candidate_check::HeldBack;
use crate::report::{CandidateState, CandidateVersion};
use operator_host_core::sync::lock;
use operator_host_runtime::Plugin;

/// A candidate that is loaded and not live.
pub(super) struct Waiting {
    pub(super) plugin: Plugin,
    /// How often it was held back.
    pub(super) tries: u32,
    /// What was reported last, so that it is reported once.
    pub(super) reported: Option<HeldBack>,
}

/// The first wait before a candidate that was held back is tried again, because the objects may have changed.
/// It doubles each time.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// The longest such wait.
const MAX_RETRY: Duration = Duration::from_secs(300);

impl Slot {
    /// Holds a candidate back; returns when to try again.
    pub(super) fn hold_back(&self, plugin: &Plugin, held: HeldBack) -> Duration {
        let (controller, file) = (&self.expected.controller, &self.expected.location);
        let mut waiting = lock(&self.waiting);
        let waiting = waiting.as_mut();
        let Some(waiting) = waiting.filter(|waiting| waiting.plugin.digest() == plugin.digest()) else {
            return FIRST_RETRY;
        };
        let delay = MAX_RETRY.min(FIRST_RETRY * 2_u32.saturating_pow(waiting.tries));
        waiting.tries = waiting.tries.saturating_add(1);
        if waiting.tries == 1 {
            self.metrics.reloaded("held_back");
            self.metrics.plugin_held_back(Some(plugin));
        }
        let is_new = waiting.reported.as_ref() != Some(&held);
        let since = match &self.report.borrow().candidate {
            Some(before) if before.state == CandidateState::HeldBack => before.since,
            _ => Timestamp::now(),
        };
        let candidate = CandidateVersion {
            reason: Some(held.reason.to_owned()),
            summary: held.summary.clone(),
            diff: held.diff.clone(),
            since,
            ..CandidateVersion::of(plugin, CandidateState::HeldBack, &held.message)
        };
        self.report
            .send_modify(|report| report.candidate = Some(candidate));
        if is_new {
            let digest = plugin.digest();
            warn!(controller, %file, %digest, live = self.digest().map(tracing::field::display),
                reason = held.reason, "plugin held back: {}", held.message);
            debug!(controller, %digest, diff = held.diff, "differences from the live version");
            self.proof.announce(Some(&held));
            waiting.reported = Some(held);
        }
        delay
    }

    pub(super) fn report_proving(&self, plugin: &Plugin) {
        let message = "it is compared with the live version";
        let proving = CandidateVersion::of(plugin, CandidateState::Proving, message);
        // The report keeps a candidate that is being tried again in the state "held back".
        self.report.send_if_modified(|report| {
            let known = report.candidate.as_ref().is_some_and(|before| {
                before.digest == proving.digest && before.state == CandidateState::HeldBack
            });
            if !known {
                report.candidate = Some(proving);
            }
            !known
        });
    }

    /// Says more about the candidate that is being proved.
    pub(super) fn report_progress(&self, text: &str) {
        self.report.send_if_modified(|report| {
            let Some(candidate) = report.candidate.as_mut().filter(|it| it.message != text) else {
                return false;
            };
            text.clone_into(&mut candidate.message);
            candidate.state == CandidateState::Proving
        });
    }

    pub(super) fn put_aside(&self, plugin: &Plugin, message: &str) {
        let was_held_back = lock(&self.waiting).as_mut().is_some_and(|waiting| {
            waiting.reported = None;
            std::mem::take(&mut waiting.tries) > 0
        });
        if was_held_back {
            self.report_released();
        }
        self.proof.withdraw();
        let candidate = CandidateVersion::of(plugin, CandidateState::PutAside, message);
        self.report
            .send_modify(|report| report.candidate = Some(candidate));
    }

    /// Handles a file that contains the live version.
    pub(super) fn file_is_live(&self) {
        self.forget_waiting();
        let had = self
            .report
            .send_if_modified(|report| report.candidate.take().is_some());
        if had {
            info!(controller = self.expected.controller, file = %self.expected.location,
                digest = self.digest().map(tracing::field::display),
                "the plugin's file contains the live version again");
        }
    }

    /// Forgets the waiting candidate.
    pub(super) fn forget_waiting(&self) {
        let waited = lock(&self.waiting).take();
        self.proof.withdraw();
        if waited.is_some_and(|waited| waited.tries > 0) {
            self.report_released();
        }
    }

    /// Reports that no candidate is held back any more.
    pub(super) fn report_released(&self) {
        self.metrics.plugin_held_back(None);
        self.proof.announce(None);
    }
}
