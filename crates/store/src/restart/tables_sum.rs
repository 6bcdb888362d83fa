//! The checksum of the directory and the segment table.
//!
//! A clean stop saves it. If a bit of them flips in the file meanwhile, the next server checks each slot, as after a kill.

use fabcache_layout::{Geometry, Memory, segment};
use xxhash_rust::xxh3::xxh3_64;

/// Returns the checksum of the directory and the segment table.
///
/// The region has so many segments. No thread writes meanwhile.
pub(super) fn tables_sum(memory: &Memory, geometry: &Geometry, segments: u32) -> u64 {
    let mut bytes = Vec::new();
    let end = segment::table_end(geometry, segments);
    memory.append_to(geometry.directory, (end - geometry.directory) as usize, &mut bytes);
    xxh3_64(&bytes)
}
