//! Connecting to a server: protocol detection, authentication, and the upgrade to shared memory or the fabric.

use std::io;
use std::sync::MutexGuard;
use std::time::Instant;

use fabcache_distribution::ServerEndpoint;

use super::Server;
use crate::bounds::HANG_UPS_MAX;
use crate::error::{AttachError, Failure};
use crate::fabric::{self, RemoteReader};
use crate::item::Transport;
use crate::message::Encoding;
use crate::meta::refusal;
use crate::options::{Credentials, Protocol, SharedMemory};
use crate::packet::AdminCommand;
use crate::shm::{self, Attached};
use crate::socket::{Socket, request_line, request_packet};
use crate::stream::Stream;

/// The result of asking for shared memory or the fabric.
enum Upgrade {
    /// Use this stream, mostly with packets.
    Other(Transport, Box<dyn Stream>),
    /// Keep the socket.
    Socket(Transport),
    /// Use this socket instead.
    Another(Transport, Socket),
}

impl Server {
    pub(super) fn connect(&self) -> Result<Box<dyn Stream>, Failure> {
        let deadline = Instant::now() + self.connect_timeout;
        let known = match self.protocol {
            Protocol::Auto => self.state().encoding,
            Protocol::Meta => Some(Encoding::Meta),
            Protocol::Binary => Some(Encoding::Binary),
            Protocol::Text => Some(Encoding::Text),
        };
        let stream = match known {
            Some(encoding) => self.connect_in(encoding, deadline),
            None => self.find_out(deadline),
        };
        stream
            .map_err(|failure| match failure {
                Failure::Refused(why) => Failure::Rejected(why),
                other => other,
            })
            .inspect_err(|failure| self.note(Err(failure)))
    }

    fn connect_in(&self, encoding: Encoding, deadline: Instant) -> Result<Box<dyn Stream>, Failure> {
        let socket = self.socket(encoding, deadline)?;
        match self.upgrade(&socket, deadline)? {
            Upgrade::Other(transport, stream) => Ok(self.connected(transport, stream)),
            Upgrade::Socket(transport) => Ok(self.connected(transport, Box::new(socket))),
            Upgrade::Another(transport, socket) => Ok(self.connected(transport, Box::new(socket))),
        }
    }

    /// Connects, and detects the server's protocol.
    fn find_out(&self, deadline: Instant) -> Result<Box<dyn Stream>, Failure> {
        for _ in 0..HANG_UPS_MAX {
            let mut deadline = deadline;
            let mut socket = self.socket(Encoding::Meta, deadline)?;
            let way = self.upgrade(&socket, deadline);
            // Only a hang-up means that the next connection may succeed.
            let hung_up = |failure: &Failure| failure.is_hang_up() && !self.requires_upgrade();
            let transport = match way {
                Ok(Upgrade::Other(transport, stream)) => {
                    self.state().encoding = Some(Encoding::Meta);
                    return Ok(self.connected(transport, stream));
                }
                Ok(Upgrade::Socket(transport)) => Ok(transport),
                Ok(Upgrade::Another(transport, another)) => {
                    (socket, deadline) = (another, Instant::now() + self.connect_timeout);
                    Ok(transport)
                }
                Err(failure) => Err(failure),
            };
            let requested = transport.and_then(|transport| {
                request_line(&socket.socket, "mn\r\n", deadline).map(|(line, _)| (line, transport))
            });
            match requested {
                Ok((line, transport)) => {
                    socket.encoding = form_of(line.trim_end())?;
                    self.state().encoding = Some(socket.encoding);
                    return Ok(self.connected(transport, Box::new(socket)));
                }
                Err(failure) if hung_up(&failure) => {}
                Err(failure) => return Err(failure),
            }
        }
        let stream = self.connect_in(Encoding::Text, deadline)?;
        self.state().encoding = Some(Encoding::Text);
        Ok(stream)
    }

    /// Returns an authenticated socket.
    fn socket(&self, encoding: Encoding, deadline: Instant) -> Result<Socket, Failure> {
        let spin = deadline.saturating_duration_since(Instant::now());
        if spin.is_zero() {
            return Err(Failure::Connect(io::ErrorKind::TimedOut.into()));
        }
        let socket = Socket::connect(&self.address.place, encoding, spin).map_err(Failure::Connect)?;
        if let Some(credentials) = &self.credentials {
            authenticate(&socket, credentials, deadline)?;
        }
        Ok(socket)
    }

    // ---- upgrades ----

    /// Asks the server for its memory or the fabric, as the options require.
    fn upgrade(&self, socket: &Socket, deadline: Instant) -> Result<Upgrade, Failure> {
        // A server without the meta protocol has neither.
        let is_other = self.protocol == Protocol::Auto && socket.encoding == Encoding::Text;
        match (&self.address.place, &self.remote) {
            (_, Some(remote)) => self.over_fabric(remote, socket, is_other, deadline),
            (ServerEndpoint::Unix(_), _) => self.share_memory(socket, is_other, deadline),
            (ServerEndpoint::Tcp { .. } | ServerEndpoint::Fabric { .. }, _) => {
                Ok(Upgrade::Socket(Transport::Tcp))
            }
        }
    }

    /// Returns whether the socket alone is not acceptable.
    fn requires_upgrade(&self) -> bool {
        match &self.remote {
            Some(remote) => !remote.options.or_tcp,
            None => self.must_share_memory(),
        }
    }

    fn share_memory(&self, socket: &Socket, is_other: bool, deadline: Instant) -> Result<Upgrade, Failure> {
        if self.shared_memory == SharedMemory::Never || is_other {
            return Ok(Upgrade::Socket(Transport::Unix { why: None }));
        }
        let known = self.memory.items().clone();
        match shm::attach(socket, known.as_ref(), self.must_share_memory(), deadline) {
            Ok(Attached { stream, items }) => {
                let (transport, items) = match items {
                    Ok(items) => (Transport::SharedMemory, Some(items)),
                    Err(why) => (Transport::Channel { why }, None),
                };
                self.memory.change(items);
                Ok(Upgrade::Other(transport, Box::new(stream)))
            }
            Err(AttachError::Refused(why)) if self.must_share_memory() => {
                Err(Failure::Refused(format!("it shares no memory: {why}")))
            }
            Err(AttachError::Refused(why)) => Ok(Upgrade::Socket(Transport::Unix { why: Some(why) })),
            Err(AttachError::Failed(failure)) => Err(failure),
        }
    }

    fn must_share_memory(&self) -> bool {
        self.shared_memory == SharedMemory::Required
    }

    fn over_fabric(
        &self,
        remote: &RemoteReader,
        socket: &Socket,
        is_other: bool,
        deadline: Instant,
    ) -> Result<Upgrade, Failure> {
        let unreached = remote.unreached().filter(|_| remote.options.or_tcp);
        let attached = if is_other {
            Err(AttachError::Refused("the server speaks the text protocol only".into()))
        } else if let Some(why) = unreached {
            Err(AttachError::Refused(why))
        } else {
            fabric::attach(socket, remote, deadline)
        };
        match attached {
            Ok((transport, mut stream)) => match fabric::prove(&mut stream, Instant::now() + self.timeout) {
                Ok(()) => Ok(Upgrade::Other(transport, Box::new(stream))),
                Err(error) => self.instead_of_fabric(remote, socket.encoding, &error),
            },
            Err(AttachError::Refused(why)) if remote.options.or_tcp => {
                Ok(Upgrade::Socket(Transport::InsteadOfFabric { why }))
            }
            Err(AttachError::Refused(why)) => Err(Failure::Refused(format!("not over the fabric: {why}"))),
            Err(AttachError::Failed(failure)) => Err(failure),
        }
    }

    /// Uses TCP instead after both sides agreed on the fabric and nothing got through; the socket cannot be used any more.
    fn instead_of_fabric(
        &self,
        remote: &RemoteReader,
        encoding: Encoding,
        error: &fabric::ProveError,
    ) -> Result<Upgrade, Failure> {
        let why = format!("the fabric was agreed on, but not reached: {error}");
        if !remote.options.or_tcp {
            remote.forget();
            return Err(Failure::Connect(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        remote.note_unreached(why.clone(), self.retry_after);
        let socket = self.socket(encoding, Instant::now() + self.connect_timeout)?;
        Ok(Upgrade::Another(Transport::InsteadOfFabric { why }, socket))
    }

    fn connected(&self, transport: Transport, stream: Box<dyn Stream>) -> Box<dyn Stream> {
        *self.known_transport() = Some(transport);
        stream
    }

    /// Returns the transport of the last connection, or `None` before the first.
    pub fn transport(&self) -> Option<Transport> {
        self.known_transport().clone()
    }

    fn known_transport(&self) -> MutexGuard<'_, Option<Transport>> {
        self.transport.lock().expect("no thread panics while it records a transport")
    }
}

/// Returns the encoding of a server that gives this answer to a question in the meta protocol.
fn form_of(line: &str) -> Result<Encoding, Failure> {
    match line {
        "MN" => Ok(Encoding::Meta),
        "ERROR" => Ok(Encoding::Text),
        other => {
            refusal(other)?;
            Err(Failure::protocol(other.as_bytes()))
        }
    }
}

/// Authenticates: by text with a `set` of any key whose value is `user password`, by packets with SASL PLAIN (RFC
/// 4616).
fn authenticate(socket: &Socket, credentials: &Credentials, deadline: Instant) -> Result<(), Failure> {
    let Credentials { user, password } = credentials;
    if socket.encoding == Encoding::Binary {
        let mechanisms = request_packet(&socket.socket, AdminCommand::Mechanisms, deadline)?;
        if !mechanisms.split_ascii_whitespace().any(|mechanism| mechanism == PLAIN) {
            let why = format!("clients do not authenticate by SASL {PLAIN} but by {mechanisms:?}");
            return Err(Failure::Refused(why));
        }
        let token = format!("\0{user}\0{password}");
        let order = AdminCommand::Authenticate { mechanism: PLAIN, token: &token };
        return request_packet(&socket.socket, order, deadline).map(|_| ());
    }
    let token = format!("{user} {password}");
    let request = format!("set auth 0 0 {}\r\n{token}\r\n", token.len());
    let (line, _) = request_line(&socket.socket, &request, deadline)?;
    refusal(line.trim_end())?;
    if line == "STORED\r\n" { Ok(()) } else { Err(Failure::protocol(line.as_bytes())) }
}

const PLAIN: &str = "PLAIN";
