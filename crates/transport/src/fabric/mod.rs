//! A fabric: RDMA through libfabric, beside a TCP connection.
//!
//! A client that connected over TCP names its endpoint and its memory, and from then on bytes go over the fabric
//! ([`fabcache_fabric::channel`]); the socket carries only doorbells. It also serves as sign of life, in both
//! directions.
//!
//! Each worker has one [`FabricEndpoint`] with what all its links share; a [`FabricLink`] is a place in its table. So links of
//! one endpoint are used by one thread, and the lock between them is never waited for.
//!
//! ```text
//!   completions ─> progress() ─┬─ Received: by its token to a link ─> end.arrived
//!                              ├─ Read, Written: end.read_ended, end.put_ended ─> short messages
//!                              └─ links that have something to receive, or can send again, or broke
//! ```
//!
//! # Memory
//! An endpoint registers, independently of its clients:
//! - receive buffers of 8 KiB: as many as it was opened with, and when these are granted eight more for each client
//!   ([`bounds::LEAST_CREDITS`] credits, and
//!   [`CREDITS_MESSAGES_MAX`](fabcache_fabric::channel::CREDITS_MESSAGES_MAX)), 64 at a time;
//! - send buffers of 8 KiB: [`bounds::SENDS`], and from half as many clients on two for each, 64 at a time;
//! - [`bounds::BOUNCES`] buffers of 256 KiB for data that goes through clients' memory;
//! - for links that find all of these in use, a send buffer each, and a bounce buffer of 64 KiB
//!   ([`bounds::OWN_BYTES`]), 16 at a time.
//!
//! The provider has memory of its own for each endpoint, and for each peer of it.
//!
//! # Fairness
//! A link that finds no bounce buffer waits in a queue; a freed buffer goes to the first in it. A link that holds
//! filled buffers without receiving them loses them while others wait: they are read again. A link whose operations
//! do not complete while others wait is closed. No link waits longer than [`bounds::HELD_TIME_MAX`]: then it proceeds
//! with a buffer of its own.
//!
//! Operations that do not end with their link end when the endpoint removes the peer (`FI_AV_REMOVE_CLEANUP=1` in the
//! environment). Until then the peer gets no other link, and its links are closed. If that does not help, the
//! endpoint fails.

pub mod bounds;
mod endpoint;
mod link;
mod link_state;
mod link_table;
mod resources;

pub use endpoint::{FabricEndpoint, FabricOptions};
pub use link::FabricLink;
pub use link_table::{AttachError, Client, Grant};
