//! The addresses that no endpoint's name may lead to, unless its entry allows them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use operator_host_config::endpoints::Network;

/// Where clouds serve metadata, credentials among them, besides 169.254.169.254, which is of the link.
const METADATA: [IpAddr; 6] = [
    // Alibaba Cloud, Azure, Oracle Cloud, and by IPv6 AWS, Google Cloud and Oracle Cloud.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
];

/// Reports whether a connection to this address may be made. `reserved` are the addresses of the API server.
pub(crate) fn is_allowed(address: IpAddr, allowed: &[Network], reserved: &[IpAddr]) -> bool {
    allowed.iter().any(|network| network.contains(address)) || !is_refused(address, reserved)
}

fn is_refused(address: IpAddr, reserved: &[IpAddr]) -> bool {
    if METADATA.contains(&address) || reserved.contains(&address) {
        return true;
    }
    match address {
        // This host, its loopback, the link, multicast and what is reserved.
        IpAddr::V4(address) => matches!(address.octets(), [0 | 127 | 224.., ..] | [169, 254, ..]),
        IpAddr::V6(address) => {
            // `::` and `::1` are compatible with 0.0.0.0 and 0.0.0.1.
            let within = within(address).is_some_and(|address| is_refused(address.into(), reserved));
            within || address.is_multicast() || address.is_unicast_link_local()
        }
    }
}

/// Returns the address of IPv4 that one of IPv6 leads to: mapped, compatible, translated (NAT64) or by 6to4.
fn within(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let ([0, 0, 0, 0, 0, 0 | 0xffff, high, low]
    | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
    | [0x2002, high, low, ..]) = address.segments()
    else {
        return None;
    };
    Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_machine_the_link_metadata_and_the_api_server_are_refused() {
        let reserved = ["10.96.0.1".parse().unwrap()];
        let is_allowed = |text: &str| is_allowed(text.parse().unwrap(), &[], &reserved);
        let good = "10.96.0.2 192.168.1.1 93.184.216.34 fd12::1 2606:2800::1 ::ffff:10.1.2.3";
        for good in good.split(' ') {
            assert!(is_allowed(good), "{good}");
        }
        let of_v4 = "127.0.0.1 127.9.9.9 0.0.0.0 169.254.169.254 169.254.1.1 224.0.0.1 255.255.255.255 10.96.0.1 \
                     100.100.100.200 168.63.129.16";
        let of_v6 = "::1 :: fe80::1 ff02::1 fd00:ec2::254 ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 \
                     2002:7f00:1:: ::127.0.0.1 ::ffff:10.96.0.1";
        for bad in of_v4.split(' ').chain(of_v6.split(' ')) {
            assert!(!is_allowed(bad), "{bad}");
        }
    }
}
