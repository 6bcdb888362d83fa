//! Asking a server for its memory, over a Unix socket.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use fabcache_layout::channel::{CHANNEL_VERSION, Channel};
use fabcache_layout::header::FORMAT_VERSION;
use rustix::event::PollFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};

use super::items::{Items, monotonic_ns};
use super::stream::ShmStream;
use crate::bounds::LINE_BYTES_MAX;
use crate::error::Failure;
use crate::input::protocol;
use crate::socket::wait_for;

/// Bytes of an answer with memory: `SHM`, two numbers, and the spaces and line end.
const ANSWER_BYTES_MAX: usize = 64;

/// Memory that a server shares.
#[derive(Debug)]
pub struct Attached {
    /// Requests and answers.
    pub stream: ShmStream,
    /// The items.
    pub items: Arc<Items>,
}

/// The server shares none, and says why. The socket can be used as before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// Asks for memory over a socket on which nothing is under way. `known` is the region of an earlier connection to the
/// same server, if there was one: two connections to the same region share its mapping.
///
/// # Errors
/// The socket broke, the deadline passed, or the server's answer is none.
pub fn attach(
    socket: &Arc<socket2::Socket>,
    known: Option<&Arc<Items>>,
    deadline: Instant,
) -> Result<Result<Attached, Refusal>, Failure> {
    // Taken before it is asked: so the clock made of the answer is early by the time that asking takes, never late.
    let asked_ns = monotonic_ns();
    let request = format!("shm attach {CHANNEL_VERSION} {FORMAT_VERSION}\r\n");
    // It fits the empty buffer of any socket.
    let sent =
        rustix::net::send(&**socket, request.as_bytes(), SendFlags::NOSIGNAL).map_err(io::Error::from)?;
    if sent < request.len() {
        return Err(io::Error::from(io::ErrorKind::WriteZero).into());
    }
    let (line, descriptors) = receive(socket, deadline)?;
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some("SHM") {
        return Ok(Err(Refusal(line.trim_end().into())));
    }
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let (Some(region_bytes), Some(clock_ns), Ok([region, channel])) =
        (number(), number(), <[OwnedFd; 2]>::try_from(descriptors))
    else {
        return Err(protocol(line.as_bytes()));
    };
    let zero_ns = i128::from(asked_ns) - i128::from(clock_ns);
    let items = match known {
        Some(known) if known.is_of(region.as_fd())? => Arc::clone(known),
        _ => Arc::new(Items::open(region.as_fd(), region_bytes, zero_ns)?),
    };
    let channel = Channel::open(channel.as_fd())?;
    let stream = ShmStream::new(channel, Arc::clone(socket), Arc::clone(&items));
    Ok(Ok(Attached { stream, items }))
}

/// One line, and the descriptors that came with it. Nothing comes behind it: nothing else was asked for.
fn receive(socket: &socket2::Socket, deadline: Instant) -> Result<(String, Vec<OwnedFd>), Failure> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    while !line.ends_with(b"\n") {
        if Instant::now() >= deadline {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        wait_for(socket, PollFlags::IN, deadline)?;
        let mut bytes = [0; ANSWER_BYTES_MAX];
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
        line.extend_from_slice(&bytes[..len]);
        if len == 0 || line.len() > LINE_BYTES_MAX {
            return Err(
                io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection").into()
            );
        }
    }
    let line = String::from_utf8(line).map_err(|error| protocol(error.as_bytes()))?;
    Ok((line, descriptors))
}
