//! What is known of a server that is reached over the fabric: how it is to be used, and where its items lie.

use std::sync::{Arc, Mutex, MutexGuard};

use fabcache_fabric::{Domain, RemoteMemory};
use fabcache_layout::checksum::Secret;
use fabcache_layout::header::HeaderError;

use super::own::Own;
use crate::client::{Fabric, FabricMode};

/// A server's region, as it is read from afar.
#[derive(Debug)]
pub struct Region {
    /// What is read with.
    pub domain: Arc<Domain>,
    /// The name of the server's end.
    pub name: Vec<u8>,
    /// Where the region lies.
    pub memory: RemoteMemory,
    /// Tells its items from other bytes.
    pub secret: Secret,
    /// The monotonic clock at second 0 of the region's, in nanoseconds: early rather than late.
    pub zero_ns: i64,
    /// Of the connection on which it was told.
    pub socket: Arc<socket2::Socket>,
}

/// A server on the fabric.
#[derive(Debug)]
pub struct Remote {
    /// How it is to be used.
    pub wanted: Fabric,
    region: Mutex<Option<Arc<Own<Region>>>>,
}

impl Remote {
    /// One that was not asked yet.
    pub fn new(wanted: Fabric) -> Remote {
        Remote { wanted, region: Mutex::default() }
    }

    /// Whether its items are read, where it needs not help with that, or does.
    pub fn reads(&self, is_one_sided: bool) -> bool {
        match self.wanted.mode {
            FabricMode::Auto => is_one_sided,
            FabricMode::OneSided => true,
            FabricMode::Request => false,
        }
    }

    pub fn know(&self, region: Region) -> Result<(), HeaderError> {
        *self.region() = Some(Arc::new(Own::new(region)));
        Ok(())
    }

    fn region(&self) -> MutexGuard<'_, Option<Arc<Own<Region>>>> {
        self.region.lock().expect("no thread panics while it looks for a region")
    }
}
