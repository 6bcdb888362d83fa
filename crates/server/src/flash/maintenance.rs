//! The reads that the store itself needs, and the thread that does them.

use std::io;
use std::sync::Arc;

use fabcache_store::Handle;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{Devices, FlashReader, ThreadControl};

/// How long the thread waits for results before it submits again.
const RETRY_AFTER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Does the reads that the store itself needs, until [`ThreadControl::stop`].
///
/// # Errors
/// The kernel refuses the ring, or to wait for it.
pub fn run_maintenance_reads(
    devices: &Arc<Devices>,
    handle: &Handle,
    control: &ThreadControl,
) -> io::Result<()> {
    let mut reader = FlashReader::new(devices)?;
    while !control.drain() {
        loop {
            while let Some(read) = handle.take_maintenance_read() {
                reader.start(read, ());
            }
            let Some((read, (), buffer, result)) = reader.take() else { break };
            if let Some(read) = handle.finish_maintenance_read(read, buffer, result) {
                reader.start(read, ());
            }
        }
        if let Err(error) = reader.submit() {
            tracing::warn!("cannot submit reads of flash devices, trying again: {error}");
        }
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut watched = [reader.descriptor(), control.doorbell()].map(watch);
        // Reads that could not be submitted are tried again.
        let timeout = (!reader.is_idle()).then_some(RETRY_AFTER);
        match rustix::event::poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
