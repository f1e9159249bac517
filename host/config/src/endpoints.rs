//! The file of `operator-host egress`: the endpoints outside of the cluster that Externals may name, and who may use them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::leadership::{DEFAULT_LEASE, LeadershipConfig, LeadershipMode};
use super::reference::split;
use super::values::{AtMost, Label, Text, Value, yaml};
use super::{ConfigError, ServiceAccount, read};
use operator_host_core::namespaces::NamespacePatterns;
use operator_host_core::object::is_config_map_key;

/// Default of the Lease's name: another one than that of the host.
const LEASE: &str = "operator-host-egress";
/// Default of [`Endpoint::timeout`]: less than the default times of a Lease leave.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest without election.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// Default of [`Endpoint::max_body`].
const DEFAULT_MAX_BODY: usize = 1 << 20;
/// The most: an answer takes up to thirty times as much while it is read.
const MAX_BODY: usize = 8 << 20;
/// Default of [`Endpoint::qps`].
const DEFAULT_QPS: usize = 5;

/// The file, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointsConfig {
    /// The log filter, which takes precedence over the command line.
    pub log: Option<String>,
    /// The namespaces whose Externals this process looks at; all when empty. Each belongs to one process.
    pub namespaces: BTreeSet<String>,
    /// How several replicas share the work.
    pub leadership: LeadershipConfig,
    /// The endpoints, in the order of the file.
    pub endpoints: Vec<Endpoint>,
}

/// A server, as far as it may be asked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawEndpoint")]
pub struct Endpoint {
    /// A DNS label, unique in the file.
    pub name: String,
    /// What every request begins with.
    pub url: Url,
    /// The methods of requests.
    pub methods: BTreeSet<Method>,
    /// The namespaces whose Externals may use it.
    pub namespaces: NamespacePatterns,
    /// What identifies this process to the server.
    pub credentials: Option<Credentials>,
    /// A PEM file with the only authorities that are trusted; `None`: those of the system.
    pub certificate_authority: Option<PathBuf>,
    /// How long one request may take, from looking up the name to the end of the answer.
    pub timeout: Duration,
    /// The most bytes of a body and of an answer.
    pub max_body: usize,
    /// The average number of requests a second.
    pub qps: u32,
    /// The addresses that are allowed although they are of this machine, the link or the cluster's own API.
    pub allow_addresses: Vec<Network>,
}

/// The beginning of the URL of every request: no user, query or fragment, and no slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// The name or the address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path, empty or with a slash at its beginning.
    pub prefix: String,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "HTTP's own names")]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// A Secret, and how its value is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The namespace of the Secret.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How it is sent.
    pub form: Form,
}

/// How credentials are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a header of this name: the value of this key.
    Header(String, String),
    /// As `Authorization: Bearer`: the value of this key.
    Bearer(String),
    /// As `Authorization: Basic`: the values of `username` and `password`.
    Basic,
}

/// Addresses with the same beginning, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: u128,
    bits: u32,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawFile {
    log: Option<String>,
    namespaces: Vec<Text<Label>>,
    leadership: LeadershipMode,
    lease: LeadershipConfig,
    endpoints: Vec<serde_saphyr::Spanned<Endpoint>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawEndpoint {
    name: Text<Label>,
    url: Text<Url>,
    #[serde(default)]
    methods: BTreeSet<Method>,
    #[serde(default)]
    namespaces: NamespacePatterns,
    credentials: Option<RawCredentials>,
    certificate_authority: Option<PathBuf>,
    timeout: Option<Text<Duration>>,
    max_body: Option<Text<usize>>,
    qps: Option<AtMost<10_000>>,
    #[serde(default)]
    allow_addresses: Vec<Text<Network>>,
    #[serde(default)]
    allow_plain: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawCredentials {
    secret: Text<ServiceAccount>,
    key: Option<String>,
    header: Option<String>,
    #[serde(default)]
    bearer: bool,
    #[serde(default)]
    basic: bool,
}

impl EndpointsConfig {
    /// Reads and validates the file. Relative paths in it start at its folder.
    ///
    /// # Errors
    /// When the file cannot be read, is not YAML, or has an unknown field or an invalid value.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &read(file)?)
    }

    /// Validates the text of `file`; see [`EndpointsConfig::load`].
    ///
    /// # Errors
    /// As [`EndpointsConfig::load`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let raw: RawFile = yaml(file, text)?;
        let mut leadership = raw.lease;
        leadership.mode = raw.leadership;
        if leadership.name == DEFAULT_LEASE {
            LEASE.clone_into(&mut leadership.name);
        }
        let timing = leadership.timing;
        // Whoever sends until `renewDeadline` has its answer before another replica may begin.
        let longest = match leadership.mode {
            LeadershipMode::None => MAX_TIMEOUT,
            LeadershipMode::Single => timing.duration - timing.renew_deadline,
        };
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for entry in raw.endpoints {
            let (at, mut endpoint) = (entry.referenced, entry.value);
            let wrong = |message: String| super::values::invalid(file, at, message);
            if endpoints.iter().any(|other| other.name == endpoint.name) {
                let name = &endpoint.name;
                return Err(wrong(format!("there is already an endpoint named {name:?}")));
            }
            if endpoint.timeout >= longest {
                let Endpoint { name, timeout, .. } = &endpoint;
                let why = match leadership.mode {
                    LeadershipMode::None => "",
                    LeadershipMode::Single => {
                        ", which `lease.duration` less `lease.renewDeadline` leaves: another replica sends after that"
                    }
                };
                return Err(wrong(format!(
                    "`timeout` of endpoint {name:?} ({timeout:?}) must be shorter than {longest:?}{why}"
                )));
            }
            let folder = file.parent().unwrap_or(Path::new(""));
            endpoint.certificate_authority = endpoint.certificate_authority.map(|path| folder.join(path));
            endpoints.push(endpoint);
        }
        Ok(Self {
            log: raw.log,
            namespaces: raw.namespaces.into_iter().map(|name| name.0.0).collect(),
            leadership,
            endpoints,
        })
    }
}

impl TryFrom<RawEndpoint> for Endpoint {
    type Error = String;

    fn try_from(raw: RawEndpoint) -> Result<Self, String> {
        let (name, url) = (raw.name.0.0, raw.url.0);
        let wrong = |field: &str, message: &str| Err(format!("`{field}` of endpoint {name:?}: {message}"));
        if !url.tls && !raw.allow_plain {
            return wrong(
                "url",
                "it is not encrypted, so that anyone on the way reads the credentials; use https, or set `allowPlain: true`",
            );
        }
        let max_body = raw.max_body.map_or(DEFAULT_MAX_BODY, |size| size.0);
        if max_body > MAX_BODY {
            return wrong("maxBody", "it must be at most 8Mi");
        }
        let mut methods = raw.methods;
        methods.insert(Method::Get);
        let credentials = match raw.credentials.map(Credentials::try_from).transpose() {
            Ok(credentials) => credentials,
            Err(message) => return wrong("credentials", &message),
        };
        let qps = raw.qps.map_or(DEFAULT_QPS, usize::from);
        Ok(Self {
            name,
            url,
            methods,
            namespaces: raw.namespaces,
            credentials,
            certificate_authority: raw.certificate_authority,
            timeout: raw.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0),
            max_body,
            qps: u32::try_from(qps).unwrap_or(u32::MAX),
            allow_addresses: raw.allow_addresses.into_iter().map(|network| network.0).collect(),
        })
    }
}

/// The headers that this process sets itself, or that decide where a request ends.
const OWN_HEADERS: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "accept",
    "content-type",
    "accept-encoding",
    "idempotency-key",
];

impl TryFrom<RawCredentials> for Credentials {
    type Error = String;

    fn try_from(raw: RawCredentials) -> Result<Self, String> {
        let key = raw.key.unwrap_or_else(|| "token".to_owned());
        if !is_config_map_key(&key) {
            return Err(format!("{key:?} cannot be a `key` of a Secret"));
        }
        let form = match (raw.header, raw.bearer, raw.basic) {
            (Some(header), false, false) => {
                let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                let is_own = OWN_HEADERS.contains(&header.to_ascii_lowercase().as_str());
                if header.is_empty() || !header.bytes().all(is_token) || is_own {
                    return Err(format!("{header:?} cannot be the `header` of credentials"));
                }
                Form::Header(header, key)
            }
            (None, true, false) => Form::Bearer(key),
            (None, false, true) => Form::Basic,
            _ => return Err("name one of `header: NAME`, `bearer: true` and `basic: true`".to_owned()),
        };
        let ServiceAccount { namespace, name } = raw.secret.0;
        Ok(Self {
            namespace,
            name,
            form,
        })
    }
}

impl Value for Url {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("{text:?} is not the URL of an endpoint: {why}"));
        let (tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return wrong("expected `https://` with a host and a path"),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            // Not shown: it may be a password.
            return Err("the URL of an endpoint may not have a user: name `credentials`".to_owned());
        }
        let prefix = path.trim_end_matches('/');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
        if !prefix.bytes().all(is_plain) || prefix.split('/').skip(1).any(|it| matches!(it, "" | "." | ".."))
        {
            return wrong("its path may have letters, digits, `-`, `.`, `_`, `~` and single slashes only");
        }
        let (host, port) = match authority.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, port)))
                if host.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || port.starts_with(':')) =>
            {
                (host, port.strip_prefix(':'))
            }
            Some(_) => return wrong("it has no address between its brackets"),
            None => split(authority, ':'),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_name) {
            return wrong("it needs a host");
        }
        let port = match port.map(str::parse::<u16>) {
            None if tls => 443,
            None => 80,
            Some(Ok(port)) if port > 0 => port,
            Some(_) => return wrong("its port is not a number from 1 to 65535"),
        };
        Ok(Self {
            tls,
            host: host.to_ascii_lowercase(),
            port,
            prefix: prefix.to_owned(),
        })
    }
}

impl Url {
    /// Returns the host and the port, as a request names them.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

impl Method {
    /// Returns HTTP's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

impl Value for Network {
    fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, bits.parse::<u32>().ok()),
            None => (text, Some(128)),
        };
        let parsed = address.parse::<IpAddr>().ok().zip(bits);
        let (address, bits) = parsed.ok_or_else(|| {
            format!("{text:?} is neither an address nor a network: expected a value such as `127.0.0.1` or `10.0.0.0/8`")
        })?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most && text.contains('/') {
            return Err(format!("{text:?}: a network has at most {most} bits"));
        }
        Ok(Self {
            address: number(address),
            bits: bits.min(most) + (128 - most),
        })
    }
}

impl Network {
    /// Reports whether an address is one of these. One of IPv4 in IPv6 is the same address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let shift = 128 - self.bits;
        let start = |address: u128| address.checked_shr(shift).unwrap_or(0);
        start(number(address)) == start(self.address)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EndpointsConfig, String> {
        EndpointsConfig::parse(Path::new("/etc/endpoints.yaml"), text).map_err(|error| error.to_string())
    }

    fn endpoint(fields: &str) -> Result<Endpoint, String> {
        let text = format!("endpoints: [{{name: dns, url: 'https://d.example', {fields}}}]");
        Ok(parse(&text)?.endpoints[0].clone())
    }

    #[test]
    fn an_endpoint_has_safe_defaults_and_nobody_may_use_it() {
        let dns = endpoint("").unwrap();
        assert!(dns.namespaces.is_empty());
        assert_eq!(dns.methods, BTreeSet::from([Method::Get]));
        assert_eq!((dns.timeout, dns.max_body), (DEFAULT_TIMEOUT, 1 << 20));
        assert_eq!(dns.qps, 5);
        assert_eq!(dns.url.to_string(), "https://d.example:443");
        let config = parse("leadership: single").unwrap();
        assert_eq!(config.leadership.name, LEASE, "not the host's Lease");
    }

    #[test]
    fn a_url_has_nothing_but_a_host_and_a_path() {
        let url = |text: &str| <Url as Value>::parse(text);
        let plain = url("https://D.example:8081/api/v1/").unwrap();
        assert_eq!((plain.host.as_str(), plain.port), ("d.example", 8081));
        assert_eq!(plain.prefix, "/api/v1");
        assert_eq!(url("http://[::1]:80").unwrap().authority(), "[::1]:80");
        let bad = "d.example|ftp://d|https://|https:///a|https://u:p@d/|https://d?x|https://d/#x|https://d/a//b|\
                   https://d/../b|https://d/%2e%2e|https://d:0|https://d:x|https://[::1|https://d/a b";
        for bad in bad.split('|') {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_place_and_its_field() {
        for (fields, words) in [
            ("deadline: 4s", "deadline"),
            ("timeout: 61s", "timeout"),
            ("maxBody: 9Mi", "maxBody"),
            ("methods: [TRACE]", "TRACE"),
            ("credentials: {secret: infra/pdns}", "credentials"),
            (
                "credentials: {secret: a/b, header: X, bearer: true}",
                "credentials",
            ),
            (
                "credentials: {secret: a/b, header: Content-Length}",
                "Content-Length",
            ),
            ("credentials: {secret: pdns, basic: true}", "pdns"),
            ("allowAddresses: [10.0.0.0/33]", "10.0.0.0/33"),
            ("qps: 0", "1"),
        ] {
            let error = endpoint(fields).unwrap_err();
            let is_so = error.starts_with("/etc/endpoints.yaml:1:") && error.contains(words);
            assert!(is_so, "{fields}: {error}");
        }
        for (all, words) in [
            ("{name: a, url: 'http://a'}", "allowPlain"),
            (
                "{name: a, url: 'https://a'}, {name: a, url: 'https://b'}",
                "already",
            ),
        ] {
            let error = parse(&format!("endpoints: [{all}]")).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_request_ends_before_another_replica_may_begin() {
        let text = |timeout: &str| {
            format!("leadership: single\nendpoints: [{{name: a, url: 'https://a', timeout: {timeout}}}]")
        };
        assert!(parse(&text("4900ms")).is_ok());
        let error = parse(&text("5s")).unwrap_err();
        assert!(error.contains("renewDeadline"), "{error}");
    }

    #[test]
    fn a_network_contains_its_addresses_in_either_form() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::1", false),
            ("::/0", "1.2.3.4", true),
            ("127.0.0.1", "127.0.0.2", false),
        ] {
            let contains = <Network as Value>::parse(network)
                .unwrap()
                .contains(address.parse().unwrap());
            assert_eq!(contains, expected, "{network} {address}");
        }
    }
}
