//! Networks of clients, in CIDR notation, and this host's own addresses.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Context, Error, bail};
use nix::ifaddrs::getifaddrs;

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix: u32,
}

impl Network {
    /// Returns whether it contains the address. An IPv4 address in IPv6 notation is an IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.first.is_ipv4() && masked(address, self.prefix) == self.first
    }

    /// Its addresses can reach one that is listened on: both of IP's same version, and neither or both this host's alone.
    pub fn reaches(&self, listening: IpAddr) -> bool {
        let listening = listening.to_canonical();
        listening.is_ipv4() == self.first.is_ipv4()
            && (listening.is_unspecified() || self.is_loopback() || !listening.is_loopback())
    }

    /// Only a host itself has addresses in it.
    pub fn is_loopback(&self) -> bool {
        self.first.is_loopback()
            && (self.first.is_ipv6() && self.prefix == 128 || self.first.is_ipv4() && self.prefix >= 8)
    }
}

impl FromStr for Network {
    type Err = Error;

    /// Parses an address, optionally followed by a slash and a prefix length.
    fn from_str(text: &str) -> Result<Network, Error> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(at, prefix)| (at, Some(prefix)));
        let address = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        let address: IpAddr = address.parse().ok().with_context(|| {
            format!("{text:?} is no network: it takes an address such as 10.1.2.3 or fd00::1, or 10.1.0.0/16")
        })?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix =
            match prefix {
                None => bits,
                Some(prefix) => prefix.parse().ok().filter(|length| *length <= bits).with_context(|| {
                    format!("{text:?} is no network: it takes a prefix of 0 to {bits} bits")
                })?,
            };
        let (address, prefix) = match address.to_canonical() {
            short @ IpAddr::V4(_) if bits == 128 && prefix >= 96 => (short, prefix - 96),
            _ => (address, prefix),
        };
        let first = masked(address, prefix);
        if first != address {
            bail!("{text:?} has bits after its prefix: write {first}/{prefix} for the network, or {address}");
        }
        Ok(Network { first, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// Returns the address with all bits after the prefix cleared.
fn masked(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

/// Returns whether the address currently belongs to this host: a connection from it is local.
///
/// # Errors
/// The system does not report its addresses.
pub fn is_own(address: IpAddr) -> io::Result<bool> {
    let address = address.to_canonical();
    if address.is_loopback() {
        return Ok(true);
    }
    let own = getifaddrs()?.filter_map(|interface| interface.address).filter_map(|at| {
        let v4 = at.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        v4.or_else(|| at.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
    });
    Ok(own.into_iter().any(|own| own == address))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error:#}"))
    }

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        for (text, inside, outside) in [
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("10.1.0.0/16", "10.1.255.7", "10.2.0.0"),
            ("10.1.0.0/16", "::ffff:10.1.0.1", "::ffff:10.0.0.1"),
            ("0.0.0.0/0", "255.1.2.3", "fd00::1"),
            ("::/0", "fd00::1", "10.1.2.3"),
            ("fd00:1::/32", "fd00:1:ffff::9", "fd00:2::"),
            ("[fd00::1]", "fd00::1", "fd00::2"),
            ("::ffff:10.1.0.0/112", "10.1.0.9", "10.2.0.0"),
            ("10.1.2.2/31", "10.1.2.3", "10.1.2.4"),
        ] {
            let is_in = |address: &str| network(text).contains(address.parse().expect("an address"));
            assert!(is_in(inside) && !is_in(outside), "{text}");
        }
        assert_eq!(network("10.1.0.0/16").to_string(), "10.1.0.0/16");
    }

    #[test]
    fn loopback_does_not_contain_other_hosts() {
        for (text, reached, unreached) in [
            ("10.1.0.0/16", "10.1.0.5", "127.0.0.1"),
            ("10.1.0.0/16", "192.0.2.5", "fd00::5"),
            ("10.1.0.0/16", "0.0.0.0", "::"),
            ("fd00::/64", "::", "::1"),
            ("0.0.0.0/0", "10.1.0.5", "127.0.0.1"),
            ("127.0.0.0/8", "127.0.0.1", "::1"),
            ("10.1.2.3", "::ffff:10.1.0.5", "::ffff:127.0.0.1"),
        ] {
            let reaches = |address: &str| network(text).reaches(address.parse().expect("an address"));
            assert!(reaches(reached) && !reaches(unreached), "{text}");
        }
    }

    #[test]
    fn invalid_networks_are_rejected() {
        for (wrong, needle) in [
            ("", "no network"),
            ("host", "\"host\""),
            ("10.1.2", "no network"),
            ("10.1.0.0/33", "0 to 32 bits"),
            ("fd00::/129", "0 to 128 bits"),
            ("10.1.0.0/", "0 to 32 bits"),
            ("10.1.0.0/-1", "0 to 32 bits"),
            ("10.1.2.3/16", "write 10.1.0.0/16 for the network"),
        ] {
            let error = format!("{:#}", wrong.parse::<Network>().expect_err(wrong));
            assert!(error.contains(needle), "{wrong}: {error}");
        }
    }

    #[test]
    fn local_addresses_belong_to_this_host() {
        for own in ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"] {
            assert!(is_own(own.parse().expect("an address")).expect("the system tells"), "{own}");
        }
        // Documentation addresses (RFC 5737, RFC 3849), which no host has.
        for other in ["192.0.2.1", "2001:db8::1"] {
            assert!(!is_own(other.parse().expect("an address")).expect("the system tells"), "{other}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_parses_or_is_rejected(text: String) {
            if let Ok(network) = text.parse::<Network>() {
                prop_assert!(network.contains(network.first));
            }
        }

        #[test]
        fn prefixes_are_compared_bit_by_bit(address: u32, other: u32, wide: u128, wider: u128, v4 in 0u32..=32, v6 in 0u32..=128) {
            let first = masked(Ipv4Addr::from(address).into(), v4);
            let network: Network = format!("{first}/{v4}").parse().expect("no bits after the prefix");
            let is_alike = (0..v4).all(|bit| (address ^ other) >> (31 - bit) & 1 == 0);
            prop_assert_eq!(network.contains(Ipv4Addr::from(other).into()), is_alike);
            prop_assert!(network.contains(Ipv4Addr::from(address).into()));
            let at = IpAddr::from(Ipv6Addr::from(wide));
            if at == at.to_canonical() {
                let network: Network = format!("{}/{v6}", masked(at, v6)).parse().expect("as above");
                prop_assert!(network.contains(at));
                let is_alike = (0..v6).all(|bit| (wide ^ wider) >> (127 - bit) & 1 == 0);
                let other = IpAddr::from(Ipv6Addr::from(wider));
                prop_assert_eq!(network.contains(other), is_alike && other == other.to_canonical());
            }
        }
    }
}
