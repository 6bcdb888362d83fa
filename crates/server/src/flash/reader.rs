//! The reads of one worker.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fabcache_uring::{FileCompletion, FileRing, PageBuffer};

use super::device_header::HEADER_BYTES;
use super::{Devices, ReadRequest, file_offset};
use crate::bounds::{FLASH_READ_BYTES_MAX, FLASH_READS_MAX};

/// Reads `R` that are under way or wait, and what the worker keeps with each.
///
/// When it is dropped, it waits for the reads under way.
#[derive(Debug)]
pub struct FlashReader<R, T> {
    devices: Arc<Devices>,
    // Before the reads, which pin what the ring reads.
    ring: FileRing,
    /// The reads, by their tokens in the ring.
    reads: Vec<Option<PendingRead<R, T>>>,
    free: Vec<usize>,
    /// The reads that are not in the ring, with their buffers.
    waiting: VecDeque<(usize, PageBuffer)>,
    /// Reads of files in memory, which are done when they are taken.
    ///
    /// io_uring would pass them to another thread.
    in_memory: VecDeque<(usize, PageBuffer)>,
}

#[derive(Debug)]
struct PendingRead<R, T> {
    read: R,
    with: T,
    /// Which bytes of the buffer are to be read.
    bytes: Range<usize>,
    /// How many of these bytes were read.
    done: usize,
}

impl<R: ReadRequest, T> FlashReader<R, T> {
    /// Creates a reader, which then any thread may use.
    ///
    /// # Errors
    /// The kernel refuses the ring.
    pub fn new(devices: &Arc<Devices>) -> io::Result<Self> {
        let ring = FileRing::new(FLASH_READS_MAX)?;
        let devices = Arc::clone(devices);
        let (reads, free) = (Vec::new(), Vec::new());
        let (waiting, in_memory) = (VecDeque::new(), VecDeque::new());
        Ok(FlashReader { devices, ring, reads, free, waiting, in_memory })
    }

    /// Queues a read; [`FlashReader::submit`] starts it, in the order of the queue.
    pub fn start(&mut self, mut read: R, with: T) {
        let (buffer, bytes) = read.take_buffer();
        let index = self.free.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        self.reads[index] = Some(PendingRead { read, with, bytes, done: 0 });
        self.queue(index, buffer);
    }

    /// Queues a read.
    fn queue(&mut self, index: usize, buffer: PageBuffer) {
        let pending = self.reads[index].as_ref().expect("it waits");
        if self.devices.is_in_memory(pending.read.device()) {
            self.in_memory.push_back((index, buffer));
        } else {
            self.waiting.push_back((index, buffer));
            self.fill();
        }
    }

    /// Does the next read of a file in memory, if there is one.
    fn read_memory(&mut self) -> Option<FileCompletion> {
        let (index, mut buffer) = self.in_memory.pop_front()?;
        let PendingRead { read, bytes, done, .. } = self.reads[index].as_ref().expect("it waits");
        let (file, offset) = (self.devices.file(read.device()), file_offset(read.offset() + *done as u64));
        let result = file.read_at(&mut buffer[bytes.start + done..bytes.end], offset);
        Some(FileCompletion { token: index as u64, buffer, result })
    }

    /// Returns whether there are reads to take that the descriptor does not report.
    pub fn has_done(&self) -> bool {
        !self.in_memory.is_empty()
    }

    /// Starts the queued reads, as many as the ring holds.
    ///
    /// The worker calls it once a turn, after [`FlashReader::take`] has returned nothing.
    ///
    /// # Errors
    /// The system's. The reads stay queued.
    pub fn submit(&mut self) -> io::Result<()> {
        self.ring.submit()
    }

    /// Takes a read that has ended, what was kept with it, its buffer, and how many bytes were read.
    ///
    /// These are fewer than requested at the end of the file. Waits for no device.
    pub fn take(&mut self) -> Option<(R, T, PageBuffer, io::Result<usize>)> {
        loop {
            let completion = self.read_memory().or_else(|| self.ring.next_completion());
            let FileCompletion { token, buffer, result } = completion?;
            let index = token as usize;
            let pending = self.reads[index].as_mut().expect("a read ends once");
            let result = match result {
                Ok(bytes) => {
                    pending.done += bytes;
                    let is_done = bytes == 0 || pending.done >= pending.bytes.len();
                    // A direct read cannot go on elsewhere: this is the end of the file.
                    if !is_done && bytes.is_multiple_of(HEADER_BYTES) {
                        self.queue(index, buffer);
                        continue;
                    }
                    Ok(pending.done)
                }
                Err(error) => Err(error),
            };
            let PendingRead { read, with, .. } = self.reads[index].take().expect("it is there");
            self.free.push(index);
            self.fill();
            return Some((read, with, buffer, result));
        }
    }

    /// Drops the queued reads that `is_dropped` accepts, by what was kept with them.
    ///
    /// Other reads, and those under way, end as before.
    pub fn drop_queued(&mut self, is_dropped: impl Fn(&T) -> bool) {
        let FlashReader { reads, free, waiting, .. } = self;
        waiting.retain(|(index, _)| {
            let is_kept = reads[*index].as_ref().is_some_and(|pending| !is_dropped(&pending.with));
            if !is_kept {
                reads[*index] = None;
                free.push(*index);
            }
            is_kept
        });
    }

    /// Returns the descriptor that is readable while reads that have ended wait to be taken.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.descriptor()
    }

    /// Returns whether no read is under way or queued.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.reads.len()
    }

    /// Moves reads from the queue to the ring while it has room.
    fn fill(&mut self) {
        while self.ring.in_flight() < self.ring.capacity()
            && let Some((index, buffer)) = self.waiting.pop_front()
        {
            let PendingRead { read, bytes, done, .. } = self.reads[index].as_ref().expect("it waits");
            let start = bytes.start + done;
            let end = bytes.end.min(start + FLASH_READ_BYTES_MAX);
            let (file, offset) =
                (self.devices.file(read.device()), file_offset(read.offset() + *done as u64));
            let queued = self.ring.read(file, offset, buffer, start..end, index as u64);
            queued.expect("the ring has room");
        }
    }
}
