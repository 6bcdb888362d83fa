//! Memory shared with a server of this host: items are read from its region without it, and all else goes through a
//! channel in memory.

mod attach;
mod items;
mod readers;
mod stream;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabcache_layout::KeyHash;

pub use attach::{Attached, Refusal, attach};
pub use items::{Found, Items, Reader};
pub use readers::Readers;

/// The line that tells a server of reads that it did not see: hash and count of each in base64.
pub fn accesses_line(accesses: &[(KeyHash, u8)]) -> String {
    let mut line = String::from("shm accessed ");
    for (hash, reads) in accesses {
        let mut record = [0; 9];
        record[..8].copy_from_slice(&hash.0.to_le_bytes());
        record[8] = *reads;
        STANDARD.encode_string(record, &mut line);
    }
    line.push_str("\r\n");
    line
}
