//! Where TCP connections arrive.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::contract::{Kind, Link, Listener, Peer, StreamLink};
use crate::socket;

/// Options of a listener.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// The listen backlog.
    pub backlog: u32,
    /// Let several listeners of this process share the address, each with its own queue.
    pub share_address: bool,
    /// Prefer connections whose packets this CPU handles, among the listeners that share the address.
    pub cpu: Option<usize>,
}

/// A listening TCP socket.
#[derive(Debug)]
pub struct TcpListener {
    socket: Socket,
    local: SocketAddr,
}

impl TcpListener {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The system's, most often that the address is in use.
    pub fn bind(address: SocketAddr, options: &TcpOptions) -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        // Not for two servers at once, which the kernel refuses, but for restarts while old connections linger.
        socket.set_reuse_address(true)?;
        socket::prepare_to_bind(&socket, &address, options.share_address, options.cpu)?;
        socket.bind(&address.into())?;
        socket.listen(options.backlog.min(i32::MAX as u32) as i32)?;
        TcpListener::take_over(socket)
    }

    /// Adopts a listening socket that another process opened (systemd's socket activation).
    ///
    /// # Errors
    /// It is not a TCP socket.
    pub fn adopt(fd: OwnedFd) -> io::Result<TcpListener> {
        let socket = Socket::from(fd);
        socket.set_nonblocking(true)?;
        TcpListener::take_over(socket)
    }

    fn take_over(socket: Socket) -> io::Result<TcpListener> {
        let local = socket.local_addr()?.as_socket();
        let local = local.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a TCP socket"))?;
        Ok(TcpListener { socket, local })
    }

    /// Returns the listen address; the port is the actual one.
    pub fn address(&self) -> SocketAddr {
        self.local
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let Some((accepted, address)) = socket::accept(&self.socket)? else { return Ok(None) };
        let peer = address.as_socket().unwrap_or(self.local);
        Ok(Some(Box::new(StreamLink::tcp(accepted, peer)?)))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn local(&self) -> Peer {
        Peer::Socket(self.local)
    }

    fn kind(&self) -> Kind {
        Kind::Tcp
    }
}
