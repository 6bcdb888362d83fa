//! What is between a worker and the thread that drives a link: a pipe in each direction, and a doorbell.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::EventfdFlags;

use super::server::Wake;
use crate::contract::{Kind, Link, Peer, PolledLink, Received, StreamLink};

/// Bytes of either direction at most.
const PIPE_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
struct State {
    /// To the worker.
    incoming: VecDeque<u8>,
    /// From the worker.
    outgoing: Vec<u8>,
    /// Nothing more comes.
    has_ended: bool,
    /// The worker has dropped its end.
    is_dropped: bool,
    /// The worker sleeps until something comes.
    is_armed: bool,
    /// The worker waits for room.
    wants_room: bool,
}

impl State {
    fn new() -> State {
        State {
            incoming: VecDeque::new(),
            outgoing: Vec::new(),
            has_ended: false,
            is_dropped: false,
            // The descriptor reports what comes before the worker polls.
            is_armed: true,
            wants_room: false,
        }
    }
}

/// A pipe in each direction.
#[derive(Debug)]
pub struct Pipe {
    client: usize,
    state: Mutex<State>,
    /// Something came that the worker has not received.
    has_unread: AtomicBool,
    /// The worker did something that the thread has not seen. Set under the lock, reset before it.
    has_news: AtomicBool,
    /// Readable when the worker is to look.
    doorbell: OwnedFd,
    wake: Arc<dyn Wake>,
}

impl Pipe {
    /// Returns a pipe for the requests of this PE. `wake` wakes the thread that drives the link.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(client: usize, wake: Arc<dyn Wake>) -> io::Result<Pipe> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Pipe {
            client,
            state: Mutex::new(State::new()),
            has_unread: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            doorbell,
            wake,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds a pipe")
    }

    fn ring(&self) {
        // A full counter wakes the worker as well.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    fn drain_doorbell(&self) {
        // There may be nothing to read.
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
    }

    // ---- the thread that drives the link ----

    /// Returns whether the worker did something: it sent, dropped its end, or made room.
    pub fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    /// Returns the same, and that the thread sees it now.
    pub fn take_news(&self) -> bool {
        self.has_news() && self.has_news.swap(false, Ordering::Relaxed)
    }

    /// Passes a prefix of `bytes` to the worker, and returns its length.
    pub fn push(&self, bytes: &[u8]) -> usize {
        let mut state = self.lock();
        if state.is_dropped {
            // Nobody receives it.
            return bytes.len();
        }
        let len = bytes.len().min(PIPE_BYTES_MAX - state.incoming.len());
        state.incoming.extend(&bytes[..len]);
        self.has_unread.store(true, Ordering::Release);
        let rings = len > 0 && std::mem::take(&mut state.is_armed);
        drop(state);
        if rings {
            self.ring();
        }
        len
    }

    /// Takes all that the worker has sent into `into`, which is empty. Returns whether that was anything.
    pub fn take(&self, into: &mut Vec<u8>) -> bool {
        debug_assert!(into.is_empty());
        let mut state = self.lock();
        if state.outgoing.is_empty() {
            return false;
        }
        std::mem::swap(&mut state.outgoing, into);
        let rings = std::mem::take(&mut state.wants_room);
        drop(state);
        if rings {
            self.ring();
        }
        true
    }

    /// Nothing more comes.
    pub fn end(&self) {
        let mut state = self.lock();
        let is_first = !std::mem::replace(&mut state.has_ended, true);
        self.has_unread.store(true, Ordering::Release);
        drop(state);
        if is_first {
            self.ring();
        }
    }

    /// Returns whether the worker has dropped its end, and all that it sent was taken.
    pub fn is_done(&self) -> bool {
        let state = self.lock();
        state.is_dropped && state.outgoing.is_empty()
    }
}

/// The worker's end.
#[derive(Debug)]
pub struct PipeLink {
    pipe: Arc<Pipe>,
    /// The worker does not wait for the descriptor.
    is_polled: bool,
}

impl PipeLink {
    pub(super) fn new(pipe: Arc<Pipe>) -> PipeLink {
        PipeLink { pipe, is_polled: false }
    }

    /// Ends a change that the thread must see.
    fn tell(&self, state: MutexGuard<'_, State>) {
        self.pipe.has_news.store(true, Ordering::Relaxed);
        drop(state);
        self.pipe.wake.wake();
    }
}

impl Drop for PipeLink {
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        state.is_dropped = true;
        state.incoming = VecDeque::new();
        self.tell(state);
    }
}

impl Link for PipeLink {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        let mut state = self.pipe.lock();
        let len = into.len().min(state.incoming.len());
        if len == 0 {
            if state.has_ended {
                return Ok(Received::End);
            }
            if !self.is_polled {
                // Such a worker waits for the descriptor.
                self.pipe.drain_doorbell();
                state.is_armed = true;
            }
            return Ok(Received::Nothing);
        }
        let was_full = state.incoming.len() == PIPE_BYTES_MAX;
        let (first, second) = state.incoming.as_slices();
        let of_first = len.min(first.len());
        into[..of_first].copy_from_slice(&first[..of_first]);
        into[of_first..len].copy_from_slice(&second[..len - of_first]);
        state.incoming.drain(..len);
        let is_left = !state.incoming.is_empty() || state.has_ended;
        self.pipe.has_unread.store(is_left, Ordering::Release);
        if was_full {
            self.tell(state);
        }
        Ok(Received::Bytes(len))
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.pipe.lock();
        if state.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let (before, mut is_short) = (state.outgoing.len(), false);
        for part in parts {
            let len = part.len().min(PIPE_BYTES_MAX - state.outgoing.len());
            state.outgoing.extend_from_slice(&part[..len]);
            is_short |= len < part.len();
        }
        state.wants_room |= is_short;
        let sent = state.outgoing.len() - before;
        if sent > 0 {
            self.tell(state);
        }
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn has_unsent(&self) -> bool {
        false
    }

    fn has_unread(&self) -> bool {
        self.pipe.has_unread.load(Ordering::Acquire)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pipe.doorbell.as_fd())
    }

    fn peer(&self) -> Peer {
        Peer::Pe(self.pipe.client)
    }

    fn kind(&self) -> Kind {
        Kind::OpenShmem
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

impl PolledLink for PipeLink {
    fn drain_wakeup(&mut self) {
        self.pipe.drain_doorbell();
    }

    fn start_polling(&mut self) {
        self.is_polled = true;
        self.pipe.lock().is_armed = false;
    }

    fn arm_wakeup(&mut self) -> bool {
        self.is_polled = false;
        let mut state = self.pipe.lock();
        let is_quiet = state.incoming.is_empty() && !state.has_ended;
        state.is_armed = is_quiet;
        is_quiet
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[derive(Debug)]
    struct Awake;

    impl Wake for Awake {
        fn wake(&self) {}
    }

    fn pipe() -> (Arc<Pipe>, PipeLink) {
        let pipe = Arc::new(Pipe::new(1, Arc::new(Awake)).expect("a descriptor"));
        (Arc::clone(&pipe), PipeLink::new(pipe))
    }

    fn is_rung(pipe: &Pipe) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let doorbell = PollFd::new(&pipe.doorbell, PollFlags::IN);
        poll(&mut [doorbell], Some(&at_once)).expect("it works") > 0
    }

    #[test]
    fn polling_worker_is_not_rung() {
        let (pipe, mut link) = pipe();
        link.start_polling();
        for _ in 0..2 {
            assert_eq!(link.receive(&mut [0; 9]).expect("it works"), Received::Nothing);
            assert_eq!(pipe.push(b"x"), 1);
            assert!(!is_rung(&pipe) && link.has_unread());
            assert_eq!(link.receive(&mut [0; 9]).expect("it works"), Received::Bytes(1));
            assert!(!link.has_unread());
        }
        assert!(link.arm_wakeup());
        assert_eq!(pipe.push(b"x"), 1);
        assert!(is_rung(&pipe) && !link.arm_wakeup());
        link.drain_wakeup();
        assert!(!is_rung(&pipe));
    }

    #[test]
    fn bytes_to_a_dropped_end_are_discarded() {
        let (pipe, link) = pipe();
        assert_eq!(pipe.push(&[1; PIPE_BYTES_MAX + 1]), PIPE_BYTES_MAX);
        assert_eq!(pipe.push(b"x"), 0);
        drop(link);
        assert_eq!((pipe.push(b"x"), pipe.lock().incoming.capacity()), (1, 0));
        assert!(pipe.take_news() && !pipe.has_news() && pipe.is_done());
    }
}
