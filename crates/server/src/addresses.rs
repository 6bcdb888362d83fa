//! Listen addresses, as written on the command line and in the configuration file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use fabcache_protocol::Protocol;

/// TLS on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// No transport.
    Off,
    /// The server shows a certificate; clients do as `ssl_verify_mode` says.
    On,
    /// Clients must show a valid certificate.
    Mutual,
}

/// What arrives where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP connections.
    Tcp(SocketAddr),
    /// UDP datagrams.
    Udp(SocketAddr),
    /// Connections to a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The address, if TCP connections arrive there.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Udp(_) | ListenAddress::Unix(_) => None,
        }
    }
}

/// The protocol that an option before an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ProtocolPrefix {
    /// There is no such option.
    #[default]
    Absent,
    /// Each connection's first byte decides.
    Auto,
    /// Only this one.
    Only(Protocol),
}

/// The options that may precede an address.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Prefixes {
    /// `notls:`, `btls:`, `mtls:`.
    pub tls: Option<Tls>,
    /// `proto[…]:`.
    pub protocol: ProtocolPrefix,
    /// `noauth:`.
    pub no_auth: bool,
    /// `tag[…]:` or `tag_…_:`.
    pub tag: Option<String>,
}

/// Takes the options off the front of an address.
pub fn prefixes(mut address: &str) -> Result<(Prefixes, &str)> {
    let mut found = Prefixes::default();
    loop {
        let tls = [("notls:", Tls::Off), ("btls:", Tls::On), ("mtls:", Tls::Mutual)];
        if let Some((rest, tls)) = tls.iter().find_map(|(word, tls)| Some((address.strip_prefix(word)?, tls)))
        {
            (found.tls, address) = (Some(*tls), rest);
        } else if let Some(rest) = address.strip_prefix("noauth:") {
            (found.no_auth, address) = (true, rest);
        } else if let Some(rest) = address.strip_prefix("proto[") {
            let (word, rest) =
                rest.split_once("]:").with_context(|| format!("proto[ without ]: in {address:?}"))?;
            let named = protocol(word)?.map_or(ProtocolPrefix::Auto, ProtocolPrefix::Only);
            (found.protocol, address) = (named, rest);
        } else if let Some(rest) = address.strip_prefix("tag[") {
            let (word, rest) =
                rest.split_once("]:").with_context(|| format!("tag[ without ]: in {address:?}"))?;
            (found.tag, address) = (Some(tag(word)?), rest);
        } else if let Some(rest) = address.strip_prefix("tag_") {
            let (word, rest) =
                rest.split_once("_:").with_context(|| format!("tag_ without _: in {address:?}"))?;
            (found.tag, address) = (Some(tag(word)?), rest);
        } else {
            return Ok((found, address));
        }
    }
}

/// Checks a listener's tag.
pub fn tag(word: &str) -> Result<String> {
    if (1..=8).contains(&word.len()) {
        Ok(word.to_owned())
    } else {
        bail!("a listener's tag has 1 to 8 characters, not {:?}", word)
    }
}

/// Reads a protocol's name; none is auto.
pub fn protocol(word: &str) -> Result<Option<Protocol>> {
    match word {
        "auto" | "negotiating" => Ok(None),
        "ascii" => Ok(Some(Protocol::Text)),
        "binary" => Ok(Some(Protocol::Binary)),
        "proxy" => bail!("the protocol proxy is not supported: there is no proxy"),
        _ => bail!("{word:?} is no protocol; there are auto, ascii and binary"),
    }
}

/// Finds the addresses that `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT` or `*` mean. Of an address that says no port
/// the port is `default_port`.
pub fn resolve(text: &str, default_port: u16) -> Result<Vec<SocketAddr>> {
    let (host, port) = split(text)?;
    let port = port.unwrap_or(default_port);
    if host == "*" {
        return Ok(vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]);
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let found = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve the address {text:?} to listen on"))?;
    let mut addresses: Vec<_> = found.collect();
    addresses.dedup();
    if addresses.is_empty() {
        Err(anyhow!("the name {host:?} has no address to listen on"))
    } else {
        Ok(addresses)
    }
}

fn split(text: &str) -> Result<(&str, Option<u16>)> {
    let port = |word: &str| {
        let port = word.parse().ok().map(Some);
        port.with_context(|| format!("{word:?} is no port from 0 to 65535, in the address {text:?}"))
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) =
            rest.split_once(']').with_context(|| format!("[ without ] in the address {text:?}"))?;
        return match rest.strip_prefix(':') {
            Some(word) => Ok((host, port(word)?)),
            None if rest.is_empty() => Ok((host, None)),
            None => bail!("{rest:?} after ] in the address {text:?}"),
        };
    }
    match text.split_once(':') {
        // More than one colon is an IPv6 address without a port.
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, word)) => Ok((host, port(word)?)),
        None if text.is_empty() => bail!("an empty address to listen on"),
        None => Ok((text, None)),
    }
}

/// Reads a URL of the configuration file.
pub fn url(text: &str, default_port: u16) -> Result<Vec<ListenAddress>> {
    if let Some(path) = text.strip_prefix("unix://") {
        return Ok(vec![ListenAddress::Unix(PathBuf::from(path))]);
    }
    if let Some(rest) = text.strip_prefix("tcp://") {
        return Ok(resolve(rest, default_port)?.into_iter().map(ListenAddress::Tcp).collect());
    }
    if let Some(rest) = text.strip_prefix("udp://") {
        return Ok(resolve(rest, default_port)?.into_iter().map(ListenAddress::Udp).collect());
    }
    bail!("the listener's address {text:?} starts with none of tcp://, udp:// and unix://")
}

/// Reads the permissions of a Unix socket.
pub fn mask(text: &str) -> Result<u32> {
    let parsed = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    parsed.with_context(|| format!("{text:?} are no permissions; give them in octal, as 700"))
}

/// The loopback addresses, on which the server listens by default.
pub fn loopback(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_parse() {
        let of = |text| {
            resolve(text, 11211).map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of("127.0.0.1").expect("valid"), ["127.0.0.1:11211"]);
        assert_eq!(of("127.0.0.1:5").expect("valid"), ["127.0.0.1:5"]);
        assert_eq!(of("::1").expect("valid"), ["[::1]:11211"]);
        assert_eq!(of("[::1]:7").expect("valid"), ["[::1]:7"]);
        assert_eq!(of("*:9").expect("valid"), ["0.0.0.0:9", "[::]:9"]);
        assert!(of("localhost").expect("valid").contains(&"127.0.0.1:11211".to_owned()));
        for wrong in ["", "127.0.0.1:x", "[::1", "[::1]x", "127.0.0.1:99999", "no.such.host.invalid"] {
            let error = of(wrong).expect_err(wrong).to_string();
            assert!(error.contains("address"), "{error}");
        }
    }

    #[test]
    fn options_before_an_address_parse() {
        let (found, rest) = prefixes("notls:proto[binary]:tag[web]:noauth:[::1]:5").expect("valid");
        assert_eq!(rest, "[::1]:5");
        assert_eq!(
            (found.tls, found.protocol, found.no_auth),
            (Some(Tls::Off), ProtocolPrefix::Only(Protocol::Binary), true)
        );
        assert_eq!(found.tag.as_deref(), Some("web"));
        assert_eq!(prefixes("tag_b_:h").expect("valid").0.tag.as_deref(), Some("b"));
        assert_eq!(prefixes("127.0.0.1").expect("valid"), (Prefixes::default(), "127.0.0.1"));
        for wrong in ["proto[x]:h", "proto[ascii", "tag[123456789]:h", "tag[]:h"] {
            prefixes(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn urls_and_permission_masks_parse() {
        assert_eq!(url("unix:///run/x", 1).expect("valid"), [ListenAddress::Unix("/run/x".into())]);
        assert_eq!(
            url("udp://127.0.0.1", 1).expect("valid"),
            [ListenAddress::Udp(([127, 0, 0, 1], 1).into())]
        );
        assert!(url("127.0.0.1", 1).is_err());
        assert_eq!(mask("0750").expect("valid"), 0o750);
        assert!(mask("9").is_err() && mask("1777").is_err());
    }

    /// Words of the grammar and others, so that generated addresses are often nearly valid.
    fn nearly_an_address() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("notls:"),
            Just("noauth:"),
            Just("proto["),
            Just("tag["),
            Just("tag_"),
            Just("]:"),
            Just("_:"),
            Just("ascii"),
            Just("["),
            Just("]"),
            Just(":"),
            Just("::1"),
            Just("127.0.0.1"),
            Just("*"),
            Just("11211"),
            Just("é"),
        ];
        let words = prop::collection::vec(word, 0..8).prop_map(|words| words.concat());
        prop_oneof![words, any::<String>()]
    }

    fn some_prefixes() -> impl Strategy<Value = Prefixes> {
        let tls = prop::option::of(prop_oneof![Just(Tls::Off), Just(Tls::On), Just(Tls::Mutual)]);
        let protocol = prop_oneof![
            Just(ProtocolPrefix::Absent),
            Just(ProtocolPrefix::Auto),
            Just(ProtocolPrefix::Only(Protocol::Text)),
            Just(ProtocolPrefix::Only(Protocol::Binary)),
        ];
        let tag = prop::option::of("[a-z0-9-]{1,8}");
        (tls, protocol, any::<bool>(), tag).prop_map(|(tls, protocol, no_auth, tag)| Prefixes {
            tls,
            protocol,
            no_auth,
            tag,
        })
    }

    fn shown(prefixes: &Prefixes) -> String {
        let tls = prefixes.tls.map(|tls| match tls {
            Tls::Off => "notls:",
            Tls::On => "btls:",
            Tls::Mutual => "mtls:",
        });
        let protocol = match prefixes.protocol {
            ProtocolPrefix::Absent => None,
            ProtocolPrefix::Auto => Some("proto[auto]:"),
            ProtocolPrefix::Only(Protocol::Text) => Some("proto[ascii]:"),
            ProtocolPrefix::Only(Protocol::Binary) => Some("proto[binary]:"),
        };
        let auth = prefixes.no_auth.then_some("noauth:");
        let tag = prefixes.tag.as_ref().map(|tag| format!("tag[{tag}]:"));
        [tls, protocol, auth, tag.as_deref()].into_iter().flatten().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_parses_or_is_rejected(text in nearly_an_address()) {
            if let Ok((_, rest)) = prefixes(&text) {
                prop_assert!(text.ends_with(rest));
            }
            if let Ok((host, _)) = split(&text) {
                prop_assert!(text.contains(host));
            }
            let _ = (tag(&text), protocol(&text), mask(&text));
            prop_assert_eq!(url(&format!("unix://{text}"), 1).expect("any path"), [ListenAddress::Unix(text.into())]);
        }

        #[test]
        fn displayed_addresses_parse_again(ip: IpAddr, port: u16, other: u16) {
            let address = SocketAddr::new(ip, port);
            prop_assert_eq!(resolve(&address.to_string(), other).expect("an address"), [address]);
            prop_assert_eq!(resolve(&ip.to_string(), port).expect("an address"), [address]);
            prop_assert_eq!(url(&format!("tcp://{address}"), other).expect("a URL"), [ListenAddress::Tcp(address)]);
            prop_assert_eq!(url(&format!("udp://{address}"), other).expect("a URL"), [ListenAddress::Udp(address)]);
        }

        #[test]
        fn displayed_option_prefixes_parse_again(wanted in some_prefixes(), ip: IpAddr) {
            let text = format!("{}{ip}", shown(&wanted));
            let (read, rest) = prefixes(&text).expect("they are right");
            prop_assert_eq!((read, rest.parse().ok()), (wanted, Some(ip)));
        }

        #[test]
        fn displayed_permissions_parse_again(wanted in 0u32..=0o777) {
            prop_assert_eq!(mask(&format!("{wanted:o}")).expect("they are right"), wanted);
        }
    }
}
