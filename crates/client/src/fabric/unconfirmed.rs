//! Opens an endpoint for reads and waits until the server knows it.
//!
//! The endpoints connect when the server's worker next polls its own. With shm of libfabric 1.17 an endpoint must not
//! be closed before that: the worker would access memory that is gone, and crash. So an endpoint that did not connect
//! in time is kept, even beyond its client, and reused for the next reads from there.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use fabcache_fabric::{
    Buffer, Completion, Domain, Endpoint, EndpointOptions, Error, LocalUse, Peer, Pool, RejectedOperation,
    RemoteAddress,
};
use fabcache_layout::format::HEADER_BYTES;
use fabcache_layout::process::Process;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::fork_guard::ForkGuard;
use super::region::Region;
use super::sockets::ServerEnd;
use crate::bounds::{SHORT_READ_BUFFERS, SHORT_READ_BYTES, UNCONFIRMED_ENDPOINTS_MAX};

/// An endpoint that the server knows.
#[derive(Debug)]
pub struct ConfirmedEndpoint {
    // Declared before the memory that its operations use.
    pub endpoint: Endpoint,
    pub peer: Peer,
    pub short: Pool,
}

/// An endpoint that the server may not know yet.
#[derive(Debug)]
struct UnconfirmedEndpoint {
    opened: ConfirmedEndpoint,
    end: Arc<[u8]>,
    /// The buffer of the first read, which the provider has not accepted yet.
    unposted: Option<Buffer>,
}

/// Endpoints that their servers may not know yet and that must not be closed: at most [`UNCONFIRMED_ENDPOINTS_MAX`] in this
/// process.
struct UnconfirmedEndpoints<O> {
    /// Endpoints abandoned for now.
    kept: Vec<ForkGuard<O>>,
    /// The process that opens each endpoint.
    opening: Vec<Process>,
}

static UNKNOWN: Mutex<UnconfirmedEndpoints<UnconfirmedEndpoint>> = Mutex::new(UnconfirmedEndpoints::new());

/// Permission to open one more.
struct UnconfirmedPermit<'a, O>(&'a Mutex<UnconfirmedEndpoints<O>>);

/// The prerequisites of opening an endpoint.
struct Opening {
    /// The permit to open an endpoint, if their number is limited.
    permit: Option<UnconfirmedPermit<'static, UnconfirmedEndpoint>>,
    /// An endpoint to the same server that was abandoned before it connected.
    abandoned: Option<UnconfirmedEndpoint>,
}

/// The region cannot be read over the fabric now; GETs are requests.
#[derive(Debug)]
pub struct Unavailable;

impl From<Error> for Unavailable {
    fn from(_: Error) -> Unavailable {
        Unavailable
    }
}

/// Attempts at the first read between two checks of whether the server is alive.
const CONNECTING_ATTEMPTS: u32 = 64;

const FIRST_BYTES: usize = HEADER_BYTES as usize;

/// Opens an endpoint to one of the server's, and reads the region's first bytes through it.
///
/// # Errors
/// The fabric fails, the server is gone, too many endpoints are unconfirmed, or the deadline passes.
pub fn open(
    region: &Region,
    end: &ServerEnd,
    deadline: Instant,
) -> Result<(ConfirmedEndpoint, Buffer), Unavailable> {
    if region.bytes < HEADER_BYTES {
        return Err(Unavailable);
    }
    let Opening { permit, abandoned } = UnconfirmedEndpoint::again(region, &end.name)?;
    let mut endpoint = match abandoned {
        Some(endpoint) => endpoint,
        None => UnconfirmedEndpoint::new(region, &end.name)?,
    };
    match (endpoint.wait(region, end, deadline), permit) {
        (Ok(first), _) => Ok((endpoint.opened, first)),
        (Err(Unavailable), Some(permit)) if endpoint.must_be_kept() => {
            permit.keep(endpoint);
            Err(Unavailable)
        }
        (Err(Unavailable), _) => Err(Unavailable),
    }
}

impl<O> UnconfirmedEndpoints<O> {
    const fn new() -> UnconfirmedEndpoints<O> {
        UnconfirmedEndpoints { kept: Vec::new(), opening: Vec::new() }
    }

    /// Registers one more endpoint being opened; returns false if there is no room.
    fn has_taken_room(&mut self) -> bool {
        // Permits of a parent process do not count here.
        self.opening.retain(|process| process.is_current());
        let kept = self.kept.iter().filter(|one| one.is_current()).count();
        let has_room = kept + self.opening.len() < UNCONFIRMED_ENDPOINTS_MAX;
        if has_room {
            self.opening.push(Process::current());
        }
        has_room
    }
}

impl<O> UnconfirmedPermit<'_, O> {
    /// Abandons an endpoint that was opened here.
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
    fn new(region: &Region, end: &Arc<[u8]>) -> Result<UnconfirmedEndpoint, Unavailable> {
        let options = EndpointOptions { operations: SHORT_READ_BUFFERS, peers: 1, waits: true };
        let mut endpoint = Endpoint::open(&region.domain, options)?;
        let peer = endpoint.connect(end)?;
        let short = Pool::new(&region.domain, LocalUse::READ, SHORT_READ_BUFFERS, SHORT_READ_BYTES)?;
        let unposted = Some(short.take().ok_or(Unavailable)?);
        Ok(UnconfirmedEndpoint {
            opened: ConfirmedEndpoint { endpoint, peer, short },
            end: Arc::clone(end),
            unposted,
        })
    }

    /// Returns an abandoned endpoint to this server, or a permit for a new one where their number is limited. Those
    /// to servers that are gone are dropped.
    fn again(region: &Region, end: &Arc<[u8]>) -> Result<Opening, Unavailable> {
        if !must_be_known(&region.domain) {
            return Ok(Opening { permit: None, abandoned: None });
        }
        let mut unknown = lock(&UNKNOWN);
        let gone: Vec<_> = unknown.kept.extract_if(.., |opening| is_gone(&opening.end)).collect();
        let found = unknown.kept.iter().position(|opening| {
            let is_it = opening.end == *end && Arc::ptr_eq(opening.opened.endpoint.domain(), &region.domain);
            is_it && opening.is_current()
        });
        let found = found.map(|at| unknown.kept.swap_remove(at));
        let has_room = unknown.has_taken_room();
        drop(unknown);
        drop(gone);
        if !has_room {
            return Err(Unavailable);
        }
        let abandoned = found.and_then(ForkGuard::into_inner);
        Ok(Opening { permit: Some(UnconfirmedPermit(&UNKNOWN)), abandoned })
    }

    /// The provider has accepted nothing, so the server may not know the endpoint, and would crash if it were closed.
    fn must_be_kept(&self) -> bool {
        self.unposted.is_some() && must_be_known(self.opened.endpoint.domain())
    }

    /// Posts the read of the first bytes if the provider accepts it, and polls for its completion.
    fn step(&mut self, at: RemoteAddress) -> Result<Option<Buffer>, Unavailable> {
        let ConfirmedEndpoint { endpoint, peer, .. } = &mut self.opened;
        if let Some(buffer) = self.unposted.take()
            && let Err(RejectedOperation { buffer, error }) =
                endpoint.read(*peer, at, buffer, 0..FIRST_BYTES, 0)
        {
            if !error.is_again() {
                return Err(error.into());
            }
            self.unposted = Some(buffer);
        }
        let mut ended = Vec::new();
        endpoint.poll(&mut ended)?;
        let Some(Completion { result, buffer, .. }) = ended.pop() else { return Ok(None) };
        result?;
        Ok(Some(buffer))
    }

    fn wait(&mut self, region: &Region, end: &ServerEnd, deadline: Instant) -> Result<Buffer, Unavailable> {
        let at = RemoteAddress { address: end.memory.address, key: end.memory.key };
        let mut tries = 0;
        loop {
            if let Some(first) = self.step(at)? {
                return Ok(first);
            }
            if Instant::now() >= deadline {
                return Err(Unavailable);
            }
            if tries % CONNECTING_ATTEMPTS == CONNECTING_ATTEMPTS - 1 && region.sockets.have_ended() {
                return Err(Unavailable);
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

/// Parses the process id of a shm address: `fi_shm://PROCESS:DOMAIN:ENDPOINT`.
fn process_of(end: &[u8]) -> Option<Pid> {
    let rest = end.strip_prefix(b"fi_shm://")?;
    let process = rest.split(|byte| *byte == b':').next()?;
    Pid::from_raw(std::str::from_utf8(process).ok()?.parse().ok()?)
}

fn lock<O>(unknown: &Mutex<UnconfirmedEndpoints<O>>) -> MutexGuard<'_, UnconfirmedEndpoints<O>> {
    unknown.lock().expect("no thread panics while it holds unconfirmed endpoints")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_opening_together_share_the_limit() {
        let unknown = Mutex::new(UnconfirmedEndpoints::<usize>::new());
        let begin = std::sync::Barrier::new(UNCONFIRMED_ENDPOINTS_MAX * 2);
        let try_one = |number: usize| {
            let room = lock(&unknown).has_taken_room().then(|| UnconfirmedPermit(&unknown));
            begin.wait();
            match room {
                Some(room) if number.is_multiple_of(2) => room.keep(number),
                _ => {}
            }
        };
        std::thread::scope(|scope| {
            for number in 0..UNCONFIRMED_ENDPOINTS_MAX * 2 {
                scope.spawn(move || try_one(number));
            }
        });
        let kept = lock(&unknown).kept.len();
        assert!(kept <= UNCONFIRMED_ENDPOINTS_MAX, "{kept}");
        for _ in kept..UNCONFIRMED_ENDPOINTS_MAX {
            assert!(lock(&unknown).has_taken_room(), "the permit is released");
        }
        assert!(!lock(&unknown).has_taken_room(), "a kept endpoint holds a permit");
    }

    #[test]
    fn endpoints_of_exited_processes_are_not_counted() {
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
