//! Finds the children that come before others, and refuses an order that cannot be kept.

use std::collections::{HashMap, HashSet};

use super::{Desired, Plan, Policy, Refusal, SHOWN};
use crate::order;
use operator_host_core::object::{AFTER_ANNOTATION, ChildRef, Identity, is_terminating};
use operator_host_core::text::shorten;

fn bad_order(child: &ChildRef, problem: &str) -> Refusal {
    Refusal::new(child, format!("its annotation `{AFTER_ANNOTATION}` {problem}"))
}

impl Policy<'_> {
    /// Finds the children that come before each one. Returns what is wrong with their annotations.
    pub(super) fn resolve_order(&self, plan: &mut Plan) -> Vec<Refusal> {
        let is_ordered =
            |desired: &Desired| !desired.body["metadata"]["annotations"][AFTER_ANNOTATION].is_null();
        if !plan.desired.iter().any(is_ordered) {
            return Vec::new();
        }
        let wanted = plan.desired.iter().map(|desired| &desired.key);
        let wanted = wanted.chain(plan.secrets.iter().map(|secret| &secret.key));
        let shown = self.shown.iter().map(|child| ChildRef::of(child).identity());
        let shown: HashSet<Identity> = shown.collect();
        // A kept child counts if it is one.
        let kept = plan.keep.iter().filter(|key| shown.contains(&key.identity()));
        let named = wanted.chain(kept).map(|key| (key.identity(), key.clone()));
        let named: HashMap<Identity, ChildRef> = named.collect();
        let mut refusals = Vec::new();
        for desired in &mut plan.desired {
            let Some(text) = desired.body["metadata"]["annotations"][AFTER_ANNOTATION].as_str() else {
                continue;
            };
            match self.before(&desired.key, text, &named, &shown) {
                Ok(after) => desired.after = after,
                Err(problem) => refusals.push(bad_order(&desired.key, &problem)),
            }
        }
        match order::depths(&plan.desired) {
            Ok(depths) => {
                let all = plan.desired.iter_mut().zip(depths);
                all.for_each(|(desired, depth)| desired.depth = depth);
            }
            Err(members) => {
                const SHOWN: usize = 5;
                let mut names: Vec<_> = members.iter().take(SHOWN).map(ToString::to_string).collect();
                if members.len() > SHOWN {
                    names.push(format!("{} others", members.len() - SHOWN));
                }
                names.extend(names.first().cloned());
                let problem = format!("makes a circle: {}", names.join(" waits for "));
                refusals.push(bad_order(&members[0], &problem));
            }
        }
        refusals
    }

    fn before(
        &self,
        child: &ChildRef,
        text: &str,
        named: &HashMap<Identity, ChildRef>,
        shown: &HashSet<Identity>,
    ) -> Result<Vec<ChildRef>, String> {
        let mut before = Vec::new();
        for reference in order::parse(text)? {
            let candidates = reference.candidates(&child.name);
            if let Some(key) = candidates.iter().find_map(|identity| named.get(identity)) {
                before.push(key.clone());
                continue;
            }
            // A child that the plugin is about to replace was there, and is not wanted for the moment. A cleanup need not name
            // what stays.
            let is_there = candidates.iter().any(|identity| shown.contains(identity));
            if !is_there && !is_terminating(self.parent) {
                return Err(format!(
                    "names {}, which is not among the children that the plugin wants",
                    shorten(&reference.to_string(), SHOWN)
                ));
            }
        }
        Ok(before)
    }
}
