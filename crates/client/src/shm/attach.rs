//! Requests a server's memory over a Unix socket.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use fabcache_layout::channel::{CHANNEL_VERSION, Channel};
use fabcache_layout::format::FORMAT_VERSION;
use fabcache_layout::reader::Protection;
use fabcache_protocol::binary::RESPONSE;

use super::items::Items;
use super::stream::ShmStream;
use crate::error::{AttachError, Failure};
use crate::message::Encoding;
use crate::packet::{self, AdminCommand};
use crate::region_clock::{RegionClock, precise_monotonic_ns};
use crate::socket::{Socket, exchange, request_line};

/// A word of the answer: the region is a file without seals.
const KEPT: &str = "kept";

/// Memory that a server shares.
#[derive(Debug)]
pub struct Attached {
    /// Requests and answers.
    pub stream: ShmStream,
    /// The items.
    pub items: Arc<Items>,
}

/// Asks for shared memory over an idle socket, in binary packets where the server speaks these. `known` is the region
/// of an earlier connection to the same server, if there was one: two connections to a region share its mapping.
///
/// # Errors
/// The socket broke, the deadline passed, or the server's answer is invalid.
pub fn attach(
    Socket { socket, encoding }: &Socket,
    known: Option<&Arc<Items>>,
    deadline: Instant,
) -> Result<Attached, AttachError> {
    let (line, descriptors) = match encoding {
        Encoding::Binary => request_by_packet(socket, deadline)?,
        _ => {
            let request = format!("shm attach {CHANNEL_VERSION} {FORMAT_VERSION}\r\n");
            request_line(socket, &request, deadline)?
        }
    };
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some("SHM") {
        return Err(AttachError::Refused(line.trim_end().into()));
    }
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let (Some(region_bytes), Some(clock_ns), Ok([region, channel])) =
        (number(), number(), <[OwnedFd; 2]>::try_from(descriptors))
    else {
        return Err(Failure::protocol(line.as_bytes()).into());
    };
    let protection = if words.any(|word| word == KEPT) { Protection::Kept } else { Protection::Sealed };
    let clock = RegionClock::answered(clock_ns, precise_monotonic_ns());
    let items = match known {
        Some(known) if known.is_of(region.as_fd())? => Arc::clone(known),
        _ => Arc::new(Items::open(region.as_fd(), region_bytes, protection, clock)?),
    };
    let channel = Channel::open(channel.as_fd())?;
    let stream = ShmStream::new(channel, Arc::clone(socket), Arc::clone(&items));
    Ok(Attached { stream, items })
}

/// Returns the answer to a memory request, and its descriptors.
fn request_by_packet(
    socket: &socket2::Socket,
    deadline: Instant,
) -> Result<(String, Vec<OwnedFd>), AttachError> {
    let mut versions = [0; 16];
    versions[..8].copy_from_slice(&CHANNEL_VERSION.to_be_bytes());
    versions[8..].copy_from_slice(&FORMAT_VERSION.to_be_bytes());
    let is_packet = |came: &[u8]| came.first() == Some(&RESPONSE);
    let is_whole = |came: &[u8]| {
        if is_packet(came) { packet::said(came).is_some() } else { came.ends_with(b"\n") }
    };
    let order = packet::order(AdminCommand::ShareMemory(versions));
    let (answer, descriptors) = exchange(socket, &order, deadline, is_whole)?;
    if !is_packet(&answer) {
        let line = String::from_utf8(answer).map_err(|error| Failure::protocol(error.as_bytes()))?;
        return Ok((line, descriptors));
    }
    match packet::said(&answer) {
        Some((Err(Failure::Refused(why)), _)) => Err(AttachError::Refused(why)),
        _ => Err(Failure::protocol(&answer).into()),
    }
}
