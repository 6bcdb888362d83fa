//! Where datagrams arrive.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};

use super::outbox::Outbox;
use super::received::{self, BATCH_DATAGRAMS};
use super::{Framing, UdpLink};
use crate::contract::{Kind, Link, Listener, Peer};
use crate::socket::{is_not_now, prepare_to_bind};

/// Room for bursts of datagrams in either direction; the system may give less.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;

/// Options of a UDP listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpOptions {
    /// Several listeners bind the same address, and the kernel distributes datagrams by their addresses.
    pub share_address: bool,
    /// Among those, prefer this one for datagrams that this CPU receives.
    pub cpu: Option<usize>,
}

/// A bound UDP socket.
#[derive(Debug)]
pub struct UdpListener {
    socket: Arc<UdpSocket>,
    framing: Framing,
    local: SocketAddr,
}

impl UdpListener {
    /// Receives at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The system's, most often that the address is in use.
    pub fn bind(address: SocketAddr, framing: Framing, options: &UdpOptions) -> io::Result<UdpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        prepare_to_bind(&socket, &address, options.share_address, options.cpu)?;
        // Best effort: small buffers work, they only lose more under bursts.
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
        socket.bind(&address.into())?;
        UdpListener::take_over(socket, framing)
    }

    /// Adopts a bound socket that another process opened.
    ///
    /// # Errors
    /// It is not a UDP socket.
    pub fn adopt(fd: OwnedFd, framing: Framing) -> io::Result<UdpListener> {
        UdpListener::take_over(Socket::from(fd), framing)
    }

    fn take_over(socket: Socket, framing: Framing) -> io::Result<UdpListener> {
        socket.set_nonblocking(true)?;
        if socket.r#type()? != Type::DGRAM || socket.local_addr()?.as_socket().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a UDP socket"));
        }
        let socket = UdpSocket::from(socket);
        let local = socket.local_addr()?;
        Ok(UdpListener { socket: Arc::new(socket), framing, local })
    }

    /// Returns the receive address; the port is the actual one.
    pub fn address(&self) -> SocketAddr {
        self.local
    }
}

impl Listener for UdpListener {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let mut links = Vec::new();
        self.accept_many(1, &mut links)?;
        Ok(links.pop())
    }

    fn accept_many(&self, max: usize, links: &mut Vec<Box<dyn Link>>) -> io::Result<()> {
        let mut left = max;
        while left > 0 {
            let outbox = Arc::new(Outbox::new(&self.socket));
            let batch = left.min(BATCH_DATAGRAMS);
            let received = received::receive(&self.socket, self.local.is_ipv6(), batch, |peer, datagram| {
                if let Some((id, start)) = (self.framing.open)(datagram) {
                    let request = datagram[start..].to_vec();
                    links.push(Box::new(UdpLink::new(&outbox, self.framing, peer, id, request)));
                }
            });
            match received {
                Ok(received) if received == batch => left -= batch,
                // The socket is empty.
                Ok(_) => break,
                // The error of an earlier answer whose port was unreachable; it concerns no current client.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => left -= 1,
                Err(error) if is_not_now(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn local(&self) -> Peer {
        Peer::Socket(self.local)
    }

    fn kind(&self) -> Kind {
        Kind::Udp
    }
}
