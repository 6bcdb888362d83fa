//! Servers on the fabric: items are read from their memory by libfabric, and all else goes through messages.
//!
//! ```text
//!   attach ──> FabricStream ──> Link: port, messages          requests, as over a socket
//!         └──> Remote ──> Gets: port, reads of the region   gets, without the server
//! ```
//! The TCP connection on which that was agreed stays: it rings, and its end is the server's.

mod attach;
mod domains;
mod fork_guard;
mod gets;
mod lent_buffer;
mod lingering_links;
mod link;
mod region;
mod remote;
mod sockets;
mod stream;
mod target;
mod unconfirmed;

pub use attach::{attach, prove};
pub use lent_buffer::{CallerMemory, LentBuffer};
pub use remote::{Batch, GetHandle, GetResult, LatencySample, RemoteReader, ServerFallback};
pub use target::{ReturnSlot, Target};
