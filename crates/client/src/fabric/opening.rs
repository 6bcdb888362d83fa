//! Making a port for reads known to the server.
//!
//! The two ends get to know each other when the server's worker next looks at its end. By shm of libfabric 1.17 an endpoint
//! must not be closed before: the worker would look for memory of its that is gone, and the server crash of that. So a port
//! that did not get so far in its time is kept, also behind its client, and used by who next wants to read there.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use fabcache_fabric::{Buffer, Completion, Error, Peer, Place, Pool, Port, PortOptions, Refused};
use fabcache_layout::header::HEADER_BYTES;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::own::Own;
use super::remote::Region;
use super::sockets::End;
use crate::bounds::{SHORT_READ_BUFFERS, SHORT_READ_BYTES, UNKNOWN_PORTS_MAX};

/// A port that the server knows.
#[derive(Debug)]
pub struct Opened {
    // Before the memory that its operations use.
    pub port: Port,
    pub peer: Peer,
    pub short: Pool,
}

/// One that it may not know yet.
#[derive(Debug)]
struct Opening {
    opened: Opened,
    end: Arc<[u8]>,
    /// For the first read, which the provider did not take yet.
    unposted: Option<Buffer>,
}

/// Those that were given up for now.
static UNKNOWN: Mutex<Vec<Own<Opening>>> = Mutex::new(Vec::new());

/// Tries of the first read after each of which it is looked whether the server is there.
const CONNECTING_LOOKS: u32 = 64;

const FIRST_BYTES: usize = HEADER_BYTES as usize;

/// Opens a port to an end of the server, and reads the region's first bytes by it.
///
/// # Errors
/// The fabric fails, or it takes too long.
pub fn open(region: &Region, end: &End, deadline: Instant) -> Result<(Opened, Buffer), String> {
    if region.bytes < HEADER_BYTES {
        return Err("it is shorter than its header".into());
    }
    let mut opening = match Opening::again(region, &end.name)? {
        Some(opening) => opening,
        None => Opening::new(region, &end.name)?,
    };
    match opening.wait(region, end, deadline) {
        Ok(first) => Ok((opening.opened, first)),
        Err(why) => {
            if opening.must_be_kept() {
                lock().push(Own::new(opening));
            }
            Err(why)
        }
    }
}

impl Opening {
    fn new(region: &Region, end: &Arc<[u8]>) -> Result<Opening, String> {
        let told = |error: Error| error.to_string();
        let options = PortOptions { operations: SHORT_READ_BUFFERS, peers: 1, waits: true };
        let mut port = Port::open(&region.domain, options).map_err(told)?;
        let peer = port.connect(end).map_err(told)?;
        let short = Pool::new(&region.domain, SHORT_READ_BUFFERS, SHORT_READ_BYTES).map_err(told)?;
        let unposted = Some(short.take().ok_or("no buffer is left")?);
        Ok(Opening { opened: Opened { port, peer, short }, end: Arc::clone(end), unposted })
    }

    /// One that was given up before, to this end. Those to servers that are gone are let go.
    fn again(region: &Region, end: &Arc<[u8]>) -> Result<Option<Opening>, String> {
        let mut unknown = lock();
        let gone: Vec<_> = unknown.extract_if(.., |opening| is_gone(&opening.end)).collect();
        let found = unknown.iter().position(|opening| {
            let is_it = opening.end == *end && Arc::ptr_eq(opening.opened.port.domain(), &region.domain);
            is_it && opening.is_current()
        });
        let found = found.map(|at| unknown.swap_remove(at));
        // Those of a parent are none of this process.
        let is_full = unknown.iter().filter(|opening| opening.is_current()).count() >= UNKNOWN_PORTS_MAX;
        drop(unknown);
        drop(gone);
        match found {
            Some(found) => Ok(found.into_inner()),
            None if is_full => {
                Err("there are servers that stand still and may not know of ports for reads".into())
            }
            None => Ok(None),
        }
    }

    /// The provider has taken nothing, so the server may not know it, and crash if it was closed.
    fn must_be_kept(&self) -> bool {
        self.unposted.is_some() && self.opened.port.domain().provider().trusts_peers()
    }

    /// Reads the first bytes of the memory at this place, once the provider lets it.
    fn step(&mut self, at: Place) -> Result<Option<Buffer>, String> {
        let Opened { port, peer, .. } = &mut self.opened;
        if let Some(buffer) = self.unposted.take()
            && let Err(Refused { buffer, error }) = port.read(*peer, at, buffer, 0..FIRST_BYTES, 0)
        {
            if !error.is_again() {
                return Err(error.to_string());
            }
            self.unposted = Some(buffer);
        }
        let mut ended = Vec::new();
        port.poll(&mut ended).map_err(|error| error.to_string())?;
        let Some(Completion { result, buffer, .. }) = ended.pop() else { return Ok(None) };
        result.map(|_| Some(buffer)).map_err(|error| error.to_string())
    }

    fn wait(&mut self, region: &Region, end: &End, deadline: Instant) -> Result<Buffer, String> {
        let at = Place { address: end.memory.address, key: end.memory.key };
        let mut tries = 0;
        loop {
            if let Some(first) = self.step(at)? {
                return Ok(first);
            }
            if Instant::now() >= deadline {
                return Err("reading it takes too long".into());
            }
            if tries % CONNECTING_LOOKS == CONNECTING_LOOKS - 1 && region.sockets.have_ended() {
                return Err("the server has ended its connections".into());
            }
            // The server may rest, and has to look at its end before the two know each other.
            region.nudge(&self.end, tries);
            tries += 1;
        }
    }
}

/// The process whose end this is has ended, as far as the end's name tells.
fn is_gone(end: &[u8]) -> bool {
    let process = process_of(end);
    process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

/// Of an end by shm: `fi_shm://PROCESS:DOMAIN:ENDPOINT`.
fn process_of(end: &[u8]) -> Option<Pid> {
    let rest = end.strip_prefix(b"fi_shm://")?;
    let process = rest.split(|byte| *byte == b':').next()?;
    Pid::from_raw(std::str::from_utf8(process).ok()?.parse().ok()?)
}

fn lock() -> MutexGuard<'static, Vec<Own<Opening>>> {
    UNKNOWN.lock().expect("no thread panics while it looks after ports that are not known")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_gone_with_their_process() {
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let end = |process: u32| format!("fi_shm://{process}:0:1\0").into_bytes();
        // Not reaped yet.
        assert!(!is_gone(&end(child.id())) && !is_gone(&end(std::process::id())));
        child.wait().expect("a child");
        assert!(is_gone(&end(child.id())));
        for none in
            [&b""[..], b"fi_shm://", b"fi_shm://x:0:1", b"fi_shm://0:0:1", b"\x02\0\x12\x34\x7f\0\0\x01"]
        {
            assert_eq!(process_of(none), None, "{}", none.escape_ascii());
            assert!(!is_gone(none));
        }
    }
}
