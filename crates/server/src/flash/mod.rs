//! The I/O of the flash tier: the store decides what to write and read, this module does it.
//!
//! - `devices.rs`: opens the files and block devices; `device_header.rs`: the page that each begins with.

pub mod device_header;
mod devices;

use std::path::PathBuf;

pub use devices::{Devices, IdentityError, file_offset};

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
