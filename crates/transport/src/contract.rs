//! The contract of every transport.
//!
//! A [`Listener`] yields [`Link`]s; a link is two streams of bytes, one in each direction, to one peer. No call blocks:
//! it reports that it cannot proceed, and the descriptor becomes ready when a retry can.
//!
//! Invariants, checked by the conformance suite:
//! 1. Bytes arrive in the order in which they were sent, once each, or the link ends.
//! 2. `receive` after [`Received::End`] says `End` again; `send` after an error fails again.
//! 3. `send` accepts a prefix of its input, and returns its length. Zero means: not now.
//! 4. Bytes that `send` took and that are still inside the link (encryption, framing) are sent by `flush`;
//!    `has_unsent` says whether there are any.
//! 5. Dropping a link ends it; the peer sees the end after what `flush` has sent.
//! 6. A peer that dies or breaks the protocol below ends its own link with an error, and nothing else.
//! 7. A [`PolledLink`] reports input by its descriptor until polling starts, and again once its wakeup is armed; input
//!    that arrives in between makes `arm_wakeup` return false, or the descriptor ready.
//! 8. Links that were accepted together may send together: their first `flush` then returns false, and their bytes
//!    leave when another `flush` is called, or at the latest when the last of these links is dropped.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use socket2::Socket;

/// The result of `receive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The number of bytes received, at least one.
    Bytes(usize),
    /// Nothing arrived.
    Nothing,
    /// The peer sends no more.
    End,
}

/// The transport of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP.
    Tcp,
    /// A Unix socket.
    Unix,
    /// A UDP datagram.
    Udp,
    /// Memory shared with a process on this host.
    Shm,
    /// A libfabric provider, beside a TCP connection.
    Fabric,
    /// The symmetric memory of an OpenSHMEM job.
    OpenShmem,
    /// In this process.
    Memory,
}

/// The user and group of the process at the other end, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its effective user.
    pub user: u32,
    /// Its effective group.
    pub group: u32,
}

/// The other end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A network address.
    Socket(SocketAddr),
    /// A process on this host, by the path of the listener's socket.
    Local(PathBuf),
    /// A PE of the OpenSHMEM job.
    Pe(usize),
    /// This process.
    Memory,
}

/// One peer's connection.
pub trait Link: Send {
    /// Receives into `into`, which must not be empty.
    ///
    /// # Errors
    /// The link is broken and ends.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received>;

    /// Receives into `first`, which must not be empty, and once that is full possibly into `second`.
    ///
    /// # Errors
    /// The link is broken and ends.
    fn receive_in_two(&mut self, first: &mut [u8], _second: &mut [u8]) -> io::Result<Received> {
        self.receive(first)
    }

    /// Returns how many bytes `receive_in_two` would copy from the kernel at once, without looking at them; 0 if that is
    /// unknown, or bytes pass through memory of the link.
    fn available(&self) -> u64 {
        0
    }

    /// Sends a prefix of `parts` and returns its length; 0 if nothing can be sent now.
    ///
    /// # Errors
    /// The link is broken and ends.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends bytes buffered inside the link; returns true when none are left.
    ///
    /// # Errors
    /// The link is broken and ends.
    fn flush(&mut self) -> io::Result<bool>;

    /// Returns whether accepted bytes are still buffered inside the link.
    fn has_unsent(&self) -> bool;

    /// Returns whether received bytes are buffered inside the link, where the descriptor does not report them:
    /// receive again.
    fn has_unread(&self) -> bool;

    /// The descriptor to wait for: readable when `receive`, writable when `send` or `flush` can proceed. `None` if the
    /// link has all its input already.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The other end.
    fn peer(&self) -> Peer;

    /// The transport.
    fn kind(&self) -> Kind;

    /// Returns the peer process's credentials, if the kernel reports them.
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Returns whether the bytes are encrypted in transit.
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Returns the stream socket itself, for operations beyond this contract; a link of another kind returns itself.
    ///
    /// # Errors
    /// The link is not a bare stream socket.
    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>>;

    /// Whether the link [can be polled](Link::as_polled).
    fn is_polled(&self) -> bool {
        false
    }

    /// Returns the operations of links that can be polled without a system call.
    fn as_polled(&mut self) -> Option<&mut dyn PolledLink> {
        None
    }
}

/// A link whose [`Link::has_unread`] needs no system call. The peer notifies only while the wakeup is armed; then the
/// descriptor becomes readable, both for input and for room to send.
pub trait PolledLink {
    /// Consumes notifications after the descriptor became readable, and notices that the peer has left.
    fn drain_wakeup(&mut self);

    /// Disarms the wakeup: this end polls [`Link::has_unread`] from now on.
    fn start_polling(&mut self);

    /// Arms the wakeup: from now on the descriptor reports input. Returns false if input arrived meanwhile, which it
    /// has not reported.
    fn arm_wakeup(&mut self) -> bool;
}

/// A link over a TCP or Unix stream socket (`stream.rs`).
#[derive(Debug)]
pub struct StreamLink {
    /// Connected and non-blocking.
    pub(crate) socket: Socket,
    /// An address for TCP, the listener's path for a Unix socket.
    pub(crate) peer: Peer,
}

/// Accepts peers.
pub trait Listener: Send + Sync {
    /// Accepts the next peer, if one is waiting.
    ///
    /// # Errors
    /// The system call failed, for example for lack of descriptors; the listener stays usable.
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>>;

    /// Accepts waiting peers, at most `max`, by few system calls.
    ///
    /// # Errors
    /// As for `accept`; `links` has the peers accepted before.
    fn accept_many(&self, max: usize, links: &mut Vec<Box<dyn Link>>) -> io::Result<()> {
        for _ in 0..max {
            let Some(link) = self.accept()? else { break };
            links.push(link);
        }
        Ok(())
    }

    /// Becomes readable when `accept` can proceed.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The address it listens on.
    fn local(&self) -> Peer;

    /// The transport of its links.
    fn kind(&self) -> Kind;
}

impl<L: Listener> Listener for std::sync::Arc<L> {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        L::accept(self)
    }

    fn accept_many(&self, max: usize, links: &mut Vec<Box<dyn Link>>) -> io::Result<()> {
        L::accept_many(self, max, links)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        L::descriptor(self)
    }

    fn local(&self) -> Peer {
        L::local(self)
    }

    fn kind(&self) -> Kind {
        L::kind(self)
    }
}

impl std::fmt::Display for Peer {
    /// Formats addresses like memcached's `stats conns`, without the transport.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Socket(address) => address.fmt(f),
            Peer::Local(path) => path.display().fmt(f),
            Peer::Pe(number) => write!(f, "PE {number}"),
            Peer::Memory => f.write_str("memory"),
        }
    }
}
