//! The contract of every way in.
//!
//! A [`Listener`] yields [`Link`]s; a link is two streams of bytes, one in each direction, to one peer. Nothing here
//! blocks: what cannot be done now is said, and the descriptor becomes ready when it can be tried again.
//!
//! Invariants, checked by the conformance suite:
//! 1. Bytes arrive in the order in which they were sent, once each, or the link ends.
//! 2. `receive` after [`Received::End`] says `End` again; `send` after an error fails again.
//! 3. `send` takes a prefix of what it is given, and says how long it is. Zero means: not now.
//! 4. Bytes that `send` took and that are still inside the link (encryption, framing) are sent by `flush`;
//!    `has_unsent` says whether there are any.
//! 5. Dropping a link ends it; the peer sees the end after what `flush` has sent.
//! 6. A peer that dies or breaks the protocol below ends its own link with an error, and nothing else.
//! 7. A link that [is rung](Link::is_rung) goes on telling by its descriptor until it is polled, and again once it
//!    rests: what comes in between makes `rest` say so, or the descriptor ready.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::tcp::TcpLink;
use crate::unix::UnixLink;

/// What `receive` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The peer sends no more.
    End,
}

/// The way a link came in.
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
    /// A fabric, beside a TCP connection.
    Fabric,
    /// In this process.
    Memory,
}

/// Whose process is at the other end, as the system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its effective user.
    pub user: u32,
    /// Its effective group.
    pub group: u32,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A network address.
    Socket(SocketAddr),
    /// A process on this host, by the path of the socket it connected to.
    Local(PathBuf),
    /// This process.
    Memory,
}

/// One peer's connection.
pub trait Link: Send {
    /// Receives into `into`, which is not empty.
    ///
    /// # Errors
    /// The link is broken and ends.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received>;

    /// Sends a prefix of `parts`; how many bytes were taken. Zero if nothing can be taken now.
    ///
    /// # Errors
    /// The link is broken and ends.
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends what was taken and is still inside; true when nothing is left.
    ///
    /// # Errors
    /// The link is broken and ends.
    fn flush(&mut self) -> io::Result<bool>;

    /// Bytes were taken and are still inside.
    fn has_unsent(&self) -> bool;

    /// Returns whether received bytes are buffered inside the link, where the descriptor does not report them:
    /// receive again.
    fn has_unread(&self) -> bool;

    /// Becomes readable when `receive`, writable when `send` or `flush` is worth trying; none if a link needs no
    /// waiting (all it will ever receive is there).
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Who is at the other end.
    fn peer(&self) -> Peer;

    /// The way it came in.
    fn kind(&self) -> Kind;

    /// Whose process the peer is, where the system can tell.
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// Returns whether the bytes are encrypted on the way.
    fn is_encrypted(&self) -> bool {
        false
    }

    /// Itself, if it is a socket and nothing over it: with that more can be done than the contract knows. Else the link
    /// as it was.
    ///
    /// # Errors
    /// It is of another kind.
    fn into_socket(self: Box<Self>) -> Result<SocketLink, Box<dyn Link>>;

    // ---- links that can be looked at without a system call ----

    /// The peer writes to memory and rings only if this end said that it rests; the descriptor becomes readable then,
    /// whether there is something to receive or room to send.
    fn is_rung(&self) -> bool {
        false
    }

    /// The descriptor has become readable: takes in that the peer rang or left.
    fn answer_bell(&mut self) {}

    /// From now on this end looks at [`Link::has_unread`] by itself, and need not be rung for.
    fn poll(&mut self) {}

    /// Arms the wakeup: from now on the descriptor reports input. Returns false if input arrived meanwhile, which it
    /// has not reported.
    fn rest(&mut self) -> bool {
        true
    }
}

/// A link that is a socket, by its kind.
#[derive(Debug)]
pub enum SocketLink {
    /// TCP.
    Tcp(TcpLink),
    /// A Unix socket.
    Unix(UnixLink),
}

/// A place where peers arrive.
pub trait Listener: Send + Sync {
    /// The next peer, if one has arrived.
    ///
    /// # Errors
    /// The system's, such as no descriptors left; the listener goes on.
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>>;

    /// Becomes readable when `accept` is worth trying.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Where it listens.
    fn local(&self) -> Peer;

    /// The way its links come in.
    fn kind(&self) -> Kind;
}

impl std::fmt::Display for Peer {
    /// As memcached's `stats conns` writes addresses, without the transport.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Socket(address) => address.fmt(f),
            Peer::Local(path) => path.display().fmt(f),
            Peer::Memory => f.write_str("memory"),
        }
    }
}
