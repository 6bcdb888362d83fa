//! A server's region, as remote readers use it.

use std::sync::Arc;
use std::time::Duration;

use fabcache_fabric::Domain;
use fabcache_layout::checksum::Secret;

use super::sockets::Sockets;
use crate::region_clock::RegionClock;

/// The region of a server that is read over the fabric.
#[derive(Debug)]
pub struct Region {
    /// The domain of the reading endpoints.
    pub domain: Arc<Domain>,
    /// Its length. Address and key differ for each endpoint of the server.
    pub bytes: u64,
    /// The seed of the items' checksums.
    pub secret: Secret,
    /// Its clock, as the attachment left it.
    pub clock: RegionClock,
    /// The time during which freed memory is not overwritten.
    pub grace_ns: u64,
    /// Sockets of the connections over which it was negotiated. Each also reports the end of the server that items
    /// are read from.
    pub sockets: Sockets,
}

impl Region {
    /// Returns whether both are the same region.
    pub fn is(&self, other: &Region) -> bool {
        self.bytes == other.bytes
            && self.secret.0 == other.secret.0
            && Arc::ptr_eq(&self.domain, &other.domain)
    }

    /// Notifies an endpoint of the server repeatedly, sleeping between notifications.
    pub fn notify_repeatedly(&self, end: &[u8], tries: u32) {
        if tries % 64 == 63 {
            self.sockets.notify(end);
        }
        if tries > 64 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
