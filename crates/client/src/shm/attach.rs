//! Requests a server's memory over a Unix socket.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use fabcache_layout::channel::{CHANNEL_VERSION, Channel};
use fabcache_layout::format::{FORMAT_VERSION, NO_REGION, SHARD_REGION};
use fabcache_layout::reader::Protection;
use fabcache_protocol::binary::RESPONSE;

use super::items::{Extent, Items};
use super::stream::ShmStream;
use crate::error::{AttachError, Failure};
use crate::message::Encoding;
use crate::packet::{self, AdminCommand};
use crate::region_clock::{RegionClock, precise_monotonic_ns};
use crate::socket::{Socket, exchange, request_line};

/// The first word of an answer with descriptors.
const SHARED: &str = "SHM";
/// A word of the answer: the region is a file without seals.
const KEPT: &str = "kept";
/// Another: the region is a part of the file, from the offset that follows, and has a shard of the keys.
const SHARD: &str = "shard";
/// The start of the answer of a server whose region has a shard only.
const SHARD_ONLY: &str = "SHARD ";
/// The start of the answer of a server that has a channel but cannot hand out its region. The reason follows.
const CHANNEL_ONLY: &str = "CHANNEL ";

/// Memory that a server shares.
#[derive(Debug)]
pub struct Attached {
    /// Requests and answers.
    pub stream: ShmStream,
    /// The items, or why the server does not let clients read them.
    pub items: Result<Arc<Items>, String>,
}

/// Asks for shared memory over an idle socket, in binary packets where the server speaks these. `known` is the region
/// of an earlier connection to the same server, if there was one: two connections to a region share its mapping. From a
/// PE of a job it gets a shard. From a server that cannot hand out its region it gets the channel alone, unless it
/// `must_read`.
///
/// # Errors
/// The socket broke, the deadline passed, or the server's answer is invalid.
pub fn attach(
    socket: &Socket,
    known: Option<&Arc<Items>>,
    must_read: bool,
    deadline: Instant,
) -> Result<Attached, AttachError> {
    let (mut line, mut descriptors) = request(socket, FORMAT_VERSION, deadline)?;
    if line.starts_with(SHARD_ONLY) {
        (line, descriptors) = request(socket, SHARD_REGION, deadline)?;
    }
    let Some(why) = line.strip_prefix(CHANNEL_ONLY).map(|why| why.trim().to_owned()) else {
        return with_region(&socket.socket, known, &line, descriptors);
    };
    if must_read {
        return Err(AttachError::Refused(why));
    }
    let (line, descriptors) = request(socket, NO_REGION, deadline)?;
    let (_, [channel]) = shared(&line, descriptors)?;
    let channel = Channel::open(channel.as_fd())?;
    Ok(Attached { stream: ShmStream::new(channel, Arc::clone(&socket.socket), None), items: Err(why) })
}

/// Opens the region and the channel of this answer.
fn with_region(
    socket: &Arc<socket2::Socket>,
    known: Option<&Arc<Items>>,
    line: &str,
    descriptors: Vec<OwnedFd>,
) -> Result<Attached, AttachError> {
    let (numbers, [region, channel]) = shared(line, descriptors)?;
    let Numbers { extent, clock_ns } = numbers;
    let clock = RegionClock::answered(clock_ns, precise_monotonic_ns());
    let items = match known {
        Some(known) if known.is_of(region.as_fd())? => Arc::clone(known),
        _ => Arc::new(Items::open(region.as_fd(), extent, clock)?),
    };
    let channel = Channel::open(channel.as_fd())?;
    let stream = ShmStream::new(channel, Arc::clone(socket), Some(Arc::clone(&items)));
    Ok(Attached { stream, items: Ok(items) })
}

/// What the line of an answer with descriptors states.
struct Numbers {
    extent: Extent,
    clock_ns: u64,
}

/// Parses an answer with `N` descriptors.
fn shared<const N: usize>(
    line: &str,
    descriptors: Vec<OwnedFd>,
) -> Result<(Numbers, [OwnedFd; N]), AttachError> {
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some(SHARED) {
        return Err(AttachError::Refused(line.trim_end().into()));
    }
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let (Some(region_bytes), Some(clock_ns), Ok(descriptors)) = (number(), number(), descriptors.try_into())
    else {
        return Err(Failure::protocol(line.as_bytes()).into());
    };
    let mut extent = Extent { bytes: region_bytes, protection: Protection::Sealed, shard_at: None };
    while let Some(word) = words.next() {
        match word {
            KEPT => extent.protection = Protection::Kept,
            SHARD => {
                let offset = words.next().and_then(|word| word.parse().ok());
                extent.shard_at = Some(offset.ok_or_else(|| Failure::protocol(line.as_bytes()))?);
                extent.protection = Protection::Kept;
            }
            _ => {}
        }
    }
    Ok((Numbers { extent, clock_ns }, descriptors))
}

/// Returns the answer to a request for a channel and a region of this version, and its descriptors.
fn request(
    Socket { socket, encoding }: &Socket,
    region: u64,
    deadline: Instant,
) -> Result<(String, Vec<OwnedFd>), AttachError> {
    if *encoding != Encoding::Binary {
        let request = format!("shm attach {CHANNEL_VERSION} {region}\r\n");
        return Ok(request_line(socket, &request, deadline)?);
    }
    let mut versions = [0; 16];
    versions[..8].copy_from_slice(&CHANNEL_VERSION.to_be_bytes());
    versions[8..].copy_from_slice(&region.to_be_bytes());
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
