//! Memory shared with a server on this host: items are read from its region directly, and everything else goes through
//! a channel in memory.

mod attach;
mod items;
mod readers;
mod stream;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabcache_layout::KeyHash;

use crate::bounds::ACCESSES_ON_A_LINE;

pub use attach::{Attached, attach};
pub use items::{Items, ReadTicket, Reader, next_random};
pub use readers::Readers;

/// The lines that report reads to the server: hash and count of each in base64.
pub fn accesses_lines(accesses: &[(KeyHash, u8)]) -> String {
    let mut lines = String::new();
    for accesses in accesses.chunks(ACCESSES_ON_A_LINE) {
        // Nine bytes are twelve characters, so entries do not overlap.
        let mut records = [0; 9 * ACCESSES_ON_A_LINE];
        for ((hash, reads), record) in accesses.iter().zip(records.as_chunks_mut::<9>().0) {
            record[..8].copy_from_slice(&hash.0.to_le_bytes());
            record[8] = *reads;
        }
        lines.push_str("shm accessed ");
        STANDARD.encode_string(&records[..9 * accesses.len()], &mut lines);
        lines.push_str("\r\n");
    }
    lines
}
