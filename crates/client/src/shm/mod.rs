//! Memory shared with a server on this host: items are read from its region directly, and everything else goes through
//! a channel in memory.

mod attach;
mod items;
mod readers;
mod stream;

use fabcache_layout::KeyHash;
use fabcache_protocol::Accesses;

use crate::bounds::ACCESSES_ON_A_LINE;

pub use attach::{Attached, attach};
pub use items::{Items, ReadTicket, Reader};
pub use readers::Readers;

/// The lines that report reads to the server: hash and count of each in base64.
pub fn accesses_lines(accesses: &[(KeyHash, u8)]) -> String {
    let mut lines = String::new();
    for accesses in accesses.chunks(ACCESSES_ON_A_LINE) {
        Accesses::encode(accesses.iter().map(|(hash, reads)| (hash.0, *reads)), &mut lines);
    }
    lines
}
