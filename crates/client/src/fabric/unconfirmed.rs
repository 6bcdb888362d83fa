//! Opens an endpoint for reads and waits until the server knows it.
//!
//! The endpoints connect when the server's worker next polls its own. With shm of libfabric 1.17 an endpoint must not
//! be closed before that: the worker would access memory that is gone, and crash. So an endpoint that did not connect
//! in time is kept, even beyond its client, and reused for the next reads from there.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Error, Peer, Pool, RejectedOperation,
    RemoteAddress,
};
use fabcache_layout::format::HEADER_BYTES;
use fabcache_layout::process::Process;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::fork_guard::ForkGuard;
use super::region::Region;
use super::sockets::ServerEnd;
use crate::bounds::{SHORT_READ_BUFFERS, SHORT_READ_BYTES, UNKNOWN_PORTS_MAX};

/// An endpoint that the server knows.
#[derive(Debug)]
pub struct ConfirmedEndpoint {
    // Before the memory that its operations use.
    pub port: Endpoint,
    pub peer: Peer,
    pub short: Pool,
}

/// An endpoint that the server may not know yet.
#[derive(Debug)]
struct UnconfirmedEndpoint {
    opened: ConfirmedEndpoint,
    end: Arc<[u8]>,
    /// For the first read, which the provider did not take yet.
    unposted: Option<Buffer>,
}

/// Endpoints that their servers may not know yet and that must not be closed: at most [`UNKNOWN_PORTS_MAX`] in this
/// process.
struct UnconfirmedEndpoints<O> {
    /// Those that were given up for now.
    kept: Vec<ForkGuard<O>>,
    /// Whose those are that are being opened.
    opening: Vec<Process>,
}

static UNKNOWN: Mutex<UnconfirmedEndpoints<UnconfirmedEndpoint>> = Mutex::new(UnconfirmedEndpoints::new());

/// Room for one that is being opened.
struct UnconfirmedPermit<'a, O>(&'a Mutex<UnconfirmedEndpoints<O>>);

/// Attempts at the first read between two checks of whether the server is alive.
const CONNECTING_LOOKS: u32 = 64;

const FIRST_BYTES: usize = HEADER_BYTES as usize;

/// Opens a port to an end of the server, and reads the region's first bytes by it.
///
/// # Errors
/// The fabric fails, or it takes too long.
pub fn open(
    region: &Region,
    end: &ServerEnd,
    deadline: Instant,
) -> Result<(ConfirmedEndpoint, Buffer), String> {
    if region.bytes < HEADER_BYTES {
        return Err("it is shorter than its header".into());
    }
    let (room, again) = UnconfirmedEndpoint::again(region, &end.name)?;
    let mut opening = match again {
        Some(opening) => opening,
        None => UnconfirmedEndpoint::new(region, &end.name)?,
    };
    match (opening.wait(region, end, deadline), room) {
        (Ok(first), _) => Ok((opening.opened, first)),
        (Err(why), Some(room)) if opening.must_be_kept() => {
            room.keep(opening);
            Err(why)
        }
        (Err(why), _) => Err(why),
    }
}

impl<O> UnconfirmedEndpoints<O> {
    const fn new() -> UnconfirmedEndpoints<O> {
        UnconfirmedEndpoints { kept: Vec::new(), opening: Vec::new() }
    }

    /// Room for one more, if there is.
    fn has_taken_room(&mut self) -> bool {
        // Those of a parent process do not belong to this one.
        self.opening.retain(|process| process.is_current());
        let kept = self.kept.iter().filter(|one| one.is_current()).count();
        let has_room = kept + self.opening.len() < UNKNOWN_PORTS_MAX;
        if has_room {
            self.opening.push(Process::current());
        }
        has_room
    }
}

impl<O> UnconfirmedPermit<'_, O> {
    /// Gives up an endpoint that was opened here, for now.
    fn keep(self, opened: O) {
        let mut unknown = lock(self.0);
        unknown.opening.pop();
        unknown.kept.push(ForkGuard::new(opened));
        drop(unknown);
        std::mem::forget(self);
    }
}

impl<O> Drop for UnconfirmedPermit<'_, O> {
    fn drop(&mut self) {
        lock(self.0).opening.pop();
    }
}

impl UnconfirmedEndpoint {
    fn new(region: &Region, end: &Arc<[u8]>) -> Result<UnconfirmedEndpoint, String> {
        let told = |error: Error| error.to_string();
        let options = EndpointOptions { operations: SHORT_READ_BUFFERS, peers: 1, waits: true };
        let mut port = Endpoint::open(&region.domain, options).map_err(told)?;
        let peer = port.connect(end).map_err(told)?;
        let short = Pool::new(&region.domain, SHORT_READ_BUFFERS, SHORT_READ_BYTES).map_err(told)?;
        let unposted = Some(short.take().ok_or("no buffer is left")?);
        Ok(UnconfirmedEndpoint {
            opened: ConfirmedEndpoint { port, peer, short },
            end: Arc::clone(end),
            unposted,
        })
    }

    /// Returns an abandoned endpoint to this server, or a permit for a new one where their number is limited. Those
    /// to servers that are gone are dropped.
    fn again(
        region: &Region,
        end: &Arc<[u8]>,
    ) -> Result<(Option<UnconfirmedPermit<'static, UnconfirmedEndpoint>>, Option<UnconfirmedEndpoint>), String>
    {
        if !must_be_known(&region.domain) {
            return Ok((None, None));
        }
        let mut unknown = lock(&UNKNOWN);
        let gone: Vec<_> = unknown.kept.extract_if(.., |opening| is_gone(&opening.end)).collect();
        let found = unknown.kept.iter().position(|opening| {
            let is_it = opening.end == *end && Arc::ptr_eq(opening.opened.port.domain(), &region.domain);
            is_it && opening.is_current()
        });
        let found = found.map(|at| unknown.kept.swap_remove(at));
        let has_room = unknown.has_taken_room();
        drop(unknown);
        drop(gone);
        if !has_room {
            return Err("there are servers that stand still and may not know of ports for reads".into());
        }
        Ok((Some(UnconfirmedPermit(&UNKNOWN)), found.and_then(ForkGuard::into_inner)))
    }

    /// The provider has accepted nothing, so the server may not know the endpoint, and would crash if it were closed.
    fn must_be_kept(&self) -> bool {
        self.unposted.is_some() && must_be_known(self.opened.port.domain())
    }

    /// Reads the first bytes of the memory at this place, once the provider lets it.
    fn step(&mut self, at: RemoteAddress) -> Result<Option<Buffer>, String> {
        let ConfirmedEndpoint { port, peer, .. } = &mut self.opened;
        if let Some(buffer) = self.unposted.take()
            && let Err(RejectedOperation { buffer, error }) = port.read(*peer, at, buffer, 0..FIRST_BYTES, 0)
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

    fn wait(&mut self, region: &Region, end: &ServerEnd, deadline: Instant) -> Result<Buffer, String> {
        let at = RemoteAddress { address: end.memory.address, key: end.memory.key };
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
            // The server may be asleep, and must poll its endpoint before the two are connected.
            region.notify_repeatedly(&self.end, tries);
            tries += 1;
        }
    }
}

/// Returns whether servers crash if an endpoint is closed before they know it.
fn must_be_known(domain: &Domain) -> bool {
    domain.provider().trusts_peers()
}

/// Returns whether the process of this endpoint has ended, as far as its address says.
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

fn lock<O>(unknown: &Mutex<UnconfirmedEndpoints<O>>) -> MutexGuard<'_, UnconfirmedEndpoints<O>> {
    unknown.lock().expect("no thread panics while it looks after ports that are not known")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_open_at_once_share_the_room() {
        let unknown = Mutex::new(UnconfirmedEndpoints::<usize>::new());
        let begin = std::sync::Barrier::new(UNKNOWN_PORTS_MAX * 2);
        let try_one = |number: usize| {
            let room = lock(&unknown).has_taken_room().then(|| UnconfirmedPermit(&unknown));
            begin.wait();
            match room {
                Some(room) if number.is_multiple_of(2) => room.keep(number),
                _ => {}
            }
        };
        std::thread::scope(|scope| {
            for number in 0..UNKNOWN_PORTS_MAX * 2 {
                scope.spawn(move || try_one(number));
            }
        });
        let kept = lock(&unknown).kept.len();
        assert!(kept <= UNKNOWN_PORTS_MAX, "{kept}");
        for _ in kept..UNKNOWN_PORTS_MAX {
            assert!(lock(&unknown).has_taken_room(), "room comes back");
        }
        assert!(!lock(&unknown).has_taken_room(), "what is kept has some");
    }

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
