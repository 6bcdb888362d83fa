//! Memory shared with a client of this host.
//!
//! A client requests it over a Unix socket, and the server answers with two descriptors: the region, which the client
//! can only read, and a channel ([`fabcache_layout::channel`]) for its requests; or with the channel's alone. From then
//! on bytes go through the channel; the socket carries only doorbells. It also serves as sign of life, in both
//! directions: its end means that the peer is gone.

mod link;

pub use link::{AttachError, NewChannel, ShmLink};
