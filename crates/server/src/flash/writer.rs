//! The thread that writes to flash devices, and checks once a second that they are still the same.

use std::io;
use std::time::{Duration, Instant};

use fabcache_uring::{FileCompletion, FileRing, PageBuffer};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::device_header::HEADER_BYTES;
use super::{Devices, IdentityError, ThreadControl, WriteQueue, WriteRequest, file_offset};
use crate::bounds::FLASH_WRITES_MAX;

/// How often the devices are checked and the store maintains its segments.
const TICK: Duration = Duration::from_secs(1);
/// How often the store looks whether readers have left a segment that it needs.
const READERS_POLL: Duration = Duration::from_millis(5);

/// Writes to the devices until [`ThreadControl::stop`].
///
/// # Errors
/// The kernel refuses the ring, or to wait for it.
pub fn run_writer<Q: WriteQueue>(devices: &Devices, queue: &Q, control: &ThreadControl) -> io::Result<()> {
    let mut writer = Writer::new(devices)?;
    let mut next_tick = Instant::now();
    let mut next_poll: Option<Instant> = None;
    loop {
        let is_stopping = control.drain();
        let has_news = writer.finish(queue);
        if is_stopping {
            break;
        }
        writer.start(queue);
        let now = Instant::now();
        let is_tick = now >= next_tick;
        if is_tick {
            next_tick = now + TICK;
            writer.start_checks();
        }
        let is_due = queue.is_maintenance_due() || next_poll.is_some_and(|at| now >= at);
        if is_tick || has_news || is_due {
            let awaits_readers = queue.maintain(&mut || {
                writer.finish(queue);
                writer.start(queue);
            });
            next_poll = awaits_readers.then(|| Instant::now() + READERS_POLL);
            // It may have made room for further writes.
            writer.start(queue);
        }
        writer.wait(control, next_poll.map_or(next_tick, |at| at.min(next_tick)))?;
    }
    let mut logs_at = Some(Instant::now() + TICK);
    while writer.ring.in_flight() > 0 {
        writer.ring.wait(Some(TICK))?;
        writer.finish(queue);
        if logs_at.take_if(|at| Instant::now() >= *at).is_some() {
            tracing::warn!("waiting for {} requests to flash devices to end", writer.ring.in_flight());
        }
    }
    Ok(())
}

/// The requests under way, and the devices' states.
struct Writer<'d, W> {
    devices: &'d Devices,
    states: Vec<DeviceState>,
    // Before the writes, which keep what the ring writes from being used otherwise.
    ring: FileRing,
    /// The requests, by their tokens in the ring.
    requests: Vec<Option<Request<W>>>,
    writes: usize,
}

enum Request<W> {
    /// A write, and how many of its bytes are written.
    Write(W, usize),
    /// A read of a device's header.
    Check(usize),
}

/// What the writer knows of a device.
#[derive(Clone, Debug, Default)]
struct DeviceState {
    is_being_checked: bool,
}

impl<'d, W: WriteRequest> Writer<'d, W> {
    fn new(devices: &'d Devices) -> io::Result<Self> {
        let capacity = FLASH_WRITES_MAX + devices.count();
        Ok(Writer {
            devices,
            states: vec![DeviceState::default(); devices.count()],
            ring: FileRing::new(capacity as u32)?,
            requests: (0..capacity).map(|_| None).collect(),
            writes: 0,
        })
    }

    /// Starts the queue's writes, as many as may be under way.
    fn start(&mut self, queue: &impl WriteQueue<Write = W>) {
        while self.writes < FLASH_WRITES_MAX
            && let Some(mut write) = queue.take_write()
        {
            let buffer = write.take_buffer();
            if self.devices.is_lost(write.device()) {
                queue.finish_write(write, buffer, false);
                continue;
            }
            self.writes += 1;
            let index = self.free_index();
            self.go_on(index, write, 0, buffer);
        }
        self.submit();
    }

    /// Starts reading the headers, but for devices that have not answered yet.
    fn start_checks(&mut self) {
        for device in 0..self.devices.count() {
            if std::mem::replace(&mut self.states[device].is_being_checked, true) {
                continue;
            }
            let index = self.free_index();
            self.requests[index] = Some(Request::Check(device));
            let buffer = PageBuffer::from_slice(HEADER_BYTES, &[0; HEADER_BYTES]);
            let file = self.devices.file(device);
            let queued = self.ring.read(file, 0, buffer, 0..HEADER_BYTES, index as u64);
            queued.expect("the ring has room for a check of each device");
        }
        self.submit();
    }

    fn free_index(&self) -> usize {
        self.requests.iter().position(Option::is_none).expect("there are as many as may be under way")
    }

    /// Writes the rest of a write.
    fn go_on(&mut self, index: usize, write: W, done: usize, buffer: PageBuffer) {
        let file = self.devices.file(write.device());
        let (offset, bytes) = (file_offset(write.offset() + done as u64), done..write.byte_len());
        self.requests[index] = Some(Request::Write(write, done));
        self.ring.write(file, offset, buffer, bytes, index as u64).expect("the ring has room for all writes");
    }

    fn submit(&mut self) {
        if let Err(error) = self.ring.submit() {
            tracing::warn!("cannot submit writes to flash devices, trying again: {error}");
        }
    }

    /// Takes the results that are there; returns whether a write ended, or a device is lost or back.
    fn finish(&mut self, queue: &impl WriteQueue<Write = W>) -> bool {
        let before = self.writes;
        let mut has_changed = false;
        while let Some(FileCompletion { token, buffer, result }) = self.ring.next_completion() {
            let index = token as usize;
            match self.requests[index].take().expect("a request ends once") {
                Request::Check(device) => {
                    let found = result.map_err(IdentityError::Unreadable);
                    let is_same = found.and_then(|len| self.devices.check_identity(device, &buffer[..len]));
                    has_changed |= self.note_identity(queue, device, is_same);
                }
                Request::Write(write, done) => self.finish_write(queue, index, write, done, buffer, result),
            }
        }
        has_changed || self.writes < before
    }

    fn finish_write(
        &mut self,
        queue: &impl WriteQueue<Write = W>,
        index: usize,
        write: W,
        mut done: usize,
        buffer: PageBuffer,
        result: io::Result<usize>,
    ) {
        let device = write.device();
        let result = result.and_then(|bytes| {
            // Direct writes go on at pages only.
            let pages = bytes / HEADER_BYTES * HEADER_BYTES;
            done += pages;
            if pages > 0 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
        });
        if result.is_ok() && done < write.byte_len() && !self.devices.is_lost(device) {
            return self.go_on(index, write, done, buffer);
        }
        self.writes -= 1;
        let is_written = result.is_ok() && done == write.byte_len();
        let was_failing = self.devices.set_failing(device, !is_written);
        let path = self.devices.path(device).display();
        match result {
            Err(error) if !was_failing => {
                tracing::error!(
                    "cannot write to flash device {path}: {error}; its items stay in memory or are evicted"
                );
            }
            Ok(()) if is_written && was_failing => tracing::info!("flash device {path} takes writes again"),
            _ => {}
        }
        queue.finish_write(write, buffer, is_written);
    }

    /// Takes the result of a check; returns whether the device is lost or back since.
    fn note_identity(
        &mut self,
        queue: &impl WriteQueue,
        device: usize,
        is_same: Result<(), IdentityError>,
    ) -> bool {
        self.states[device].is_being_checked = false;
        if !self.devices.note_identity(device, &is_same) {
            return false;
        }
        queue.set_device_lost(device, is_same.is_err());
        let path = self.devices.path(device).display();
        match is_same {
            Err(error @ IdentityError::Header(_)) => tracing::error!(
                "stopped writing to flash device {path}: {error}; another program wrote to it: stop the server, and remove the file, \
                 or zero the device's first MiB, before the next start"
            ),
            Err(error) => tracing::error!(
                "stopped writing to flash device {path}: {error}; put the device back, or restart the server"
            ),
            Ok(()) => tracing::info!("flash device {path} is back, and written to again"),
        }
        true
    }

    /// Waits for a result or the doorbell, until a time.
    fn wait(&mut self, control: &ThreadControl, until: Instant) -> io::Result<()> {
        self.submit();
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut watched = [self.ring.descriptor(), control.doorbell()].map(watch);
        match rustix::event::poll(&mut watched, left.as_ref()) {
            // A result that arrives while the thread sleeps may interrupt it.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::FileExt;

    use fabcache_testbed::cleanup::Folder;
    use fabcache_testbed::io_uring;

    use super::*;
    use crate::flash::{DeviceSettings, HEADER_AREA_BYTES};

    const PAGES: usize = 5;

    struct Write;

    impl WriteRequest for Write {
        fn device(&self) -> usize {
            0
        }

        fn offset(&self) -> u64 {
            0
        }

        fn byte_len(&self) -> usize {
            PAGES * HEADER_BYTES
        }

        fn take_buffer(&mut self) -> PageBuffer {
            PageBuffer::from_iter(
                HEADER_BYTES,
                (0..PAGES * HEADER_BYTES).map(|at| 1 + (at / HEADER_BYTES) as u8),
            )
        }
    }

    #[derive(Default)]
    struct Queue(Cell<Option<bool>>);

    impl WriteQueue for Queue {
        type Write = Write;

        fn take_write(&self) -> Option<Write> {
            None
        }

        fn finish_write(&self, _: Write, _: PageBuffer, is_written: bool) {
            assert_eq!(self.0.replace(Some(is_written)), None, "it ends once");
        }

        fn set_device_lost(&self, _: usize, _: bool) {}

        fn is_maintenance_due(&self) -> bool {
            false
        }

        fn maintain(&self, _: &mut dyn FnMut()) -> bool {
            false
        }
    }

    /// No device writes less on request, so the test passes the short results in.
    #[test]
    fn short_writes_go_on_at_the_next_page() {
        if !io_uring::is_there_for_files() {
            return;
        }
        let folder = Folder::new("flash-writer").expect("a folder");
        let device = DeviceSettings { path: folder.path().join("a"), bytes: HEADER_AREA_BYTES + (4 << 20) };
        let devices = Devices::open(&[device], 1 << 20).expect("a device");
        // Bytes that a short result reports, and the pages that are written again.
        for (bytes, pages) in [(HEADER_BYTES, 1..PAGES), (3 * HEADER_BYTES + 7, 3..PAGES), (7, 0..0)] {
            let zeros = PageBuffer::from_slice(HEADER_BYTES, &[0; PAGES * HEADER_BYTES]);
            devices.file(0).write_all_at(&zeros, file_offset(0)).expect("written");
            let (queue, mut writer) = (Queue::default(), Writer::new(&devices).expect("a ring"));
            writer.writes = 1;
            writer.finish_write(&queue, 0, Write, 0, Write.take_buffer(), Ok(bytes));
            while writer.ring.in_flight() > 0 {
                writer.ring.wait(None).expect("the ring works");
                writer.finish(&queue);
            }
            assert_eq!((queue.0.get(), writer.writes), (Some(!pages.is_empty()), 0));
            let mut found = zeros;
            devices.file(0).read_exact_at(&mut found, file_offset(0)).expect("read");
            let expected = |at: usize| if pages.contains(&at) { 1 + at as u8 } else { 0 };
            assert!(found.iter().enumerate().all(|(at, byte)| *byte == expected(at / HEADER_BYTES)));
        }
    }
}
