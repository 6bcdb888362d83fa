//! Server addresses.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// memcached's port, and that of an address without one.
pub const DEFAULT_PORT: u16 = 11211;

/// A server's address, and its share of the keys.
///
/// Written `tcp://HOST:PORT`, `HOST:PORT`, `HOST`, `fab://HOST:PORT` or `unix:///PATH`, optionally followed by
/// `?weight=N`. The scheme is case-insensitive (RFC 3986, 3.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The transport and its address.
    pub place: ServerEndpoint,
    /// Its share of the keys relative to other servers, where the distribution uses weights; default 1.
    pub weight: u32,
}

/// A transport and its address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerEndpoint {
    /// TCP.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// The fabric, negotiated over TCP.
    Fabric {
        /// Name or address.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid server address {address:?}: {why}")]
pub struct AddressError {
    /// The given text.
    pub address: String,
    /// Why it is invalid.
    pub why: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = |why| AddressError { address: text.into(), why };
        let (place, query) = text.split_once('?').map_or((text, None), |(place, query)| (place, Some(query)));
        let weight = match query.map(|query| query.strip_prefix("weight=").map(str::parse)) {
            None => 1,
            Some(Some(Ok(weight))) if weight > 0 => weight,
            Some(_) => return Err(wrong("what may follow a ? is weight=N, N at least 1")),
        };
        if let Some(path) = behind(place, "unix://") {
            if !path.starts_with('/') {
                return Err(wrong("a Unix socket has an absolute path: unix:///run/fabcached.sock"));
            }
            return Ok(Address { place: ServerEndpoint::Unix(path.into()), weight });
        }
        let (by_fabric, place) = match behind(place, "fab://") {
            Some(place) => (true, place),
            None => (false, behind(place, "tcp://").unwrap_or(place)),
        };
        if place.contains("://") {
            return Err(wrong("the schemes are tcp://, fab:// and unix://"));
        }
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or(wrong("after ] comes :PORT"))?)),
            None => match place.split_once(':') {
                // More than one colon: an IPv6 address without brackets, and without a port.
                Some((_, rest)) if rest.contains(':') => (place, None),
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = match port.map(str::parse) {
            None => DEFAULT_PORT,
            Some(Ok(port)) if port > 0 => port,
            Some(_) => return Err(wrong("a port is a number from 1 to 65535")),
        };
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        if host.contains('/') {
            return Err(wrong("a host name has no slash; a Unix socket is unix:///run/fabcached.sock"));
        }
        // An interface name may follow a %.
        let address = host.split_once('%').map_or(host, |(address, _)| address);
        if host.contains(':') && address.parse::<Ipv6Addr>().is_err() {
            return Err(wrong(
                "what has a colon before :PORT is an IPv6 address, or tcp://, fab:// or unix://",
            ));
        }
        let host = host.into();
        let place = if by_fabric {
            ServerEndpoint::Fabric { host, port }
        } else {
            ServerEndpoint::Tcp { host, port }
        };
        Ok(Address { place, weight })
    }
}

/// Returns what follows a scheme, which is case-insensitive.
fn behind<'t>(text: &'t str, scheme: &str) -> Option<&'t str> {
    let (before, behind) = text.split_at_checked(scheme.len())?;
    before.eq_ignore_ascii_case(scheme).then_some(behind)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (way, host, port) = match &self.place {
            ServerEndpoint::Tcp { host, port } => ("tcp", host, port),
            ServerEndpoint::Fabric { host, port } => ("fab", host, port),
            ServerEndpoint::Unix(path) => {
                write!(f, "unix://{}", path.display())?;
                return self.fmt_weight(f);
            }
        };
        if host.contains(':') {
            write!(f, "{way}://[{host}]:{port}")?;
        } else {
            write!(f, "{way}://{host}:{port}")?;
        }
        self.fmt_weight(f)
    }
}

impl Address {
    fn fmt_weight(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.weight == 1 { Ok(()) } else { write!(f, "?weight={}", self.weight) }
    }

    /// The host and port that libmemcached would use for the server. A Unix socket's host is its path, its port 0.
    /// The transport makes no difference.
    pub(crate) fn host_and_port(&self) -> (Cow<'_, str>, u16) {
        match &self.place {
            ServerEndpoint::Tcp { host, port } | ServerEndpoint::Fabric { host, port } => {
                (host.into(), *port)
            }
            ServerEndpoint::Unix(path) => (path.to_string_lossy(), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_display() {
        for (text, written, host, port) in [
            ("localhost", "tcp://localhost:11211", "localhost", 11211),
            ("tcp://h:1", "tcp://h:1", "h", 1),
            ("h:11211?weight=3", "tcp://h:11211?weight=3", "h", 11211),
            ("[::1]:5", "tcp://[::1]:5", "::1", 5),
            ("::1", "tcp://[::1]:11211", "::1", 11211),
            ("unix:///tmp/s", "unix:///tmp/s", "/tmp/s", 0),
            ("fab://h", "fab://h:11211", "h", 11211),
            ("fab://[::1]:5?weight=2", "fab://[::1]:5?weight=2", "::1", 5),
            ("fe80::1%eth0", "tcp://[fe80::1%eth0]:11211", "fe80::1%eth0", 11211),
            ("FAB://H:3", "fab://H:3", "H", 3),
            ("Tcp://h:1", "tcp://h:1", "h", 1),
            ("Unix:///tmp/S", "unix:///tmp/S", "/tmp/S", 0),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), written);
            assert_eq!(address.host_and_port(), (host.into(), port));
            assert_eq!(written.parse::<Address>().expect(written), address);
        }
        for wrong in [
            "",
            "h:0",
            "h:70000",
            "h:x",
            "unix://s",
            "ftp://h",
            "[::1]5",
            "h?weight=0",
            "h?w=1",
            ":1",
            "/s",
            "fab://",
            "FAB://",
            "fáb://h",
            "fab://tcp://h",
            "fab:h:1",
            "fab:h:1?weight=2",
            "tcp://[h:1]:2",
            "tcp://1::2::3",
        ] {
            let error = wrong.parse::<Address>().expect_err(wrong).to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
