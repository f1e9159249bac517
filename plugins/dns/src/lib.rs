//! DnsRecord: a record in PowerDNS, which is outside of the cluster.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use operator_plugin::checksum;
use operator_plugin::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All values of one type that a name has in the DNS.
#[derive(Deserialize, JsonSchema)]
struct DnsRecordSpec {
    /// The zone, such as example.com.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    zone: String,
    /// The name within the zone, such as www. The zone itself when it is left out.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^(\*|[a-z0-9_]([-a-z0-9_]*[a-z0-9])?)(\.[a-z0-9_]([-a-z0-9_]*[a-z0-9])?)*$")
    )]
    name: Option<String>,
    /// The type.
    #[serde(rename = "type")]
    type_: Type,
    /// The values: addresses, the name that a CNAME stands for, or texts.
    #[schemars(
        length(min = 1, max = 100),
        inner(length(min = 1, max = 255), regex(pattern = "^[ -~]+$"))
    )]
    values: Vec<String>,
    /// How long others may keep it, in seconds.
    #[serde(default = "defaults::ttl")]
    #[schemars(range(min = 1, max = 604_800))]
    ttl: u32,
    /// When to look again whether the record is still so, such as 60s; at least 5s.
    #[serde(default = "defaults::every")]
    #[schemars(regex(pattern = "^[1-9][0-9]{0,3}(s|m|h)$"))]
    every: String,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Type {
    A,
    Aaaa,
    Cname,
    Txt,
}

mod defaults {
    pub(super) fn ttl() -> u32 {
        300
    }

    pub(super) fn every() -> String {
        "60s".to_owned()
    }
}

/// The observed state.
#[derive(Serialize, Deserialize, JsonSchema)]
struct DnsRecordStatus {
    /// The name of the record in the DNS.
    name: String,
}

const EXTERNAL: Kind = Kind::new("operator-host.dev/v1alpha1", "External");

const PLUGIN: Plugin<DnsRecordSpec, DnsRecordStatus> =
    Plugin::new("dns.example.com/v1", "DnsRecord", reconcile)
        .validate(validate)
        .makes(&[EXTERNAL])
        // Room for what the name of the External adds.
        .names("^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", 240)
        .columns(&[
            Column::string("Name", ".status.name"),
            Column::string("Type", ".spec.type"),
            Column::string("Ready", ".status.conditions[?(@.type==\"Ready\")].status"),
        ]);
operator_plugin::register!(PLUGIN);

fn reconcile(
    request: &Request<DnsRecordSpec, DnsRecordStatus>,
) -> Result<Response<DnsRecordStatus>, Failure> {
    let spec = &request.parent.spec;
    let DnsRecordSpec { zone, ttl, every, .. } = spec;
    let type_ = spec.type_.text();
    let name = match &spec.name {
        Some(name) => format!("{name}.{zone}"),
        None => zone.clone(),
    };
    let dotted = format!("{name}.");
    let path = format!("/zones/{zone}");
    let observe = json!({ "path": format!("{path}?rrset_name={dotted}&rrset_type={type_}") });
    // What an External observes cannot change: another name is another External, and the host deletes the first one.
    let id = checksum([&Object::from(observe.clone())]);
    // As a set, since PowerDNS refuses a value that is there twice.
    let contents = spec.values.iter().flat_map(|value| spec.type_.content(value));
    let contents = contents.collect::<BTreeSet<_>>().into_iter();
    let records: Vec<_> = contents
        .map(|content| json!({ "content": content, "disabled": false }))
        .collect();
    let send = |rrset| json!({ "method": "PATCH", "path": path, "body": { "rrsets": [rrset] } });
    Ok(Response::new(DnsRecordStatus { name }).child(json!({
        "apiVersion": EXTERNAL.api_version,
        "kind": EXTERNAL.kind,
        "metadata": { "name": format!("{}-{id:.8}", request.parent.name) },
        "spec": {
            "endpoint": "dns",
            "observe": observe,
            "matches": { "rrsets": [{ "ttl": ttl, "records": records }] },
            "set": send(json!({
                "name": dotted, "type": type_, "ttl": ttl, "records": records, "changetype": "REPLACE",
            })),
            "unset": send(json!({ "name": dotted, "type": type_, "changetype": "DELETE" })),
            "every": every,
        },
    })))
}

/// Checks what the schema cannot: a value that PowerDNS would refuse, and one that it would return in another form.
fn validate(
    parent: &Parent<DnsRecordSpec, DnsRecordStatus>,
    _old: Option<&Parent<DnsRecordSpec, DnsRecordStatus>>,
) -> Vec<FieldError> {
    let DnsRecordSpec { type_, values, .. } = &parent.spec;
    let mut errors = Vec::new();
    for (i, value) in values.iter().enumerate() {
        if let Err(problem) = type_.content(value) {
            errors.push(FieldError::new(
                format!("spec.values[{i}]"),
                format!("{value:?} {problem}"),
            ));
        }
    }
    if *type_ == Type::Cname && values.len() != 1 {
        errors.push(FieldError::new(
            "spec.values",
            "a CNAME stands for exactly one name",
        ));
    }
    errors
}

impl Type {
    fn text(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Cname => "CNAME",
            Self::Txt => "TXT",
        }
    }

    /// Returns a value in the form in which PowerDNS returns it, so that the answer can be compared with it.
    fn content(self, value: &str) -> Result<String, &'static str> {
        match self {
            Self::A => value
                .parse::<Ipv4Addr>()
                .map(|address| address.to_string())
                .map_err(|_| "is no IPv4 address"),
            Self::Aaaa => value
                .parse::<Ipv6Addr>()
                .map(|address| address.to_string())
                .map_err(|_| "is no IPv6 address"),
            Self::Cname => {
                let name = value.strip_suffix('.').unwrap_or(value);
                let is_name = name.split('.').all(|label| {
                    let is_allowed =
                        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
                    !label.is_empty() && label.chars().all(is_allowed)
                });
                is_name
                    .then(|| format!("{name}."))
                    .ok_or("is no name in lower case")
            }
            Self::Txt => Ok(format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))),
        }
    }
}
