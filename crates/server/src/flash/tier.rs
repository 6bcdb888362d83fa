//! What the server keeps of the flash tier, and the store's part in its I/O.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context as _, Result};
use fabcache_store::{FlashOptions, FlashRead, FlashWrite, Handle, PageBuffer};

use super::{Devices, ReadRequest, WriteQueue, WriteRequest, WriterControl, run_writer};
use crate::settings::FlashSettings;
use crate::shared::Shared;

/// The flash tier of a server.
#[derive(Debug)]
pub struct FlashTier {
    /// The open devices.
    pub devices: Arc<Devices>,
    /// Wakes and stops the writer.
    pub control: WriterControl,
}

impl FlashTier {
    /// Opens the devices.
    ///
    /// # Errors
    /// One cannot be used, or io_uring is not available.
    pub fn open(settings: &FlashSettings) -> Result<FlashTier> {
        fabcache_uring::probe_files().context(
            "the flash tier (--flash) needs io_uring, which this system refuses; allow it (sysctl kernel.io_uring_disabled, the \
             container's seccomp profile), or leave --flash out",
        )?;
        let devices = Arc::new(Devices::open(&settings.devices, settings.segment_bytes)?);
        Ok(FlashTier { devices, control: WriterControl::new().context("cannot make the writer's doorbell")? })
    }

    /// Returns the store's options.
    pub fn options(&self, settings: &FlashSettings) -> FlashOptions {
        FlashOptions {
            device_bytes: self.devices.device_bytes(),
            segment_bytes: settings.segment_bytes,
            item_bytes_min: settings.item_bytes_min,
            write_bytes_per_second: settings.write_bytes_per_second,
        }
    }
}

impl ReadRequest for Box<FlashRead> {
    fn device(&self) -> usize {
        FlashRead::device(self)
    }

    fn offset(&self) -> u64 {
        FlashRead::offset(self)
    }

    fn take_buffer(&mut self) -> (PageBuffer, Range<usize>) {
        FlashRead::take_buffer(self)
    }
}

impl WriteRequest for FlashWrite {
    fn device(&self) -> usize {
        FlashWrite::device(self)
    }

    fn offset(&self) -> u64 {
        FlashWrite::offset(self)
    }

    fn byte_len(&self) -> usize {
        FlashWrite::byte_len(self)
    }

    fn take_buffer(&mut self) -> PageBuffer {
        FlashWrite::take_buffer(self)
    }
}

/// The store's writes.
struct StoreWrites {
    shared: Arc<Shared>,
    handle: Handle,
}

impl WriteQueue for StoreWrites {
    type Write = FlashWrite;

    fn take_write(&self) -> Option<FlashWrite> {
        self.shared.store.take_flash_write()
    }

    fn finish_write(&self, write: FlashWrite, buffer: PageBuffer, is_written: bool) {
        if self.handle.finish_flash_write(write, buffer, is_written) {
            self.shared.inboxes.iter().for_each(|inbox| inbox.wake_for_memory());
        }
    }

    fn maintain(&self, pause: &mut dyn FnMut()) {
        self.handle.maintain_flash(pause);
    }
}

/// Starts the thread that writes, if there is a flash tier.
///
/// # Errors
/// The system starts no thread.
pub fn start_writer(shared: &Arc<Shared>) -> Result<Option<JoinHandle<()>>> {
    if shared.flash.is_none() {
        return Ok(None);
    }
    let writes = StoreWrites { handle: Handle::new(&shared.store), shared: Arc::clone(shared) };
    let run = move || {
        let flash = writes.shared.flash.as_ref().expect("there is a flash tier");
        if let Err(error) = run_writer(&flash.devices, &writes, &flash.control) {
            tracing::error!("nothing is written to flash any more, as its thread has failed: {error}");
        }
    };
    let thread = Builder::new().name("flash".into()).spawn(run);
    thread.context("cannot start the thread that writes to flash").map(Some)
}
