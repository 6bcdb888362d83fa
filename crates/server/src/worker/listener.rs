//! Listeners of the workers.

use fabcache_protocol::Protocol;
use fabcache_transport::Listener;

/// A listener, and the options of its connections.
pub struct ListenerEntry {
    /// The listener.
    pub listener: Box<dyn Listener>,
    /// The protocol; `None` detects it from the first byte.
    pub protocol: Option<Protocol>,
    /// Clients must authenticate.
    pub auth: bool,
    /// The only worker that listens here; `None` for all.
    pub worker: Option<usize>,
}

impl std::fmt::Debug for ListenerEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerEntry").field("local", &self.listener.local()).finish_non_exhaustive()
    }
}
