//! The server's end of a channel, and the socket beside it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fabcache_layout::channel::{Channel, ProtocolError, Shape};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use socket2::Socket;

use crate::contract::{Kind, Link, Peer, PolledLink, Received, StreamLink};

/// A doorbell; the byte has no meaning.
const DOORBELL: [u8; 1] = [b'!'];

/// More doorbells than a client has reason to send: it sends one for each time that this end sleeps or waits.
const BELLS_MAX: usize = 32 << 10;

/// One client's channel.
#[derive(Debug)]
pub struct ShmLink {
    channel: Channel,
    socket: Socket,
    peer: Peer,
    /// This end polls; the socket need not signal.
    polled: bool,
    /// The client has closed the socket: bytes it sent before can still be received.
    left: bool,
    broken: bool,
}

/// A channel that no client has yet.
#[derive(Debug)]
pub struct NewChannel {
    channel: Channel,
    file: OwnedFd,
}

impl NewChannel {
    /// A channel of a sound shape.
    ///
    /// # Errors
    /// There is no memory or no descriptor left.
    pub fn create(shape: &Shape) -> io::Result<NewChannel> {
        let (channel, file) = Channel::create(shape)?;
        Ok(NewChannel { channel, file })
    }
}

/// Why a client has no channel.
#[derive(Debug)]
pub enum AttachError {
    /// Nothing was sent: the socket is unchanged.
    Unsent(StreamLink, io::Error),
    /// A part of the answer was sent: the socket is unusable.
    Torn,
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AttachError::Unsent(_, error) => error.fmt(f),
            AttachError::Torn => f.write_str("the client takes only a part of the answer"),
        }
    }
}

impl std::error::Error for AttachError {}

impl ShmLink {
    /// Sends the client at the other end of a Unix socket `answer` with the descriptor of the region, if it gets that,
    /// and then that of the channel.
    ///
    /// # Errors
    /// The client has left, or takes nothing; or too many descriptors are on their way to clients that take none.
    pub fn attach(
        link: StreamLink,
        new: NewChannel,
        region: Option<BorrowedFd<'_>>,
        answer: &[u8],
    ) -> Result<ShmLink, AttachError> {
        let NewChannel { channel, file } = new;
        let descriptors: Vec<BorrowedFd<'_>> = region.into_iter().chain([file.as_fd()]).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        debug_assert!(fits);
        let parts = [IoSlice::new(answer)];
        match rustix::net::sendmsg(&link.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(sent) if sent < answer.len() => return Err(AttachError::Torn),
            Ok(_) => {}
            Err(error) => return Err(AttachError::Unsent(link, error.into())),
        }
        let StreamLink { socket, peer } = link;
        // From the start the socket reports input.
        let mut link = ShmLink { channel, socket, peer, polled: true, left: false, broken: false };
        link.arm_wakeup();
        Ok(link)
    }

    fn notify(&self) {
        // A full socket wakes the client as well, and a closed one is noticed by its end.
        let _ = rustix::net::send(&self.socket, &DOORBELL, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    fn fail(&mut self, _: ProtocolError) -> io::Error {
        self.broken = true;
        io::Error::new(io::ErrorKind::InvalidData, ProtocolError)
    }

    fn check(&mut self) -> io::Result<()> {
        if self.broken { Err(self.fail(ProtocolError)) } else { Ok(()) }
    }
}

impl Link for ShmLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        self.check()?;
        let mut has_come = false;
        loop {
            let len = self.channel.incoming().receive(into).map_err(|broken| self.fail(broken))?;
            if len > 0 {
                if self.channel.incoming().must_notify() {
                    self.notify();
                }
                return Ok(Received::Bytes(len));
            }
            if self.left {
                return Ok(Received::End);
            }
            if self.polled {
                return Ok(Received::Nothing);
            }
            if has_come {
                // Bytes that are there stay until they are received: the client has taken them back.
                return Err(self.fail(ProtocolError));
            }
            self.drain_wakeup();
            self.check()?;
            has_come = !self.arm_wakeup();
            if !has_come && !self.left {
                return Ok(Received::Nothing);
            }
        }
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        if self.left {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let mut rest: Vec<IoSlice<'_>> = Vec::new();
        let mut sent = 0;
        loop {
            let now = if sent == 0 { parts } else { &rest };
            let more = self.channel.outgoing().send(now).map_err(|broken| self.fail(broken))?;
            sent += more;
            if more > 0 && self.channel.outgoing().must_notify() {
                self.notify();
            }
            if sent == whole {
                return Ok(sent);
            }
            self.channel.outgoing().want_room();
            if !self.channel.outgoing().has_room().map_err(|broken| self.fail(broken))? {
                return Ok(sent);
            }
            self.channel.outgoing().unwant_room();
            rest = behind(parts, sent);
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn has_unsent(&self) -> bool {
        false
    }

    fn has_unread(&self) -> bool {
        !self.broken && self.channel.has_incoming()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn peer(&self) -> Peer {
        self.peer.clone()
    }

    fn kind(&self) -> Kind {
        Kind::Shm
    }

    fn into_stream(self: Box<Self>) -> Result<StreamLink, Box<dyn Link>> {
        Err(self)
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn as_polled(&mut self) -> Option<&mut dyn PolledLink> {
        Some(self)
    }
}

impl PolledLink for ShmLink {
    fn drain_wakeup(&mut self) {
        // Once: a client that sends doorbells faster than this end reads them must not keep it busy.
        let mut doorbells = [MaybeUninit::uninit(); BELLS_MAX];
        match rustix::net::recv(&self.socket, &mut doorbells[..], RecvFlags::DONTWAIT) {
            Ok((_, BELLS_MAX..)) => self.broken = true,
            Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => self.left = true,
        }
    }

    fn start_polling(&mut self) {
        if !std::mem::replace(&mut self.polled, true) {
            self.channel.incoming().unwant_data();
        }
    }

    fn arm_wakeup(&mut self) -> bool {
        self.polled = false;
        self.channel.incoming().want_data();
        !self.channel.has_incoming()
    }
}

/// Returns the parts without their first `count` bytes.
fn behind<'a>(parts: &'a [IoSlice<'a>], count: usize) -> Vec<IoSlice<'a>> {
    let mut count = count;
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let skipped = part.len().min(count);
        count -= skipped;
        if skipped < part.len() {
            rest.push(IoSlice::new(&part[skipped..]));
        }
    }
    rest
}
