//! Memory shared with a client of this host.
//!
//! A client asks for it over a Unix socket, and the server answers with two descriptors: the region, which the client
//! can only read, and a channel ([`fabcache_layout::channel`]) for what it asks of the server. From then on bytes go
//! through the channel; the socket carries none but bells. It is also the sign of life, in both directions: who sees its
//! end knows that the other is gone.

mod link;

pub use link::{AttachError, NewChannel, ShmLink};
