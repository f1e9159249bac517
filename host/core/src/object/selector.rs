//! Label selectors, as the API server reads them.
//!
//! Source: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>.

use std::collections::BTreeMap;

use operator_host_schema::metadata::{is_label_key, is_label_value};

/// Tests of labels, of which all must hold: each with its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<(String, Test)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    DoesNotExist,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    /// Whether it selects every object.
    pub const fn selects_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether it selects an object with these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|(key, test)| {
            let value = labels.get(key);
            match test {
                Test::Exists => value.is_some(),
                Test::DoesNotExist => value.is_none(),
                Test::In(values) => value.is_some_and(|value| values.contains(value)),
                Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            }
        })
    }

    /// Returns a label, with its value, that an object must have to be selected, if there is one.
    pub fn required(&self) -> Option<(&str, &str)> {
        self.0.iter().find_map(|(key, test)| match test {
            Test::In(values) if values.len() == 1 => Some((key.as_str(), values[0].as_str())),
            _ => None,
        })
    }

    /// Parses the syntax of `kubectl get -l`: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    ///
    /// # Errors
    /// Why the API server would refuse it.
    pub fn of(text: &str) -> Result<Self, String> {
        let mut rest = text.trim_start();
        let mut tests = Vec::new();
        while !rest.is_empty() {
            tests.push(requirement(&mut rest)?);
            match token(&mut rest) {
                "" => break,
                "," if !rest.is_empty() => {}
                other => {
                    let why = "cannot follow a part of a selector; parts are separated by ','";
                    return Err(format!("{other:?} {why}"));
                }
            }
        }
        Ok(Self(tests))
    }
}

/// Takes the next sign or word, and the spaces after it. At the end it is empty.
fn token<'t>(rest: &mut &'t str) -> &'t str {
    const SIGNS: [&str; 7] = ["==", "!=", "=", "!", "(", ")", ","];
    let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
    let is_end = |c: char| c.is_ascii_whitespace() || "=!(),".contains(c);
    let word = || rest.find(is_end).unwrap_or(rest.len());
    let end = sign.map_or_else(word, |sign| sign.len());
    let (token, after) = rest.split_at(end);
    *rest = after.trim_start();
    token
}

/// Takes one part of a selector.
fn requirement(rest: &mut &str) -> Result<(String, Test), String> {
    let mut key = token(rest);
    let absent = key == "!";
    if absent {
        key = token(rest);
    }
    if !is_label_key(key) {
        return Err(format!("{key:?} is not a label's key"));
    }
    let key = key.to_owned();
    if absent || rest.is_empty() || rest.starts_with(',') {
        return Ok((key, if absent { Test::DoesNotExist } else { Test::Exists }));
    }
    let operator = token(rest);
    let test = match operator {
        "in" => Test::In(set(rest)?),
        "notin" => Test::NotIn(set(rest)?),
        "=" | "==" | "!=" => {
            let value = if rest.starts_with(',') { "" } else { token(rest) };
            let values = vec![checked(value)?];
            match operator {
                "!=" => Test::NotIn(values),
                _ => Test::In(values),
            }
        }
        other => return Err(format!("{other:?} is none of =, ==, !=, in and notin")),
    };
    Ok((key, test))
}

/// Takes values between parentheses. What stands between two commas may be empty.
fn set(rest: &mut &str) -> Result<Vec<String>, String> {
    if token(rest) != "(" {
        return Err("a set must begin with '('".to_owned());
    }
    let mut values = vec![String::new()];
    let mut is_after_value = false;
    loop {
        match token(rest) {
            ")" => return Ok(values),
            "," => {
                values.push(String::new());
                is_after_value = false;
            }
            "" => return Err("a set must end with ')'".to_owned()),
            value if is_after_value => {
                return Err(format!(
                    "{value:?} cannot follow a value; they are separated by ','"
                ));
            }
            value => {
                if let Some(last) = values.last_mut() {
                    *last = checked(value)?;
                }
                is_after_value = true;
            }
        }
    }
}

fn checked(value: &str) -> Result<String, String> {
    match is_label_value(value) {
        true => Ok(value.to_owned()),
        false => Err(format!("{value:?} is not a label's value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_as_kubectl_reads_them() {
        let labels = |text: &str| {
            text.split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.into(), v.into()))
                .collect()
        };
        let cases = [
            ("", "a=1", true),
            ("a=1", "a=1", true),
            ("a==1,b!=2", "a=1,b=3", true),
            ("a=1,b!=2", "a=1,b=2", false),
            ("a in (1, 2),b", "a=2,b=", true),
            ("a notin (1,2)", "a=2", false),
            ("!a", "a=1", false),
            ("!a", "b=1", true),
            ("app.kubernetes.io/name", "b=1", false),
            ("a in (,b)", "a=", true),
            ("a in ()", "a=", true),
            ("a notin (b,,c)", "a=", false),
            ("a=,b", "a=,b=1", true),
            ("in in (notin)", "in=notin", true),
            ("a!=b", "c=1", true),
        ];
        for (selector, on, expected) in cases {
            let parsed = Selector::of(selector).unwrap();
            assert_eq!(parsed.matches(&labels(on)), expected, "{selector} on {on}");
        }
        for bad in [
            "=1",
            "a b",
            "a of (1)",
            "a in (1",
            "in (1)",
            "x=a||y=b",
            "x==a==b",
            "a in (xyz abc)",
            "a,",
            ",a",
            "a,,b",
            "a in 1",
            "a=(1)",
            "a=b c",
            "!a=1",
            "!",
            "a>1",
            "a=-",
            "a/b/c",
            "-a",
            "a===b",
            "a!b",
        ] {
            assert!(Selector::of(bad).is_err(), "{bad}");
        }
    }
}
