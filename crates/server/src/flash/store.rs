//! The store's requests, as the reader and the writer take them.

use std::ops::Range;

use fabcache_store::{FlashRead, FlashWrite, Handle, MaintenanceRead};
use fabcache_uring::PageBuffer;

use super::{ReadRequest, WriteQueue, WriteRequest};

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

impl ReadRequest for MaintenanceRead {
    fn device(&self) -> usize {
        MaintenanceRead::device(self)
    }

    fn offset(&self) -> u64 {
        MaintenanceRead::offset(self)
    }

    fn take_buffer(&mut self) -> (PageBuffer, Range<usize>) {
        MaintenanceRead::take_buffer(self)
    }
}

impl WriteRequest for FlashWrite {
    fn device(&self) -> usize {
        self.device()
    }

    fn offset(&self) -> u64 {
        self.offset()
    }

    fn byte_len(&self) -> usize {
        self.byte_len()
    }

    fn take_buffer(&mut self) -> PageBuffer {
        self.take_buffer()
    }
}

/// The writes of the store's flash tier.
pub struct StoreWrites<F> {
    /// The writer's handle.
    pub handle: Handle,
    /// Called when memory became free.
    pub memory_is_free: F,
}

impl<F: Fn()> WriteQueue for StoreWrites<F> {
    type Write = FlashWrite;

    fn take_write(&self) -> Option<FlashWrite> {
        self.handle.store().take_flash_write()
    }

    fn finish_write(&self, write: FlashWrite, buffer: PageBuffer, is_written: bool) {
        if self.handle.finish_flash_write(write, buffer, is_written) {
            (self.memory_is_free)();
        }
    }

    fn set_device_lost(&self, device: usize, is_lost: bool) {
        self.handle.store().set_flash_device_lost(device, is_lost);
    }

    fn is_maintenance_due(&self) -> bool {
        self.handle.store().is_flash_room_requested()
    }

    fn maintain(&self, pause: &mut dyn FnMut()) -> bool {
        self.handle.maintain_flash(pause)
    }
}
