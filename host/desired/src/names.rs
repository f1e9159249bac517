//! The names that the API server accepts, by kind. A refused name is reported before the first request, and by `render`
//! and `check`, which have no API server.
//!
//! Source: Kubernetes, "Object Names and IDs", and the validation of each kind in `pkg/apis`. Where versions of
//! Kubernetes differ, the loosest rule applies: Services had to begin with a letter.

use operator_host_contract::{Kind, is_dns_label};

#[derive(Clone, Copy)]
enum Rule {
    /// An RFC 1123 label.
    Label,
    /// An RFC 1123 subdomain of at most so many characters.
    Subdomain(usize),
    /// Any name that can be in a request path.
    Any,
}

/// Returns the rule that an object's name violates; `None` when its kind allows the name.
pub fn problem(kind: &Kind, name: &str) -> Option<String> {
    const CHARACTERS: &str = "that begin and end with a letter or digit (RFC 1123)";
    match rule(kind) {
        Rule::Label if !is_dns_label(name) => Some(format!(
            "the API server accepts only at most 63 of a-z, 0-9 and `-` as the name of a {}, {CHARACTERS}",
            kind.kind
        )),
        Rule::Subdomain(max) if !is_subdomain(name, max) => Some(format!(
            "the API server accepts only at most {max} of a-z, 0-9, `-` and `.` as the name of a {}, in parts {CHARACTERS}",
            kind.kind
        )),
        _ => None,
    }
}

fn rule(kind: &Kind) -> Rule {
    match (kind.group(), kind.kind.as_str()) {
        ("", "Namespace" | "Service") => Rule::Label,
        // The name becomes the value of a label of its pods.
        ("batch", "Job") => Rule::Subdomain(63),
        // And its Jobs add 11 characters.
        ("batch", "CronJob") => Rule::Subdomain(52),
        ("rbac.authorization.k8s.io", _)
        | ("" | "events.k8s.io", "Event")
        | ("apiregistration.k8s.io", "APIService")
        | ("certificates.k8s.io", "CertificateSigningRequest" | "ClusterTrustBundle")
        | ("networking.k8s.io", "IPAddress")
        | ("storage.k8s.io", "CSIDriver") => Rule::Any,
        // OpenShift serves kinds of its own without definitions, such as users with the names of an identity provider.
        (group, _) if group.ends_with(".openshift.io") => Rule::Any,
        _ => Rule::Subdomain(253),
    }
}

/// Reports whether a text is a DNS subdomain, as defined by RFC 1123 and Kubernetes. Its parts may be longer than labels.
fn is_subdomain(name: &str, max: usize) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(is_inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= max && name.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_fine(api_version: &str, kind: &str, name: &str) -> bool {
        let kind = Kind::new(api_version, kind);
        problem(&kind, name).is_none()
    }

    #[test]
    fn names_are_as_the_api_server_requires_them_for_the_kind() {
        let long = |length| "a".repeat(length);
        for (api_version, kind, good, bad) in [
            ("v1", "ConfigMap", long(253), long(254)),
            ("v1", "ConfigMap", "a.b-c.9".into(), "a..b".into()),
            ("v1", "Pod", "web-0".into(), "Web-0".into()),
            ("v1", "Secret", "root".into(), "my_root".into()),
            ("apps/v1", "Deployment", "1st".into(), "-a".into()),
            ("v1", "Service", long(63), long(64)),
            ("v1", "Service", "1st".into(), "a.b".into()),
            ("v1", "Namespace", "team-a".into(), "team.a".into()),
            ("batch/v1", "Job", long(63), long(64)),
            ("batch/v1", "CronJob", long(52), long(53)),
            ("example.com/v1", "Shop", "a.b".into(), "a:b".into()),
        ] {
            assert!(is_fine(api_version, kind, &good), "{kind} {good}");
            assert!(!is_fine(api_version, kind, &bad), "{kind} {bad}");
        }
        for (api_version, kind, name) in [
            ("rbac.authorization.k8s.io/v1", "ClusterRole", "system:Shop_a"),
            ("rbac.authorization.k8s.io/v1", "Role", "for ü?"),
            ("user.openshift.io/v1", "Identity", "ldap:Bob"),
        ] {
            assert!(is_fine(api_version, kind, name), "{kind} {name}");
        }
    }

    #[test]
    fn the_rule_is_said_with_the_kind() {
        let kind = Kind::new("batch/v1", "CronJob");
        let said = problem(&kind, "Nightly").unwrap();
        assert!(said.contains("at most 52") && said.contains("CronJob"), "{said}");
    }
}
