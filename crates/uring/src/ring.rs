//! One thread's ring.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::buffers::{BUFFERS, BufferId, Buffers};

/// Requests that are submitted at once; more are submitted in several calls.
const SUBMISSIONS: u32 = 256;

/// Completions that the kernel holds in the ring; it queues further ones elsewhere.
const COMPLETIONS: u32 = 1024;

/// The group of the buffers, the ring's only one.
const GROUP: u16 = 0;

/// Marks the tokens of requests that wait until a descriptor is readable.
const READABLE_BIT: u64 = 1 << 63;

/// The token of requests that cancel others.
const CANCEL: u64 = u64::MAX;

/// The largest token of a request.
pub const TOKEN_MAX: u64 = READABLE_BIT - 2;

/// How long [`probe`] waits for bytes that lie in a socket.
const PROBE_TIME_MAX: Duration = Duration::from_secs(5);

/// One event of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// What happened.
    pub outcome: Outcome,
    /// Whether the request goes on and may complete again.
    pub has_more: bool,
}

/// What a completion reports.
#[derive(Debug)]
pub enum Outcome {
    /// Bytes were received.
    Received(BufferId),
    /// The peer sends no more.
    End,
    /// Bytes have arrived, but no buffer was free for them.
    NoBuffer,
    /// The request was cancelled.
    Cancelled,
    /// The socket is broken, or the kernel refuses the request.
    Failed(io::Error),
    /// The descriptor is readable.
    Readable,
}

/// A ring, which one thread uses.
pub struct Ring {
    // Closed before the buffers are unmapped.
    ring: IoUring,
    buffers: Buffers,
    /// Requests, other than cancellations, whose last completion was not seen.
    in_flight: usize,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

/// Checks that this process may use io_uring, and that the kernel has what [`Ring`] needs.
///
/// # Errors
/// What is refused or missing.
pub fn probe() -> io::Result<()> {
    let mut ring = Ring::new()?;
    ring.enable()?;
    let (mut one, other) = UnixStream::pair()?;
    one.write_all(b"?")?;
    ring.receive(other.as_fd(), 0)?;
    ring.wait(Some(PROBE_TIME_MAX))?;
    match ring.next_completion().map(|completion| completion.outcome) {
        Some(Outcome::Received(buffer)) if ring.bytes(buffer) == b"?" => Ok(()),
        Some(Outcome::Failed(error)) => Err(error),
        other => Err(io::Error::other(format!("a receive from a socket resulted in {other:?}"))),
    }
}

impl Ring {
    /// Creates a ring, which some thread then [enables](Ring::enable).
    ///
    /// # Errors
    /// The kernel lacks io_uring or is older than 6.1, or a limit forbids the ring.
    pub fn new() -> io::Result<Ring> {
        let buffers = Buffers::new()?;
        let ring: IoUring<squeue::Entry, cqueue::Entry> = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        let address = buffers.ring_address();
        let submitter = ring.submitter();
        // SAFETY: the ring of entries lies at the start of the mapping, which outlives the ring and every request:
        // `Ring::drop` ends them all, or leaks it.
        unsafe { submitter.register_buf_ring_with_flags(address, BUFFERS as u16, GROUP, 0) }?;
        Ok(Ring { ring, buffers, in_flight: 0 })
    }

    /// Makes the calling thread the one that uses the ring, and lets it begin.
    ///
    /// # Errors
    /// The system's.
    pub fn enable(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Receives from a stream socket until it is cancelled, the stream ends, or no buffer is free.
    ///
    /// The kernel looks the descriptor up when the request is submitted, at the latest by the next [`Ring::wait`].
    ///
    /// # Errors
    /// The system's.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        assert!(token <= TOKEN_MAX, "the ring uses the token {token}");
        let request = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP);
        self.push(&request.build().user_data(token))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Reports once that the descriptor is readable.
    ///
    /// # Errors
    /// The system's.
    pub fn wait_readable(&mut self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        assert!(token <= TOKEN_MAX, "the ring uses the token {token}");
        let request = opcode::PollAdd::new(Fd(fd.as_raw_fd()), EventFlags::IN.bits());
        self.push(&request.build().user_data(token | READABLE_BIT))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Cancels the receive with this token. Its last completion still comes, possibly after further bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn cancel(&mut self, token: u64) -> io::Result<()> {
        self.push(&opcode::AsyncCancel::new(token).build().user_data(CANCEL))
    }

    /// Submits all requests now.
    ///
    /// # Errors
    /// The system's.
    pub fn submit(&mut self) -> io::Result<()> {
        submit(&mut self.ring)
    }

    /// Submits all requests, and waits for a completion for at most `timeout`, if one is given.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let submissions = self.ring.submission();
        let has_work = !submissions.is_empty() || submissions.taskrun() || submissions.cq_overflow();
        drop(submissions);
        let entered = match timeout {
            Some(Duration::ZERO) if !has_work => return Ok(()),
            Some(Duration::ZERO) => self.ring.submit(),
            Some(timeout) => {
                let time = Timespec::from(timeout);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            None => self.ring.submit_and_wait(1),
        };
        unless_temporary(entered)
    }

    /// Returns the next completion, if there is one.
    pub fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() != CANCEL {
                return Some(self.completion(&entry));
            }
        }
    }

    fn completion(&mut self, entry: &cqueue::Entry) -> Completion {
        let token = entry.user_data();
        let has_more = cqueue::more(entry.flags());
        self.in_flight -= usize::from(!has_more);
        let is_receive = token & READABLE_BIT == 0;
        let buffer = cqueue::buffer_select(entry.flags());
        let outcome = match (u32::try_from(entry.result()), buffer) {
            (Ok(len @ 1..), Some(id)) if is_receive => Outcome::Received(self.buffers.take(id, len)),
            (result, unused) => {
                if let Some(id) = unused {
                    self.buffers.return_unused(id);
                }
                match result {
                    Ok(_) if is_receive => Outcome::End,
                    Ok(_) => Outcome::Readable,
                    Err(_) => failure(Errno::from_raw_os_error(-entry.result())),
                }
            }
        };
        Completion { token: token & !READABLE_BIT, outcome, has_more }
    }

    /// Returns a received buffer's bytes.
    ///
    /// # Panics
    /// The buffer was given back.
    pub fn bytes(&self, buffer: BufferId) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    /// Gives a received buffer back, for other bytes.
    ///
    /// # Panics
    /// It was given back before.
    pub fn give_back(&mut self, buffer: BufferId) {
        self.buffers.give_back(buffer);
    }

    fn push(&mut self, request: &squeue::Entry) -> io::Result<()> {
        // SAFETY: all requests of this file name a descriptor, a token and the group of buffers, which are valid as long as the
        // ring, and no other memory.
        if unsafe { self.ring.submission().push(request) }.is_ok() {
            return Ok(());
        }
        self.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(request) }.map_err(|_| io::ErrorKind::ResourceBusy.into())
    }

    /// Ends all requests.
    fn end_requests(&mut self) -> io::Result<()> {
        if self.in_flight == 0 {
            return Ok(());
        }
        let all = opcode::AsyncCancel2::new(CancelBuilder::any());
        self.push(&all.build().user_data(CANCEL))?;
        while self.in_flight > 0 {
            self.wait(None)?;
            while self.next_completion().is_some() {}
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // After a close the kernel ends requests in its own time.
        if self.end_requests().is_err() {
            self.buffers.leak();
        }
    }
}

/// Submits a ring's queued requests, if there are any. If the completion queue must be emptied first, they stay.
pub(crate) fn submit(ring: &mut IoUring<squeue::Entry, cqueue::Entry>) -> io::Result<()> {
    if ring.submission().is_empty() {
        return Ok(());
    }
    unless_temporary(ring.submit())
}

/// Returns the error of a call, unless a later one may succeed: a signal came, time is over, or completions must be
/// taken first.
pub(crate) fn unless_temporary(entered: io::Result<usize>) -> io::Result<()> {
    let temporary = [Errno::INTR, Errno::TIME, Errno::BUSY, Errno::AGAIN];
    match entered {
        Err(error) if !Errno::from_io_error(&error).is_some_and(|error| temporary.contains(&error)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

fn failure(error: Errno) -> Outcome {
    match error {
        Errno::NOBUFS => Outcome::NoBuffer,
        Errno::CANCELED => Outcome::Cancelled,
        error => Outcome::Failed(error.into()),
    }
}
