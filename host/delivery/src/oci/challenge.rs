//! What a registry asks for when it answers 401 (RFC 9110, section 11).

use std::collections::BTreeMap;

/// How a registry wants to be asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// With a user name and a password.
    Basic,
    /// With a token from this server.
    Bearer {
        /// The URL of the token server.
        realm: String,
        /// What to name as `service` there.
        service: Option<String>,
    },
}

impl Challenge {
    /// Parses the values of `WWW-Authenticate`. A token is preferred.
    pub(super) fn parse<'a>(values: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut basic = None;
        for value in values {
            let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
            if scheme.eq_ignore_ascii_case("bearer") {
                let mut parameters = parameters(rest);
                if let Some(realm) = parameters.remove("realm") {
                    let service = parameters.remove("service");
                    return Some(Self::Bearer { realm, service });
                }
            } else if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Self::Basic);
            }
        }
        basic
    }
}

/// Parses `name="value", name=value`, with names in lower case. What does not have this form is left out.
fn parameters(mut text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some((name, rest)) = text.split_once('=') {
        let (value, rest) = match rest.trim_start().strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        found.insert(name, value.trim().to_owned());
        text = rest;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Option<Challenge> {
        Challenge::parse(values.iter().copied())
    }

    #[test]
    fn a_token_server_is_named_with_its_service() {
        let parsed = parse(&[
            "Basic realm=\"r\"",
            "Bearer Realm=\"https://a.example.com/token?x=y\",service=r.example.com , scope=\"repository:a:pull,push\"",
        ]);
        assert_eq!(
            parsed,
            Some(Challenge::Bearer {
                realm: "https://a.example.com/token?x=y".into(),
                service: Some("r.example.com".into()),
            })
        );
        assert_eq!(parse(&["basic realm=r"]), Some(Challenge::Basic));
        assert_eq!(parse(&["BASIC"]), Some(Challenge::Basic));
    }

    #[test]
    fn what_is_no_challenge_is_passed_over() {
        for value in [
            "",
            "Bearer",
            "Bearer realm",
            "Bearer scope=\"",
            "Negotiate abc",
            "Bearer ====\"\\",
        ] {
            assert_eq!(parse(&[value]), None, "{value}");
        }
    }
}
