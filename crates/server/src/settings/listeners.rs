//! Listeners: addresses, access and certificates.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use fabcache_protocol::Protocol;

use super::Settings;
use crate::addresses::{self, ListenAddress, ProtocolPrefix, Tls};
use crate::options::{ListenerTable, Options};

/// memcached's port.
const DEFAULT_PORT: u16 = 11211;

/// One listen address with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// The address and transport.
    pub place: ListenAddress,
    /// The protocol; none is picked by the first byte.
    pub protocol: Option<Protocol>,
    /// TLS.
    pub tls: Tls,
    /// Clients must authenticate, if authentication is enabled.
    pub auth: bool,
    /// Permissions of a Unix socket.
    pub mask: u32,
    /// A name.
    pub tag: Option<String>,
    /// The listener is implied by a default: it may fail on a host without that address family.
    pub implied: bool,
}

/// Certificates, and the requirements for client certificates.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Certificate chain, PEM.
    pub chain: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// Authorities for client certificates, PEM.
    pub authorities: Option<PathBuf>,
    /// 0 none, 1 requested, 2 and 3 required.
    pub verify_mode: u8,
    /// Nothing below TLS 1.3.
    pub only_1_3: bool,
}

impl Settings {
    pub(super) fn add_listeners(&mut self, options: &Options) -> Result<()> {
        let sockets_only =
            !options.unix_socket.is_empty() && options.port.is_none() && options.listen.is_empty();
        if sockets_only && options.listener.is_empty() && options.shm.unwrap_or(false) {
            self.warnings.push(format!(
                "-s turns TCP off, so only programs on this host reach the server: give -p {DEFAULT_PORT} to listen on TCP \
                 too, or -p 0 if that is meant"
            ));
        }
        let tables_only = !options.listener.is_empty() && options.port.is_none() && options.listen.is_empty();
        // As in memcached, -U alone names the port of both.
        let usual = options.udp_port.filter(|port| *port != 0).unwrap_or(DEFAULT_PORT.into());
        let default_port = if sockets_only || tables_only { 0 } else { usual };
        let tcp = port("-p", options.port.unwrap_or(default_port))?;
        let udp = port("-U", options.udp_port.unwrap_or(0))?;
        (self.port, self.udp_port) = (tcp.unwrap_or(0), udp.unwrap_or(0));
        let base = ListenerSettings {
            place: ListenAddress::Unix(PathBuf::new()),
            protocol: options.protocol.as_deref().map_or(Ok(None), addresses::protocol).context("-B")?,
            tls: if options.enable_ssl.unwrap_or(false) { Tls::On } else { Tls::Off },
            auth: true,
            mask: addresses::mask(options.unix_mask.as_deref().unwrap_or("700")).context("-a")?,
            tag: None,
            implied: false,
        };
        for path in &options.unix_socket {
            let place = ListenAddress::Unix(path.clone());
            self.listeners.push(ListenerSettings { place, tls: Tls::Off, ..base.clone() });
        }
        if options.listen.is_empty() {
            for (port, place) in
                [(tcp, ListenAddress::Tcp as fn(SocketAddr) -> ListenAddress), (udp, ListenAddress::Udp)]
            {
                for address in port.map(addresses::loopback).into_iter().flatten() {
                    self.listeners.push(ListenerSettings {
                        place: place(address),
                        implied: true,
                        ..base.clone()
                    });
                }
            }
        }
        for text in &options.listen {
            self.add_address(text, tcp, udp, &base).with_context(|| format!("-l {text}"))?;
        }
        for table in &options.listener {
            let added = self.add_table(table, tcp.unwrap_or(DEFAULT_PORT), &base);
            added.with_context(|| format!("in the listener {:?}", table.address))?;
        }
        let mut seen = BTreeSet::new();
        self.listeners.retain(|listener| match &listener.place {
            ListenAddress::Tcp(address) if address.port() != 0 => seen.insert((false, *address)),
            ListenAddress::Udp(address) if address.port() != 0 => seen.insert((true, *address)),
            _ => true,
        });
        if self.listeners.is_empty() {
            // memcached starts as well.
            let advice = "give a port (-p), an address (-l) or a Unix socket (-s)";
            self.warnings
                .push(format!("no client can connect, because there is nowhere to listen; {advice}"));
        }
        Ok(())
    }

    fn add_address(
        &mut self,
        text: &str,
        tcp: Option<u16>,
        udp: Option<u16>,
        base: &ListenerSettings,
    ) -> Result<()> {
        let (before, rest) = addresses::prefixes(text)?;
        let listener = ListenerSettings {
            protocol: match before.protocol {
                ProtocolPrefix::Absent => base.protocol,
                ProtocolPrefix::Auto => None,
                ProtocolPrefix::Only(protocol) => Some(protocol),
            },
            tls: before.tls.unwrap_or(base.tls),
            auth: !before.no_auth,
            tag: before.tag,
            ..base.clone()
        };
        // An address with a port listens there even if -p is 0.
        for address in addresses::resolve(rest, tcp.unwrap_or(0))? {
            let named = address.port() != tcp.unwrap_or(0);
            // A wildcard or a name may fail in one address family on a host that has only the other.
            let implied = rest.starts_with('*') || rest.starts_with("localhost");
            if tcp.is_some() || named {
                self.listeners.push(ListenerSettings {
                    place: ListenAddress::Tcp(address),
                    implied,
                    ..listener.clone()
                });
            }
        }
        if let Some(udp) = udp {
            for mut address in addresses::resolve(rest, udp)? {
                address.set_port(udp);
                let implied = rest.starts_with('*') || rest.starts_with("localhost");
                self.listeners.push(ListenerSettings {
                    place: ListenAddress::Udp(address),
                    implied,
                    tls: Tls::Off,
                    ..listener.clone()
                });
            }
        }
        Ok(())
    }

    fn add_table(&mut self, table: &ListenerTable, port: u16, base: &ListenerSettings) -> Result<()> {
        let listener = ListenerSettings {
            protocol: table.protocol.as_deref().map_or(Ok(base.protocol), addresses::protocol)?,
            tls: match table.tls.as_deref() {
                None => base.tls,
                Some("off") => Tls::Off,
                Some("on") => Tls::On,
                Some("mutual") => Tls::Mutual,
                Some(other) => {
                    bail!("tls = {other:?} is not off, on or mutual")
                }
            },
            auth: table.auth.unwrap_or(true),
            mask: table.mask.as_deref().map_or(Ok(base.mask), addresses::mask)?,
            tag: table.tag.as_deref().map(addresses::tag).transpose()?,
            ..base.clone()
        };
        for place in addresses::url(&table.address, port)? {
            let tls = match place {
                ListenAddress::Udp(_) => Tls::Off,
                // TLS on a Unix socket only on request.
                ListenAddress::Unix(_) if table.tls.is_none() => Tls::Off,
                _ => listener.tls,
            };
            self.listeners.push(ListenerSettings { place, tls, ..listener.clone() });
        }
        Ok(())
    }

    /// No protocol may bypass authentication.
    pub(super) fn check_authentication(&mut self) -> Result<()> {
        if self.auth_file.is_none() && !self.sasl {
            return Ok(());
        }
        let (text, binary) = (self.auth_file.is_some(), self.sasl);
        for listener in self.listeners.iter_mut().filter(|listener| listener.auth) {
            if matches!(listener.place, ListenAddress::Udp(_)) {
                bail!("UDP clients cannot authenticate: leave out -U, or exempt the address with noauth:");
            }
            let allowed = match (text, binary, listener.protocol) {
                (true, true, wanted) => wanted,
                (true, false, Some(Protocol::Binary)) => {
                    bail!("-Y authenticates text clients only; for binary ones give -S")
                }
                (false, true, Some(Protocol::Text)) => {
                    bail!("-S authenticates binary clients only; for text ones give -Y")
                }
                (true, false, _) => Some(Protocol::Text),
                _ => Some(Protocol::Binary),
            };
            listener.protocol = allowed;
        }
        Ok(())
    }

    pub(super) fn add_tls(&mut self, options: &Options) -> Result<()> {
        let has_tls = self.listeners.iter().any(|listener| listener.tls != Tls::Off);
        let has_mutual = self.listeners.iter().any(|listener| listener.tls == Tls::Mutual);
        if !has_tls {
            if options.enable_ssl.unwrap_or(false) {
                self.warnings.push("-Z is on, but no listener has TLS".to_owned());
            }
            return Ok(());
        }
        let extended = &self.extended;
        let (Some(chain), Some(key)) = (extended.ssl_chain_cert.clone(), extended.ssl_key.clone()) else {
            bail!("TLS needs a certificate and its key: -o ssl_chain_cert=FILE,ssl_key=FILE");
        };
        if (has_mutual || extended.ssl_verify_mode > 0) && extended.ssl_ca_cert.is_none() {
            bail!("client certificates are checked against -o ssl_ca_cert=FILE, which is missing");
        }
        if extended.ssl_min_version.is_some_and(|version| version < 2) {
            self.warnings
                .push("ssl_min_version: TLS 1.0 and 1.1 are not supported; 1.2 is the minimum".to_owned());
        }
        self.tls = Some(TlsSettings {
            chain,
            key,
            authorities: extended.ssl_ca_cert.clone(),
            verify_mode: extended.ssl_verify_mode,
            only_1_3: extended.ssl_min_version == Some(3),
        });
        Ok(())
    }
}

fn port(option: &str, number: i32) -> Result<Option<u16>> {
    match number {
        0 => Ok(None),
        // The system picks one.
        -1 => Ok(Some(0)),
        _ => u16::try_from(number).ok().map(Some).with_context(|| {
            format!("{option} takes a port from 1 to 65535, 0 for none or -1 for any; not {number}")
        }),
    }
}
