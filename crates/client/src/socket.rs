//! A stream over a TCP or Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabcache_distribution::ServerEndpoint;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg,
};
use socket2::{Domain, SockAddr, Type};

use crate::bounds::LINE_BYTES_MAX;
use crate::error::Failure;
use crate::message::Encoding;
use crate::packet::{self, AdminCommand};
use crate::stream::{Stream, Until, Waiter};

/// Wakes a server that serves this socket's client over memory or a fabric.
pub fn notify(socket: &socket2::Socket) {
    // A full socket notifies as well, and a closed one is noticed by its end.
    let _ = rustix::net::send(socket, b"!", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// A connected socket. It is in blocking mode; each call asks not to wait.
#[derive(Debug)]
pub struct Socket {
    /// The socket.
    pub socket: Arc<socket2::Socket>,
    /// The encoding that the server accepts.
    pub encoding: Encoding,
}

impl Socket {
    /// Connects within `spin`, trying each address of the host.
    ///
    /// # Errors
    /// The system's error for the host's last address.
    pub fn connect(place: &ServerEndpoint, encoding: Encoding, spin: Duration) -> io::Result<Socket> {
        let socket = match place {
            ServerEndpoint::Unix(path) => connect(Domain::UNIX, &SockAddr::unix(path)?, spin)?,
            ServerEndpoint::Tcp { host, port } | ServerEndpoint::Fabric { host, port } => {
                connect_to_host(host, *port, spin)?
            }
        };
        Ok(Socket { socket: Arc::new(socket), encoding })
    }
}

impl Stream for Socket {
    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        or_not_now(sendmsg(&*self.socket, parts, &mut SendAncillaryBuffer::default(), flags), 0)
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let received = recv(&*self.socket, spare_capacity(into), RecvFlags::DONTWAIT);
        let received = received.map(|(_, len)| if len == 0 { None } else { Some(len) });
        or_not_now(received, Some(0))
    }

    fn wait(&mut self, until: Until, deadline: Instant) -> io::Result<()> {
        wait_for(&self.socket, flags_of(until), deadline)
    }

    fn waiter(&self) -> io::Result<Box<dyn Waiter>> {
        Ok(Box::new(SocketWaiter { socket: Arc::clone(&self.socket), doorbell: Doorbell::new()? }))
    }
}

#[derive(Debug)]
struct SocketWaiter {
    socket: Arc<socket2::Socket>,
    /// Counts wakes since the last wait.
    doorbell: Doorbell,
}

impl Waiter for SocketWaiter {
    fn wait(&self, until: Until, deadline: Instant) -> io::Result<()> {
        let mut either =
            [PollFd::new(&*self.socket, flags_of(until)), PollFd::new(&self.doorbell.0, PollFlags::IN)];
        wait_for_any(&mut either, deadline)?;
        if !either[1].revents().is_empty() {
            self.doorbell.answer();
        }
        Ok(())
    }

    fn wake(&self) {
        self.doorbell.notify();
    }
}

fn flags_of(until: Until) -> PollFlags {
    match until {
        Until::Arrived => PollFlags::IN,
        Until::CanSend => PollFlags::OUT,
        Until::Either => PollFlags::IN | PollFlags::OUT,
    }
}

/// Waits for one event of one socket.
pub fn wait_for(socket: &socket2::Socket, what: PollFlags, deadline: Instant) -> io::Result<()> {
    wait_for_any(&mut [PollFd::new(socket, what)], deadline)
}

/// Wakes a waiting thread: readable after a notification.
#[derive(Debug)]
pub struct Doorbell(pub OwnedFd);

impl Doorbell {
    /// Returns a doorbell that was not rung.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Doorbell> {
        Ok(Doorbell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn notify(&self) {
        // The only failure is a full count, and then it is readable as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn answer(&self) {
        // The only failure is that another thread drained it.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Waits for one of several events, until the deadline at most.
pub fn wait_for_any(what: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    // Longer than clocks can express: no timeout.
    let left = Timespec::try_from(left).ok();
    or_not_now(poll(what, left.as_ref()).map(|_| ()), ())
}

fn or_not_now<T>(done: Result<T, Errno>, not_now: T) -> io::Result<T> {
    match done {
        Err(Errno::AGAIN | Errno::INTR) => Ok(not_now),
        other => other.map_err(io::Error::from),
    }
}

/// Bytes of an answer received at once: few are longer.
const ANSWER_BYTES: usize = 64;

/// Sends a short request over an idle socket; returns the answer line and the descriptors that came with it.
///
/// # Errors
/// The socket broke, the deadline passed, or the answer is not a line.
pub fn request_line(
    socket: &socket2::Socket,
    request: &str,
    deadline: Instant,
) -> Result<(String, Vec<OwnedFd>), Failure> {
    let (line, descriptors) = exchange(socket, request.as_bytes(), deadline, |came| came.ends_with(b"\n"))?;
    let line = String::from_utf8(line).map_err(|error| Failure::protocol(error.as_bytes()))?;
    Ok((line, descriptors))
}

/// Like [`request_line`] with a packet; returns the answer.
///
/// # Errors
/// The server refuses, or as for [`request_line`].
pub fn request_packet(
    socket: &socket2::Socket,
    order: AdminCommand<'_>,
    deadline: Instant,
) -> Result<String, Failure> {
    let (packet, _) = exchange(socket, &packet::order(order), deadline, |came| packet::said(came).is_some())?;
    let (said, _) = packet::said(&packet).expect("a whole packet");
    said.map(|said| String::from_utf8_lossy(said.value).into_owned())
}

/// Sends a short request; returns the answer and the descriptors that came with it. No further bytes follow, as nothing
/// else was requested.
///
/// # Errors
/// The socket broke, the deadline passed, or the answer has no end.
pub fn exchange(
    socket: &socket2::Socket,
    request: &[u8],
    deadline: Instant,
    is_whole: impl Fn(&[u8]) -> bool,
) -> Result<(Vec<u8>, Vec<OwnedFd>), Failure> {
    // It fits the empty buffer of any socket.
    let sent = rustix::net::send(socket, request, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    if sent < request.len() {
        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
    }
    let (mut answer, mut descriptors) = (Vec::new(), Vec::new());
    while !is_whole(&answer) {
        if Instant::now() >= deadline {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        wait_for(socket, PollFlags::IN, deadline)?;
        let mut bytes = [0; ANSWER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        let len = match received {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                descriptors.extend(came);
            }
        }
        answer.extend_from_slice(&bytes[..len]);
        if len == 0 || answer.len() > LINE_BYTES_MAX {
            return Err(
                io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection").into()
            );
        }
    }
    Ok((answer, descriptors))
}

fn connect_to_host(host: &str, port: u16, spin: Duration) -> io::Result<socket2::Socket> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match connect(Domain::for_address(address), &address.into(), spin) {
            Ok(socket) => {
                socket.set_tcp_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn connect(domain: Domain, address: &SockAddr, spin: Duration) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(domain, Type::STREAM, None)?;
    socket.connect_timeout(address, spin)?;
    Ok(socket)
}
