//! The answer of a plugin version, as it is compared and shown: of bounded size, and without the values of Secrets.

use std::collections::HashMap;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use operator_host_core::object::secret;

/// Maximum number of bytes of an answer that can be shown. A few answers are held outside of the memory of plugin calls,
/// and only their first differences are shown.
pub(super) const MAX_SHOWN: usize = 256 << 10;

/// What stands for the first, second and third value at one place: there are three answers.
const HIDDEN: [&str; 3] = ["(hidden)", "(hidden, another)", "(hidden, a third)"];

type Hash = [u8; 32];

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ComparedAnswer {
    /// Of the whole answer.
    hash: Hash,
    /// The beginning of the answer, as YAML.
    pub(super) shown: String,
    /// Whether the answer goes on after it.
    pub(super) is_cut: bool,
}

/// The different values that the answers for one object have at each place in a Secret, as hashes.
#[derive(Debug, Default)]
pub(super) struct SecretValues(HashMap<Hash, Vec<Hash>>);

impl ComparedAnswer {
    /// Hides the values of Secrets, in such a way that values that differ between answers still differ.
    pub(super) fn new(mut answer: Value, values: &mut SecretValues) -> Self {
        let hash = hash(&answer);
        for child in secrets(&mut answer) {
            values.hide(child);
        }
        let mut shown = vec![0; MAX_SHOWN];
        let mut rest = shown.as_mut_slice();
        // It fails at the end of the slice and nowhere else: every JSON value can be represented as YAML.
        let is_cut = serde_saphyr::to_io_writer(&mut rest, &answer).is_err();
        let length = MAX_SHOWN - rest.len();
        Self {
            hash,
            is_cut,
            shown: String::from_utf8_lossy(&shown[..length]).into_owned(),
        }
    }
}

impl SecretValues {
    fn hide(&mut self, secret: &mut Map<String, Value>) {
        let metadata = secret.get("metadata");
        let name = metadata.map(|metadata| (metadata["namespace"].clone(), metadata["name"].clone()));
        secret::replace_values(secret, |field, key, value| {
            let known = self.0.entry(hash(&(&name, field, key))).or_default();
            let value = hash(value);
            let index = known.iter().position(|known| *known == value);
            let index = index.unwrap_or_else(|| {
                known.push(value);
                known.len() - 1
            });
            HIDDEN[index.min(HIDDEN.len() - 1)].into()
        });
    }
}

fn hash(value: &impl serde::Serialize) -> Hash {
    let mut hash = Sha256::new();
    // Neither JSON nor a hash can fail.
    let _ = serde_json::to_writer(&mut hash, value);
    hash.finalize().into()
}

fn secrets(answer: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let children = answer.get_mut("children").and_then(Value::as_array_mut);
    children
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
        .filter(|child| secret::is_secret(child))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_large_answer_only_the_beginning_is_held_and_yet_all_of_it_is_compared() {
        let large = |last: u32| {
            let mut list: Vec<_> = (0..200_000).collect();
            list.push(last);
            ComparedAnswer::new(
                json!({ "status": { "list": list } }),
                &mut SecretValues::default(),
            )
        };
        let (one, other) = (large(1), large(2));
        assert_eq!(one.shown.len(), MAX_SHOWN);
        assert_eq!(one.shown, other.shown);
        assert!(one.is_cut);
        assert_eq!(one, large(1));
        assert_ne!(one, other);
    }

    #[test]
    fn each_value_of_a_secret_is_hidden_and_another_value_differs() {
        let mut values = SecretValues::default();
        let mut shown = |name: &str, value: &str| {
            let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
                "stringData": { "password": value } });
            ComparedAnswer::new(json!({ "children": [secret] }), &mut values).shown
        };
        for (name, value, expected) in [
            ("a", "x", "password: (hidden)"),
            ("a", "y", "password: (hidden, another)"),
            ("a", "x", "password: (hidden)"),
            ("a", "z", "password: (hidden, a third)"),
            ("b", "y", "password: (hidden)"),
        ] {
            let shown = shown(name, value);
            assert!(shown.trim_end().ends_with(expected), "{shown}");
        }
    }
}
