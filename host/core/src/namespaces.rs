//! Namespaces by name or by pattern, as under `otherNamespaces`.

use std::collections::BTreeSet;

use serde::Deserialize;

/// Names and patterns. In a pattern, `*` stands for any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct NamespacePatterns(BTreeSet<String>);

impl NamespacePatterns {
    /// Returns the pattern that every namespace matches.
    pub fn every() -> Self {
        Self::from_iter(["*".to_owned()])
    }

    /// Reports whether a namespace is named or matches a pattern.
    pub fn contains(&self, namespace: &str) -> bool {
        has_match(&self.0, namespace)
    }

    /// Adds names.
    pub fn extend(&mut self, names: impl IntoIterator<Item = String>) {
        self.0.extend(names);
    }

    /// Returns the names; `None` when there is a pattern, so that nobody knows all names in advance.
    pub fn names(&self) -> Option<&BTreeSet<String>> {
        self.patterns().next().is_none().then_some(&self.0)
    }

    /// Reports whether every namespace matches, those of Kubernetes and of the host included.
    pub fn has_every(&self) -> bool {
        self.patterns()
            .any(|pattern| pattern.bytes().all(|byte| byte == b'*'))
    }

    /// Returns the names and the patterns.
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.0.iter()
    }

    /// Reports whether there is neither a name nor a pattern.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn patterns(&self) -> impl Iterator<Item = &String> {
        self.0.iter().filter(|name| name.contains('*'))
    }
}

impl FromIterator<String> for NamespacePatterns {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self(names.into_iter().collect())
    }
}

/// Reports whether a text is one of these or matches one of the patterns among them.
pub fn has_match(patterns: &BTreeSet<String>, text: &str) -> bool {
    patterns.contains(text) || patterns.iter().any(|pattern| matches(pattern, text))
}

/// Matches each part of the pattern as early as possible, which leaves the most text for the parts after it.
fn matches(pattern: &str, name: &str) -> bool {
    let (Some((first, rest)), Some((_, last))) = (pattern.split_once('*'), pattern.rsplit_once('*')) else {
        return pattern == name;
    };
    let middle = rest.strip_suffix(last).unwrap_or_default();
    let Some(mut name) = name.strip_prefix(first).and_then(|name| name.strip_suffix(last)) else {
        return false;
    };
    middle.split('*').all(|part| match name.split_once(part) {
        Some((_, after)) => {
            name = after;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_anywhere() {
        for (pattern, yes, no) in [
            ("shop", &["shop"][..], &["shop-", "a-shop", ""][..]),
            ("shop-*", &["shop-", "shop-1", "shop-a-b"], &["shop", "ashop-1"]),
            ("*-shop", &["a-shop", "-shop"], &["shop", "a-shop-b"]),
            ("a*b*c", &["abc", "a1b2c", "abbc"], &["ab", "ac", "abcd", "cba"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("ab*ba", &["abba"], &["aba"]),
            ("*", &["shop", "kube-system"], &[]),
            ("**", &["shop"], &[]),
        ] {
            let patterns = NamespacePatterns::from_iter([pattern.to_owned()]);
            for name in yes {
                assert!(patterns.contains(name), "{pattern} {name}");
            }
            for name in no {
                assert!(!patterns.contains(name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn names_are_known_only_without_patterns() {
        let of = |names: &[&str]| {
            names
                .iter()
                .map(ToString::to_string)
                .collect::<NamespacePatterns>()
        };
        assert_eq!(of(&["a", "b"]).names().unwrap().len(), 2);
        assert_eq!(of(&["a", "b-*"]).names(), None);
        assert!(of(&["a", "*"]).has_every() && of(&["**"]).has_every());
        assert!(!of(&["a*"]).has_every() && !of(&[]).has_every());
    }
}
