//! The I/O of the flash tier: the store decides what to write and read, this module does it.
//!
//! - `devices.rs`: opens the files and block devices; `device_header.rs`: the page that each begins with.
//! - `reader.rs`: the reads of one worker; `writer.rs`: the thread that writes; `store.rs`: what they take from the store.
//! - `maintenance.rs`: the thread that does the reads that the store itself needs; `thread_control.rs`: wakes and stops both threads.
//! - `tier.rs`: what the server keeps of the tier; `worker/flash.rs` and `commands/flash.rs` use it.
//!
//! Neither a worker nor the writer waits for a device, except when it ends: a stalled device delays nothing but its own requests.

pub mod device_header;
mod devices;
mod maintenance;
mod reader;
mod store;
mod thread_control;
mod tier;
mod writer;

use std::ops::Range;
use std::path::PathBuf;

use fabcache_uring::PageBuffer;

pub use devices::{Devices, IdentityError, file_offset};
pub use maintenance::run_maintenance_reads;
pub use reader::FlashReader;
pub use store::StoreWrites;
pub use thread_control::ThreadControl;
pub use tier::{FlashTier, log_opening, start_writer};
pub use writer::run_writer;

/// Bytes before a device's segments: they hold the header.
pub const HEADER_AREA_BYTES: u64 = 1 << 20;

/// The fewest segments of all devices together.
pub const SEGMENTS_MIN: u64 = 4;

/// One flash device, as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// A file, which may not exist yet, or a block device.
    pub path: PathBuf,
    /// Bytes to use, the header area included.
    pub bytes: u64,
}

/// A read that the store requests.
pub trait ReadRequest {
    /// Returns the device, by its place in the settings.
    fn device(&self) -> usize;

    /// Returns where to read, in bytes from the start of the device's segments.
    fn offset(&self) -> u64;

    /// Takes the buffer, and returns which of its bytes to read: whole pages.
    ///
    /// Called once.
    fn take_buffer(&mut self) -> (PageBuffer, Range<usize>);
}

/// A write that the store requests.
pub trait WriteRequest {
    /// Returns the device, by its place in the settings.
    fn device(&self) -> usize;

    /// Returns where to write, in bytes from the start of the device's segments.
    fn offset(&self) -> u64;

    /// Returns how many bytes to write from the start of the buffer: whole pages.
    fn byte_len(&self) -> usize;

    /// Takes the buffer; called once.
    fn take_buffer(&mut self) -> PageBuffer;
}

/// The store's writes.
pub trait WriteQueue {
    /// One of the store's writes.
    type Write: WriteRequest;

    /// Takes the next write, if there is one.
    fn take_write(&self) -> Option<Self::Write>;

    /// Takes the result of a write, with its buffer.
    ///
    /// Writes may end in any order.
    fn finish_write(&self, write: Self::Write, buffer: PageBuffer, is_written: bool);

    /// Records that a device is lost, or back. Maintenance follows.
    fn set_device_lost(&self, device: usize, is_lost: bool);

    /// Returns whether [`WriteQueue::maintain`] is due.
    fn is_maintenance_due(&self) -> bool;

    /// Prepares segments for further writes, and calls `pause` between short parts of that work.
    ///
    /// The writer calls it when it is due, after writes, and once a second; while it returns true, every few milliseconds.
    fn maintain(&self, pause: &mut dyn FnMut()) -> bool;
}
