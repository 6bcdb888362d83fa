//! The client library: many memcached servers as one cache.
//!
//! ```no_run
//! use fabcache_client::{Client, Options, Ttl};
//!
//! let cache = Client::new(["tcp://127.0.0.1:11211", "unix:///run/fabcached.sock"], Options::default())?;
//! cache.set(b"key", b"value", Ttl::seconds(60))?;
//! assert_eq!(cache.get(b"key")?.map(|item| item.value), Some(b"value".to_vec()));
//! # Ok::<(), fabcache_client::Error>(())
//! ```
//! Calls block, for no longer than [`Options::timeout`]. A [`Client`] may be shared among threads: each call takes a
//! connection that nobody uses, or makes one. Keys are mapped to servers as libmemcached does ([`Distribution`]), so
//! that programs in any language agree on where a key is. Any memcached from 1.6 on will do: requests are those of the
//! meta protocol (memcached's doc/protocol.txt), and what it lacks those of the text protocol.
//!
//! A request is never sent twice: when a connection breaks it is not known whether the server did what was asked, and
//! that is what the error says.

mod address;
mod bounds;
mod client;
mod connection;
pub mod distribution;
mod error;
mod input;
mod meta;
mod operation;
mod pipeline;
mod request;
mod server;
mod socket;
mod stream;

pub use address::{Address, Place};
pub use client::{Client, Item, Many, Options, Stored, Ttl};
pub use distribution::Distribution;
pub use error::{Error, Failure};
pub use request::{Completed, Outcome, Request};
