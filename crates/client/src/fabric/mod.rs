//! Servers on the fabric: libfabric reads items from their memory, and messages carry everything else.
//!
//! ```text
//!   attach ──> FabricStream ──> Link ──> Endpoint (messages)                    requests, as over a socket
//!         └──> RemoteReader ──> SharedGets ──> RemoteGets ──> Endpoint (reads)    GETs, without the server's CPU
//! ```
//! [`fabcache_layout::reader::Remote`] decides what a one-sided GET fetches, `RemoteGets` posts the reads, and `SharedGets`
//! decides which thread polls for them. `GetCompletion` is the result.
//!
//! The TCP connection over which the endpoints were exchanged stays open: it wakes the server, and its end means that the
//! server is gone.

mod attach;
mod domains;
mod fork_guard;
mod get_slot;
mod gets;
mod lent_buffer;
mod lingering_links;
mod link;
mod region;
mod remote;
mod shared_gets;
mod sockets;
mod stream;
mod target;
mod unconfirmed;

pub use attach::{ProveError, attach, prove};
pub use get_slot::GetCompletion;
pub use lent_buffer::{CallerMemory, LentBuffer};
pub use remote::RemoteReader;
pub use shared_gets::GetHandle;
pub use target::{ReturnSlot, Target, ValuePlacement};
