//! How clients reach a fabcache server.
//!
//! Each transport has a listener and a link behind the one contract of `contract.rs`; `conformance.rs` is the suite that
//! all of them pass. A worker drives some of them by a source (`source.rs`).
//!
//! - `tcp.rs`, `unix.rs`: listeners of stream sockets; `stream.rs`: their link.
//! - `tls/`: TLS over either.
//! - `udp/`: memcached's datagrams, each a short-lived link.
//! - `shm/`: memory shared with a client of this host, reached over a Unix socket.
//! - `fabric/`: messages and memory over libfabric, beside a TCP socket.
//! - `memory/`: a fake for tests, in this process.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod contract;
pub mod fabric;
pub mod memory;
pub mod openshmem;
pub mod shm;
mod socket;
pub mod source;
mod stream;
pub mod tcp;
pub mod tls;
pub mod udp;
pub mod unix;

pub use contract::{Credentials, Kind, Link, Listener, Peer, PolledLink, Received, StreamLink};
pub use source::{Source, WaitMode};
