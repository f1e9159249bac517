//! The fields of one parent's children that the API server does not keep, although the host applies them. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use operator_host_core::object::{ChildRef, LEAVE_ANNOTATION, first_few};
use operator_host_desired::conditions::{FIELDS_DROPPED, FIELDS_REFUSED, Reason};

/// How many children, and how many fields of each, a message names.
const SHOWN: usize = 3;

/// The children with such fields.
#[derive(Debug, Default)]
pub struct Unkept(BTreeMap<ChildRef, Fields>);

#[derive(Debug, Default)]
struct Fields {
    /// The fingerprint of the body whose apply left out the known fields; `None` when it is to be applied once more.
    applied: Option<String>,
    /// The paths that were not as applied even in the answer to the apply. To apply them again changes nothing.
    known: BTreeSet<String>,
    /// The paths that were reported.
    told: BTreeSet<String>,
    /// Who changed them and why they cannot be changed back, in words after the paths; `None` when the API server just drops them.
    refused: Option<String>,
}

impl Unkept {
    /// Reports whether an apply of the body with this fingerprint does not bring the field back.
    pub(crate) fn is_known(&self, key: &ChildRef, fingerprint: &str, path: &str) -> bool {
        let fields = self.0.get(key);
        fields.is_some_and(|it| it.applied.as_deref() == Some(fingerprint) && it.known.contains(path))
    }

    /// Reports whether the last apply did not bring the field back.
    pub(crate) fn is_expected(&self, key: &ChildRef, path: &str) -> bool {
        self.0.get(key).is_some_and(|it| it.known.contains(path))
    }

    /// Remembers what was not as applied in the answer to an apply.
    pub(crate) fn answered(
        &mut self,
        key: &ChildRef,
        fingerprint: &str,
        known: BTreeSet<String>,
        refused: Option<String>,
    ) {
        if known.is_empty() && !self.0.contains_key(key) {
            return;
        }
        let fields = self.0.entry(key.clone()).or_default();
        fields.applied = Some(fingerprint.to_owned());
        (fields.known, fields.refused) = (known, refused);
    }

    /// Remembers which fields of a child to tell. Returns the reason and the message about those that are new.
    pub(crate) fn tell(&mut self, key: &ChildRef, told: BTreeSet<String>) -> Option<(&'static str, String)> {
        if told.is_empty() && !self.0.contains_key(key) {
            return None;
        }
        let fields = self.0.entry(key.clone()).or_default();
        let new: Vec<_> = told.difference(&fields.told).cloned().collect();
        fields.told = told;
        let message = (!new.is_empty()).then(|| {
            let paths = first_few(&new, SHOWN, ", ");
            let Some(refused) = &fields.refused else {
                let message = format!(
                    "{key}: the API server, or a policy at admission, does not keep {paths}. Leave that out of what the plugin wants, \
                     or change the policy or the API server that drops it"
                );
                return (FIELDS_DROPPED, message);
            };
            let message = format!(
                "{key}: {paths}{refused}. The host leaves it so: list it in the child's annotation {LEAVE_ANNOTATION}, or let the \
                 plugin want the current value"
            );
            (FIELDS_REFUSED, message)
        });
        if fields.told.is_empty() && fields.known.is_empty() {
            self.0.remove(key);
        }
        message
    }

    pub(crate) fn forget(&mut self, key: &ChildRef) {
        self.0.remove(key);
    }

    /// Forgets children that the plugin no longer wants.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&ChildRef) -> bool) {
        self.0.retain(|key, _| is_wanted(key));
    }

    /// Lets each child be applied once more.
    pub(crate) fn try_again(&mut self) {
        self.0.values_mut().for_each(|fields| fields.applied = None);
    }

    /// Returns what to say of the children; `None` when all is kept. The reason is [`FIELDS_REFUSED`] when a field is left as others
    /// set it.
    pub(crate) fn reason(&self) -> Option<Reason> {
        let told = self.0.iter().filter(|(_, fields)| !fields.told.is_empty());
        let (refused, dropped): (Vec<_>, Vec<_>) = told.partition(|(_, fields)| fields.refused.is_some());
        let in_words = |(key, fields): &(&ChildRef, &Fields)| {
            let paths = first_few(&fields.told, SHOWN, ", ");
            format!("{key}: {paths}{}", fields.refused.as_deref().unwrap_or_default())
        };
        let words = |all: &[_]| first_few(all.iter().map(in_words), SHOWN, "; ");
        let dropped = (!dropped.is_empty()).then(|| {
            let words = words(&dropped);
            format!("the API server, or a policy at admission, does not keep these fields: {words}")
        });
        if !refused.is_empty() {
            let all = std::iter::once(words(&refused)).chain(dropped);
            let advice = format!("list the fields in the child's annotation {LEAVE_ANNOTATION}");
            let all: Vec<_> = all.chain([advice]).collect();
            return Some(Reason::new(FIELDS_REFUSED, all.join(". ")));
        }
        dropped.map(|dropped| Reason::new(FIELDS_DROPPED, format!("every child is applied, but {dropped}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_contract::Kind;
    use operator_host_core::object::NamespacedName;

    fn paths(paths: &[&str]) -> BTreeSet<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn a_field_is_told_once_and_applied_again_only_for_another_body_or_when_asked_to() {
        let key = &ChildRef::new(
            Kind::new("apps/v1", "StatefulSet"),
            NamespacedName::parse("shop/db"),
        );
        let mut unkept = Unkept::default();
        assert!(unkept.tell(key, paths(&[])).is_none() && unkept.reason().is_none());
        unkept.answered(key, "f", paths(&["spec.a"]), None);
        assert!(unkept.is_known(key, "f", "spec.a") && !unkept.is_known(key, "f", "spec.b"));
        assert!(!unkept.is_known(key, "g", "spec.a"));
        let (reason, message) = unkept.tell(key, paths(&["spec.a"])).unwrap();
        assert_eq!(reason, FIELDS_DROPPED);
        assert!(
            message.contains("shop/db: the API server") && message.contains("spec.a"),
            "{message}"
        );
        unkept.try_again();
        assert!(!unkept.is_known(key, "f", "spec.a") && unkept.is_expected(key, "spec.a"));
        unkept.answered(key, "g", paths(&["spec.a"]), None);
        assert!(unkept.tell(key, paths(&["spec.a"])).is_none(), "the same field");
        assert!(unkept.reason().unwrap().message.contains("spec.a"));
        unkept.answered(
            key,
            "g",
            paths(&["spec.a"]),
            Some(" cannot be changed back: no".to_owned()),
        );
        let reason = unkept.reason().unwrap();
        assert_eq!(reason.reason, FIELDS_REFUSED);
        assert!(
            reason.message.contains("spec.a cannot be changed back: no"),
            "{reason:?}"
        );
        unkept.answered(key, "h", paths(&[]), None);
        assert!(unkept.tell(key, paths(&[])).is_none() && unkept.reason().is_none());
        assert!(unkept.0.is_empty());
    }
}
