//! URLs and networks, as the libraries of Kubernetes see them.

use std::net::IpAddr;

use ipnet::IpNet;

/// The parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(super) scheme: String,
    /// With the port.
    pub(super) host: String,
    /// As in the text, or escaped where the text is not.
    pub(super) path: String,
    /// Each name with its values in order.
    pub(super) query: Vec<(String, Vec<String>)>,
}

impl Url {
    /// Parses an absolute URL or an absolute path as it stands in a request, so without a fragment.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.contains(|c: char| c.is_ascii_control()) {
            return None;
        }
        let (scheme, rest) = match text.split_once(':') {
            Some(("", _)) => return None,
            Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
            _ => ("", text),
        };
        let scheme = scheme.to_ascii_lowercase();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let is_path = rest.starts_with('/') || text == "*";
        if !is_path && scheme.is_empty() {
            return None;
        }
        let (host, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (host_of(authority, &scheme)?, path)
            }
            // What follows another scheme, such as `mailto:`, has no parts.
            None => (String::new(), if is_path { rest } else { "" }),
        };
        let path = escaped(path)?;
        Some(Self {
            scheme,
            host,
            path,
            query: pairs(query),
        })
    }

    /// Returns the number of bytes of its parts, and of the names and values of its query.
    pub(super) fn size(&self) -> (usize, usize) {
        let query = || {
            self.query
                .iter()
                .flat_map(|(name, values)| values.iter().chain([name]))
        };
        let bytes: usize = query().map(String::len).sum();
        (
            self.scheme.len() + self.host.len() + self.path.len() + bytes,
            query().count(),
        )
    }

    /// Returns the host without its port and brackets, and the port.
    pub(super) fn host_and_port(&self) -> (&str, &str) {
        let (host, port) = match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (host, port),
            _ => (self.host.as_str(), ""),
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        (inner.unwrap_or(host), port)
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Returns the host with its port, decoded; `None` if it is none.
fn host_of(authority: &str, scheme: &str) -> Option<String> {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_user = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(is_user) || decoded(user).is_none() {
        return None;
    }
    let is_port = |port: &str| {
        port.is_empty()
            || port
                .strip_prefix(':')
                .is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
    };
    match host.rfind('[') {
        Some(0) => {
            let end = host.rfind(']').filter(|end| is_port(&host[end + 1..]))?;
            let address = host[1..end]
                .split_once("%25")
                .map_or(&host[1..end], |(address, _)| address);
            address.parse::<std::net::Ipv6Addr>().ok()?;
            return decoded(host);
        }
        Some(_) => return None,
        None => {}
    }
    // Only these are one host.
    let is_web = matches!(scheme, "http" | "https");
    let colon = if is_web { host.find(':') } else { host.rfind(':') };
    if !colon.is_none_or(|colon| is_port(&host[colon..])) {
        return None;
    }
    let is_host =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c);
    // ASCII is not encoded in a host.
    let encoded = host.match_indices('%').all(|(at, _)| {
        let first = host[at + 1..].chars().next().and_then(|digit| digit.to_digit(16));
        first.is_some_and(|first| first >= 8) || host[at..].starts_with("%25")
    });
    if !encoded || !host.chars().all(is_host) {
        return None;
    }
    decoded(host)
}

/// Returns a path as it is if it may be so, or escaped; `None` if it cannot be decoded.
fn escaped(path: &str) -> Option<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~$&+,/:;=@".contains(&b);
    let bytes = decoded_bytes(path)?;
    if path.bytes().all(|b| plain(b) || b"!'()*[]%".contains(&b)) {
        return Some(path.to_owned());
    }
    let mut escaped = String::new();
    for byte in bytes {
        if plain(byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    Some(escaped)
}

/// Returns the pairs of a query. What is wrong in it is left out.
fn pairs(query: &str) -> Vec<(String, Vec<String>)> {
    let mut pairs: Vec<(String, Vec<String>)> = Vec::new();
    for pair in query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
    {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let plain = |text: &str| decoded(&text.replace('+', " "));
        let (Some(name), Some(value)) = (plain(name), plain(value)) else {
            continue;
        };
        match pairs.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => pairs.push((name, vec![value])),
        }
    }
    pairs
}

fn decoded(text: &str) -> Option<String> {
    decoded_bytes(text).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn decoded_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        bytes.push(u8::try_from(16 * digit(0)? + digit(1)?).ok()?);
        rest = &rest[2..];
    }
    Some(bytes)
}

/// Parses an address. Kubernetes takes no zones, and no IPv4 addresses that are mapped to IPv6.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    let mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    (!mapped).then_some(address)
}

/// Parses a network, such as `10.0.0.0/8`.
pub(super) fn cidr(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let is_plain = length == "0" || !length.starts_with(['0', '+']);
    let length = length.parse().ok().filter(|_| is_plain)?;
    IpNet::new(ip(address)?, length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_written_in_one_way() {
        assert!(cidr("10.0.0.0/8").is_some() && cidr("0.0.0.0/0").is_some() && cidr("fd00::/8").is_some());
        for wrong in
            "10.0.0.0 10.0.0.0/ 10.0.0.0/33 10.0.0/8 ::ffff:1.2.3.4/120 10.0.0.0/08 10.0.0.0/+8".split(' ')
        {
            assert_eq!(cidr(wrong), None, "{wrong}");
        }
    }
}
