//! How one child is changed, and what becomes of it when it is no longer wanted. The plugin says it in two annotations.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::Value;

use super::planned::Desired;
use operator_host_contract::Kind;
use operator_host_core::child_rules::Removal;
use operator_host_core::object::{ChildRef, ON_REMOVAL_ANNOTATION, ORPHAN, UPDATE_ANNOTATION};
use operator_host_core::text::shorten;

/// How a child is changed, by the annotation [`UPDATE_ANNOTATION`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Whether a change that the API server refuses because a field is immutable deletes the child and creates it again.
    pub replace: bool,
    /// Whether the child is created again only when its dependents are gone, too.
    pub foreground: bool,
    /// How the children of its kind take turns; `None` when this one does not.
    pub one: Option<Turn>,
}

/// How children that are changed one at a time take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Whether the last child of the answer is changed first.
    pub last_first: bool,
    /// How long a child must have been ready before the next one is changed.
    pub min_ready: Duration,
}

/// The words of [`UPDATE_ANNOTATION`].
const UPDATES: [&str; 5] = ["replace", "foreground", "one", "last-first", "min-ready=30"];
/// The words of [`ON_REMOVAL_ANNOTATION`].
const REMOVALS: [&str; 3] = [DELETE, RETAIN, ORPHAN];
const DELETE: &str = "delete";
/// The word for a child that a later parent of the name takes over.
pub(super) const RETAIN: &str = "retain";
/// Maximum of `min-ready`, in seconds: an hour.
const MAX_MIN_READY: u64 = 3600;

/// Reads how a child is changed. The error says what is wrong with the annotation, after its name.
pub(super) fn update(child: &Value) -> Result<Update, String> {
    let Some(text) = text(child, UPDATE_ANNOTATION)? else {
        return Ok(Update::default());
    };
    let (mut update, mut turn, mut seen) = (Update::default(), Turn::default(), HashSet::new());
    for word in text.split(',').map(str::trim) {
        match word {
            "replace" => update.replace = true,
            "foreground" => update.foreground = true,
            "one" => update.one = Some(turn),
            "last-first" => turn.last_first = true,
            _ => {
                let seconds = word
                    .strip_prefix("min-ready=")
                    .ok_or_else(|| unknown(word, &UPDATES))?;
                let seconds = seconds.parse().ok().filter(|seconds| *seconds <= MAX_MIN_READY);
                let wrong = || {
                    let word = shorten(word, SHOWN);
                    format!(
                        "says {word:?}; write a number of seconds up to {MAX_MIN_READY}, such as `min-ready=30`"
                    )
                };
                turn.min_ready = Duration::from_secs(seconds.ok_or_else(wrong)?);
            }
        }
        seen.insert(word.split('=').next().unwrap_or_default());
    }
    let needs = [
        ("foreground", "replace"),
        ("last-first", "one"),
        ("min-ready", "one"),
    ];
    for (word, needed) in needs {
        if seen.contains(word) && !seen.contains(needed) {
            return Err(format!(
                "says `{word}`, which is about `{needed}`: add `{needed}`, or leave `{word}` out"
            ));
        }
    }
    update.one = update.one.map(|_| turn);
    Ok(update)
}

/// Reads what becomes of a child that is no longer wanted. `configured` is what the configuration says about its kind: a plugin may
/// keep more, and not less. The error says what is wrong with the annotation, after its name.
pub(super) fn removal(child: &Value, configured: Removal) -> Result<Removal, String> {
    match text(child, ON_REMOVAL_ANNOTATION)? {
        None => Ok(configured),
        Some(DELETE) if configured == Removal::Retain => Err(
            "says `delete`, and the configuration retains the kind: set `onRemoval: delete` for the kind there, and let the \
             plugin say `retain` for each child that is to stay"
                .to_owned(),
        ),
        Some(DELETE) => Ok(Removal::Delete),
        Some(RETAIN | ORPHAN) => Ok(Removal::Retain),
        Some(word) => Err(unknown(word, &REMOVALS)),
    }
}

/// Maximum number of bytes of a wrong word in a message.
const SHOWN: usize = 60;

fn text<'a>(child: &'a Value, name: &str) -> Result<Option<&'a str>, String> {
    match &child["metadata"]["annotations"][name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.trim())),
        _ => Err("is no text".to_owned()),
    }
}

fn unknown(word: &str, words: &[&str]) -> String {
    let word = shorten(word, SHOWN);
    format!("says {word:?}, which is none of its words: {}", words.join(", "))
}

/// Why others wait for a child that is to be created again.
pub const GOING: &str = "it is being deleted";

/// What is known about one of the children that take turns.
#[derive(Debug, PartialEq)]
pub enum Member {
    /// It is as wanted, and ready.
    Done,
    /// It is as wanted, or about to be created, and the next one waits for it, for this reason.
    Pending(String),
    /// It is to be changed, and ready or not.
    Outdated {
        /// Whether it is ready.
        is_ready: bool,
    },
    /// It is to be changed, and something else must happen before.
    Blocked,
}

/// What the turns of the children of one parent say.
#[derive(Debug, Default, PartialEq)]
pub struct Turns {
    /// The children that wait, each with what it waits for.
    pub waiting: HashMap<ChildRef, String>,
    /// The children that the others wait for, and why, one for each kind.
    pub pending: Vec<(ChildRef, String)>,
}

/// Decides which children must wait until others of their kind are changed and ready.
///
/// One that is not ready is changed before those that are: a newer answer may be what makes it ready. Nothing is changed while a
/// child that is as wanted is not ready, or one of `going` is being deleted, which the plugin wants again after that.
pub fn turns(
    desired: &[Desired],
    going: &[ChildRef],
    mut state: impl FnMut(&Desired, Turn) -> Member,
) -> Turns {
    let mut kinds: Vec<(&Kind, Vec<(&Desired, Turn)>)> = Vec::new();
    let members = desired
        .iter()
        .filter_map(|child| Some((child, child.update.one?)));
    for (child, turn) in members {
        match kinds.iter_mut().find(|(kind, _)| *kind == &child.key.kind) {
            Some((_, members)) => members.push((child, turn)),
            None => kinds.push((&child.key.kind, vec![(child, turn)])),
        }
    }
    let mut turns = Turns::default();
    for (kind, mut members) in kinds {
        members.sort_by_key(|(child, _)| (child.depth, child.place));
        if members.iter().any(|(_, turn)| turn.last_first) {
            members.reverse();
        }
        let going = going.iter().find(|key| key.kind == *kind);
        let mut pending = going.map(|key| (key.clone(), GOING.to_owned()));
        let (mut next, mut outdated) = (None, Vec::new());
        for (child, turn) in members {
            match state(child, turn) {
                Member::Done => {}
                Member::Pending(why) => pending = pending.or(Some((child.key.clone(), why))),
                Member::Blocked => outdated.push(&child.key),
                Member::Outdated { is_ready } => {
                    outdated.push(&child.key);
                    // `false` is less than `true`.
                    if next.is_none_or(|(_, next_is_ready)| !is_ready && next_is_ready) {
                        next = Some((&child.key, is_ready));
                    }
                }
            }
        }
        let why = match (&pending, next) {
            (Some((key, why)), _) => format!("until {key} is ready: {why}"),
            (None, Some((next, _))) => {
                outdated.retain(|key| *key != next);
                format!("for its turn after {next}")
            }
            (None, None) => continue,
        };
        if !outdated.is_empty() {
            turns.pending.extend(pending);
        }
        let waiting = outdated
            .into_iter()
            .map(|key| (key.clone(), format!("{key} waits {why}")));
        turns.waiting.extend(waiting);
    }
    turns
}

#[cfg(test)]
mod tests;
