//! Reads and writes of files, which run while their thread does other work.
//!
//! A request owns its buffer and keeps its file open until its completion, so a caller can neither access bytes that
//! the kernel uses nor close the file under it.
//!
//! The ring's descriptor is readable while completions wait, in an epoll set and for a poll of another ring. For that
//! the ring lacks `IORING_SETUP_DEFER_TASKRUN`, under which completions wait until the thread enters the ring.
//! With `IORING_SETUP_COOP_TASKRUN`, completions appear at the thread's next system call, and do not interrupt it
//! before: 1.3 us of CPU a read of a memory file instead of 2.1 us. `IORING_SETUP_SINGLE_ISSUER` saves nothing more.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use aligned_vec::{AVec, ConstAlign};
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use crate::ring::{submit, unless_temporary};

/// A buffer with the alignment that direct I/O needs.
pub type PageBuffer = AVec<u8, ConstAlign<4096>>;

/// The token of the request that cancels all others.
const CANCEL: u64 = u64::MAX;

/// A ring for files, which one thread uses.
///
/// Another thread may use it once nothing is in flight: a request completes by its thread's system calls, and is
/// cancelled when its thread ends.
pub struct FileRing {
    ring: IoUring,
    requests: Vec<Option<Request>>,
    /// The indices of `requests` that are free. No more requests than these are in flight, so neither queue is ever full.
    free: Vec<u32>,
}

/// What a request keeps until its completion.
struct Request {
    buffer: PageBuffer,
    file: Arc<File>,
    token: u64,
}

/// The end of a request.
#[derive(Debug)]
pub struct FileCompletion {
    /// The request's token.
    pub token: u64,
    /// The request's buffer.
    pub buffer: PageBuffer,
    /// How many bytes were read or written: fewer than requested at the end of the file, or when the device is full.
    pub result: io::Result<usize>,
}

/// A request that the ring did not take.
#[derive(Debug)]
pub struct Unqueued {
    /// The request's buffer.
    pub buffer: PageBuffer,
    /// [`io::ErrorKind::ResourceBusy`]: as many requests are in flight as the ring holds.
    pub error: io::Error,
}

impl fmt::Debug for FileRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRing").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

/// Checks that this process may use io_uring, and that the kernel has what [`FileRing`] needs.
///
/// # Errors
/// What is refused or missing.
pub fn probe_files() -> io::Result<()> {
    let mut ring = FileRing::new(1)?;
    let file = Arc::new(File::open("/dev/zero")?);
    let buffer = PageBuffer::from_slice(4096, &[1]);
    ring.read(&file, 0, buffer, 0..1, 0).map_err(|unqueued| unqueued.error)?;
    ring.wait(None)?;
    match ring.next_completion() {
        Some(FileCompletion { buffer, result: Ok(1), .. }) if buffer[0] == 0 => Ok(()),
        Some(FileCompletion { result: Err(error), .. }) => Err(error),
        other => Err(io::Error::other(format!("a read of /dev/zero resulted in {other:?}"))),
    }
}

impl FileRing {
    /// Creates a ring that holds `entries` requests in flight, or up to the next power of two.
    ///
    /// # Errors
    /// The kernel lacks io_uring or is older than 5.19, or a limit forbids the ring.
    pub fn new(entries: u32) -> io::Result<FileRing> {
        let ring: IoUring<squeue::Entry, cqueue::Entry> =
            IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().setup_submit_all().build(entries)?;
        let entries = ring.params().sq_entries();
        let requests = (0..entries).map(|_| None).collect();
        Ok(FileRing { ring, requests, free: (0..entries).rev().collect() })
    }

    /// Reads from the file at `offset` into the bytes `bytes` of the buffer.
    ///
    /// # Errors
    /// The ring is full.
    ///
    /// # Panics
    /// The range does not lie in the buffer, or is longer than `u32::MAX`.
    pub fn read(
        &mut self,
        file: &Arc<File>,
        offset: u64,
        buffer: PageBuffer,
        bytes: Range<usize>,
        token: u64,
    ) -> Result<(), Unqueued> {
        let request = Request { buffer, file: Arc::clone(file), token };
        self.start(request, bytes, |fd, part, len| opcode::Read::new(fd, part, len).offset(offset).build())
    }

    /// Writes the bytes `bytes` of the buffer to the file at `offset`.
    ///
    /// # Errors
    /// The ring is full.
    ///
    /// # Panics
    /// The range does not lie in the buffer, or is longer than `u32::MAX`.
    pub fn write(
        &mut self,
        file: &Arc<File>,
        offset: u64,
        buffer: PageBuffer,
        bytes: Range<usize>,
        token: u64,
    ) -> Result<(), Unqueued> {
        let request = Request { buffer, file: Arc::clone(file), token };
        self.start(request, bytes, |fd, part, len| opcode::Write::new(fd, part, len).offset(offset).build())
    }

    /// Queues the entry that [`read`](Self::read) or [`write`](Self::write) makes for a part of the request's buffer and its file.
    fn start(
        &mut self,
        mut request: Request,
        bytes: Range<usize>,
        entry: impl FnOnce(Fd, *mut u8, u32) -> squeue::Entry,
    ) -> Result<(), Unqueued> {
        let (address, len) = part(&mut request.buffer, bytes);
        let entry = entry(Fd(request.file.as_raw_fd()), address, len);
        let Some(index) = self.free.pop() else {
            return Err(Unqueued { buffer: request.buffer, error: io::ErrorKind::ResourceBusy.into() });
        };
        self.requests[index as usize] = Some(request);
        let entry = entry.user_data(u64::from(index));
        // SAFETY: the entry's memory is an initialised part of the request's buffer, and its descriptor that of the
        // request's file. `requests` keeps both, and accesses neither, until the completion; `drop` waits for it or leaks them.
        // The memory lies on the heap, so it stays where it is when the `PageBuffer` moves.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has an entry for each request");
        Ok(())
    }

    /// Submits all requests now.
    ///
    /// # Errors
    /// The system's. The requests stay queued.
    pub fn submit(&mut self) -> io::Result<()> {
        submit(&mut self.ring)
    }

    /// Submits all requests, and waits for a completion for at most `timeout`, if one is given. Returns at once if nothing
    /// is in flight or a completion waits.
    ///
    /// # Errors
    /// The system's. The requests stay queued.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let submissions = self.ring.submission();
        let has_work = !submissions.is_empty() || submissions.taskrun();
        drop(submissions);
        let may_sleep = self.in_flight() > 0 && self.ring.completion().is_empty();
        let entered = match timeout {
            Some(timeout) if may_sleep && !timeout.is_zero() => {
                let time = Timespec::from(timeout);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            None if may_sleep => self.ring.submit_and_wait(1),
            _ if has_work => self.ring.submit(),
            _ => return Ok(()),
        };
        unless_temporary(entered)
    }

    /// Returns the next completion, if there is one, without a system call.
    pub fn next_completion(&mut self) -> Option<FileCompletion> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() == CANCEL {
                continue;
            }
            let index = entry.user_data() as u32;
            let request = self.requests[index as usize].take().expect("a request completes once");
            self.free.push(index);
            let error = || Errno::from_raw_os_error(-entry.result()).into();
            let result = usize::try_from(entry.result()).map_err(|_| error());
            return Some(FileCompletion { token: request.token, buffer: request.buffer, result });
        }
    }

    /// Returns how many requests have no completion that was taken.
    pub fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// Returns how many requests may be in flight.
    pub fn capacity(&self) -> usize {
        self.requests.len()
    }

    /// Returns the ring's descriptor, which is readable while completions wait.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        let fd: RawFd = self.ring.as_raw_fd();
        // SAFETY: the ring owns the descriptor, and outlives the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Cancels all requests, and waits for their completions.
    fn end_requests(&mut self) -> io::Result<()> {
        while self.in_flight() > 0 && !self.ring.submission().is_empty() {
            self.submit()?;
            while self.next_completion().is_some() {}
        }
        if self.in_flight() == 0 {
            return Ok(());
        }
        let all = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(CANCEL);
        // SAFETY: the entry names neither memory nor a descriptor.
        let pushed = unsafe { self.ring.submission().push(&all) };
        pushed.expect("all requests were submitted");
        while self.in_flight() > 0 {
            self.wait(None)?;
            while self.next_completion().is_some() {}
        }
        Ok(())
    }
}

impl Drop for FileRing {
    fn drop(&mut self) {
        // After a close the kernel ends requests in its own time.
        if self.end_requests().is_err() {
            std::mem::forget(std::mem::take(&mut self.requests));
        }
    }
}

/// Returns the address and length of a part of the buffer.
fn part(buffer: &mut PageBuffer, bytes: Range<usize>) -> (*mut u8, u32) {
    let part = &mut buffer[bytes];
    let len = u32::try_from(part.len()).expect("a request's length fits 32 bits");
    (part.as_mut_ptr(), len)
}
