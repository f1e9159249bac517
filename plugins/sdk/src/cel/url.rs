//! URLs and networks, as the libraries of Kubernetes see them.

use std::net::IpAddr;

/// The parts of an absolute URL, or of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) scheme: String,
    /// With the port.
    pub(super) host: String,
    pub(super) path: String,
    /// Each name with its values in order.
    pub(super) query: Vec<(String, Vec<String>)>,
}

impl Url {
    /// Parses an absolute URL or an absolute path.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.contains(|c: char| c.is_ascii_control() || c == ' ') {
            return None;
        }
        let (text, _fragment) = text.split_once('#').unwrap_or((text, ""));
        let (text, query) = text.split_once('?').unwrap_or((text, ""));
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if !text.starts_with('/') => (scheme, rest),
            _ if text.starts_with('/') => ("", text),
            _ => return None,
        };
        let mut letters = scheme.chars();
        let is_scheme = letters.next().is_none_or(|first| first.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !is_scheme || (text.starts_with(':')) {
            return None;
        }
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let port = match host.rsplit_once(']') {
            Some((_, port)) => port.strip_prefix(':'),
            None => host.split_once(':').map(|(_, port)| port),
        };
        if port.is_some_and(|port| !port.bytes().all(|b| b.is_ascii_digit()))
            || host.starts_with('[') != host.contains(']')
        {
            return None;
        }
        let mut pairs: Vec<(String, Vec<String>)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (
                decoded(&name.replace('+', " "))?,
                decoded(&value.replace('+', " "))?,
            );
            match pairs.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => pairs.push((name, vec![value])),
            }
        }
        decoded(path)?;
        Some(Self {
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            path: path.to_owned(),
            query: pairs,
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
        let (host, port) = match self.host.rsplit_once(']') {
            Some((host, port)) => (host.trim_start_matches('['), port.trim_start_matches(':')),
            None => self.host.split_once(':').unwrap_or((&self.host, "")),
        };
        (host, port)
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses an address. Kubernetes takes no zones, and no IPv4 addresses that are mapped to IPv6.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    let mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    (!mapped).then_some(address)
}

/// Parses a network, such as `10.0.0.0/8`.
pub(super) fn cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = ip(address)?;
    let is_plain = length == "0" || (!length.starts_with(['0', '+']) && !length.is_empty());
    let length: u8 = length.parse().ok().filter(|_| is_plain)?;
    (length <= width(address)).then_some((address, length))
}

pub(super) const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Returns the first address of a network.
pub(super) fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or_default();
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or_default();
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

/// Reports whether a network contains another one.
pub(super) fn contains(outer: (IpAddr, u8), inner: (IpAddr, u8)) -> bool {
    outer.0.is_ipv4() == inner.0.is_ipv4()
        && outer.1 <= inner.1
        && masked(outer.0, outer.1) == masked(inner.0, outer.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_url_are_found() {
        let url = Url::parse("https://u:p@Example.com:8443/a%20b?x=1&x=2&y=%26#z").unwrap();
        assert_eq!((url.scheme.as_str(), url.path.as_str()), ("https", "/a%20b"));
        assert_eq!(url.host_and_port(), ("Example.com", "8443"));
        assert_eq!(
            url.query,
            [
                ("x".into(), vec!["1".into(), "2".into()]),
                ("y".into(), vec!["&".into()])
            ]
        );
        assert_eq!(
            Url::parse("http://[::1]:80/").unwrap().host_and_port(),
            ("::1", "80")
        );
        for wrong in ["", "a", "https://a b", "https://a:b/", "1:a", "/%zz", "://a"] {
            assert_eq!(Url::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn networks_contain_their_addresses() {
        let net = |text: &str| cidr(text).unwrap();
        assert!(
            contains(net("10.0.0.0/8"), net("10.1.2.3/32")) && contains(net("0.0.0.0/0"), net("1.2.3.4/32"))
        );
        assert!(
            !contains(net("10.0.0.0/8"), net("11.0.0.0/8"))
                && !contains(net("10.0.0.0/16"), net("10.0.0.0/8"))
        );
        assert!(contains(net("fd00::/8"), net("fd12::1/128")));
        for wrong in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "::ffff:1.2.3.4/120",
            "10.0.0.0/08",
            "10.0.0.0/+8",
        ] {
            assert_eq!(cidr(wrong), None, "{wrong}");
        }
    }
}
