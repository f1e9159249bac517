//! Compares the answers of two plugin versions and decides whether the new one may take over. Pure.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use similar::TextDiff;

use super::answer::{ComparedAnswer, MAX_SHOWN};
use super::shadow::{Effect, in_words};
use operator_host_core::object::{Identity, NamespacedName, first_few};
use operator_host_core::text::shorten;
use operator_host_delivery::candidate_check::{Blamed, HeldBack, ProofResult};

/// Maximum number of objects named when a version is held back.
pub(super) const MAX_BLAMED: usize = 10;
/// Maximum number of differences shown.
const MAX_DIFFS: usize = 3;
/// Maximum number of lines of each difference.
const MAX_LINES: usize = 40;
/// Maximum size of each difference in bytes, since a line may be long.
const MAX_BYTES: usize = 3000;
/// Time limit of the search for the smallest difference of two answers. Without one, it takes minutes for answers that have
/// nothing in common.
const DIFF_TIME: Duration = Duration::from_millis(200);
/// Maximum number of children named for each object.
const MAX_NAMED: usize = 5;

/// The result for one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Finding {
    /// Both versions give the same answer, or both fail.
    Unchanged,
    /// The answers differ; the effects list the children that each would delete.
    Changed {
        live: Option<Effect>,
        candidate: Box<Effect>,
    },
    /// The candidate fails, and the live version does not.
    Fails(String),
    /// The candidate gives two different answers to the same request.
    NotDeterministic(String),
}

/// Classifies the results for one object. Each version was asked the same question; the candidate twice. `live` is `None`
/// without a live version.
pub(super) fn find(
    live: Option<Result<Effect, String>>,
    first: Result<Effect, String>,
    second: Option<Result<Effect, String>>,
) -> Finding {
    let candidate = match (first, second) {
        (Ok(first), Some(Ok(second))) if first != second => {
            let names = ["one call", "another call"];
            return Finding::NotDeterministic(difference(names, Some(&first.answer), &second.answer));
        }
        (Ok(_), Some(Err(error))) => {
            return Finding::NotDeterministic(format!("the second call failed: {error}"));
        }
        (Ok(first), _) => first,
        (Err(error), _) if live.as_ref().is_none_or(Result::is_ok) => {
            return Finding::Fails(shorten(&error, MAX_BYTES));
        }
        (Err(_), _) => return Finding::Unchanged,
    };
    let was_refused = |refused: &String| match &live {
        None => false,
        Some(Ok(live)) => live.refused.contains(refused),
        Some(Err(_)) => true,
    };
    let refused = candidate.refused.iter().filter(|refused| !was_refused(refused));
    let refused = in_words(refused.cloned());
    if !refused.is_empty() {
        return Finding::Fails(shorten(&refused, MAX_BYTES));
    }
    match live.and_then(Result::ok) {
        Some(live) if live == candidate => Finding::Unchanged,
        live => Finding::Changed {
            live,
            candidate: Box::new(candidate),
        },
    }
}

/// The results for all objects.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Number of existing objects.
    objects: usize,
    /// Whether there is no live version to compare with.
    alone: bool,
    examined: usize,
    unchanged: usize,
    changed: usize,
    children: usize,
    deleted: usize,
    left: usize,
    failing: Vec<Blamed>,
    deleting: Vec<Blamed>,
    undetermined: Option<Blamed>,
    diffs: Vec<String>,
    /// Differences of objects that would lose children; shown before all others.
    losses: Vec<String>,
}

impl Findings {
    /// Creates an empty result for this number of objects. `alone` is true without a live version to compare with.
    pub(super) fn of(objects: usize, alone: bool) -> Self {
        Self {
            objects,
            alone,
            ..Self::default()
        }
    }

    /// Adds the result for one object. `children` is the number of its children that could be deleted.
    pub(super) fn add(&mut self, object: &NamespacedName, children: usize, finding: Finding) {
        self.examined += 1;
        self.children += children;
        let blame = |message: String, diff: String| Blamed {
            object: object.to_string(),
            message,
            diff,
        };
        match finding {
            Finding::Unchanged => self.unchanged += 1,
            Finding::Fails(error) => self.failing.push(blame(error, String::new())),
            Finding::NotDeterministic(difference) => {
                self.undetermined.get_or_insert_with(|| {
                    let message = "it gives different answers to the same request, so every reconcile would write; \
                                   make its answer independent of random numbers and of the order of a hash map";
                    blame(message.to_owned(), difference)
                });
            }
            Finding::Changed { live, candidate } => {
                self.changed += 1;
                let live = live.as_ref();
                let new = |of: fn(&Effect) -> &BTreeSet<Identity>| -> Vec<_> {
                    let is_new = |it: &&Identity| live.is_none_or(|live| !of(live).contains(it));
                    of(&candidate).iter().filter(is_new).cloned().collect()
                };
                let (deleted, left) = (new(|it| &it.deleted), new(|it| &it.left));
                self.deleted += deleted.len();
                self.left += left.len();
                let loses = !deleted.is_empty() || !left.is_empty();
                let is_blamed = loses && self.deleting.len() < MAX_BLAMED;
                let diffs = if loses { &mut self.losses } else { &mut self.diffs };
                // Without a live version, all of an answer would be a difference.
                let is_shown = diffs.len() < MAX_DIFFS && (loses || !self.alone);
                let mut diff = String::new();
                if is_shown || is_blamed {
                    let names = ["live", "candidate"].map(|which| format!("{object}, {which}"));
                    let live = live.map(|live| &live.answer);
                    diff = difference(names.each_ref().map(String::as_str), live, &candidate.answer);
                }
                if is_shown {
                    diffs.push(diff.clone());
                }
                if is_blamed {
                    let all = [("delete", deleted), ("stop managing", left)].into_iter();
                    let all = all.filter(|(_, children)| !children.is_empty());
                    let parts = all.map(|(what, children)| {
                        format!("it would {what} {}", first_few(children, MAX_NAMED, ", "))
                    });
                    let parts: Vec<_> = parts.collect();
                    self.deleting.push(blame(parts.join("; "), diff));
                }
            }
        }
    }

    /// Reports whether further objects cannot change the decision.
    pub(super) fn is_settled(&self) -> bool {
        self.undetermined.is_some() || self.failing.len() >= MAX_BLAMED
    }

    /// Summarizes the results in one line.
    fn summary(&self) -> String {
        let sample = match self.examined < self.objects {
            true => format!("{} of {} objects", self.examined, self.objects),
            false => count(self.examined, "object"),
        };
        let mut text = match self.alone {
            false => format!("{sample}: {} unchanged, {} changed", self.unchanged, self.changed),
            true => format!("{sample}, without the version that was live"),
        };
        if self.deleted > 0 {
            let children = count(self.children, "child");
            let _ = write!(text, ", {} of {children} deleted", self.deleted);
        }
        text
    }

    /// Decides whether the candidate may take over. `max_deletions` is a percentage of the children.
    pub(super) fn decide(mut self, max_deletions: u8) -> ProofResult {
        let held = |reason, message, diffs: Vec<String>, objects| {
            ProofResult::HeldBack(Box::new(HeldBack {
                diff: diffs.join("\n"),
                ..HeldBack::new(reason, message, objects)
            }))
        };
        if let Some(blamed) = self.undetermined {
            let message =
                "it gives different answers when it is called again with other random numbers".to_owned();
            let diff = blamed.diff.clone();
            return held("NotDeterministic", message, vec![diff], vec![blamed]);
        }
        if !self.failing.is_empty() {
            let more = if self.is_settled() { "at least " } else { "" };
            let other = match self.alone {
                true => "",
                false => " where the live version does not",
            };
            let message = format!("it fails on {more}{}{other}", count(self.failing.len(), "object"));
            return held("Fails", message, self.losses, self.failing);
        }
        let allowed = self.children * usize::from(max_deletions) / 100;
        if self.left > 0 || self.deleted > allowed {
            let mut parts = Vec::new();
            if self.left > 0 {
                let left = count(self.left, "child");
                parts.push(format!(
                    "it would stop managing {left} of a kind that is retained"
                ));
            }
            if self.deleted > allowed {
                let (deleted, all) = (self.deleted, count(self.children, "child"));
                parts.push(format!(
                    "it would delete {deleted} of {all}, more than {max_deletions} %"
                ));
            }
            return held("WouldDelete", parts.join(" and "), self.losses, self.deleting);
        }
        let on = self.summary();
        self.losses.append(&mut self.diffs);
        self.losses.truncate(MAX_DIFFS);
        ProofResult::Proved {
            on,
            diff: self.losses.join("\n"),
        }
    }
}

fn count(number: usize, noun: &str) -> String {
    match (number, noun) {
        (1, noun) => format!("1 {noun}"),
        (number, "child") => format!("{number} children"),
        (number, noun) => format!("{number} {noun}s"),
    }
}

/// Returns the diff of two answers, with these names.
fn difference(names: [&str; 2], before: Option<&ComparedAnswer>, after: &ComparedAnswer) -> String {
    let is_cut = after.is_cut || before.is_some_and(|before| before.is_cut);
    let before = before.map_or("", |before| &before.shown);
    let mut differ = TextDiff::configure();
    // Without searching for the smallest difference for long.
    let diff = differ.timeout(DIFF_TIME).diff_lines(before, &after.shown);
    let mut unified = diff.unified_diff();
    let text = unified.context_radius(2).header(names[0], names[1]).to_string();
    let mut text = bounded(&text);
    if is_cut {
        // Where one of the two is longer, the end of this part looks removed or added.
        let _ = write!(
            text,
            "\n… only the first {} KiB of the answers are compared line by line",
            MAX_SHOWN >> 10
        );
    } else if text.is_empty() {
        text.push_str("only in what would be deleted");
    }
    text
}

fn bounded(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut shown = lines[..lines.len().min(MAX_LINES)].join("\n");
    if lines.len() > MAX_LINES {
        let _ = write!(shown, "\n… {} more lines", lines.len() - MAX_LINES);
    }
    shorten(&shown, MAX_BYTES)
}

#[cfg(test)]
mod tests;
