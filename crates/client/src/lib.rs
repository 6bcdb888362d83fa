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
//! These calls block, for at most [`Options::timeout`]. Threads may share a [`Client`]: each call takes an idle
//! connection or opens one. Keys map to servers as in libmemcached ([`Distribution`]), so programs in any language
//! agree on where a key is.
//!
//! [`Options::protocol`] selects the protocol over sockets. The default is the meta protocol (memcached's
//! doc/protocol.txt, 1.6 and later), or the classic text protocol with servers and proxies that do not support it.
//! The first connection to a server finds out with one question, and with one or two more connections if a proxy
//! closes it. Naming the protocol saves this. Through the memory of a fabcached most requests are packets of the
//! binary protocol, the rest those of the meta protocol.
//!
//! A key has 1 to 250 bytes. The meta protocol encodes keys with bytes other than printable ASCII in base64, which
//! servers limit to 250 characters: keys of more than 186 bytes are then refused. The text protocol cannot carry a
//! key with a space or a control character ([`Failure::Key`]); the binary protocol carries any.
//!
//! # Calls that do not wait
//!
//! The non-blocking calls of RDMA-Memcached (D. Shankar et al., High-Performance Hybrid Key-Value Store on Modern
//! Clusters with RDMA Interconnects and SSDs: Non-blocking Extensions, Designs, and Benefits, IPDPS 2016), with their
//! guarantee about buffers. Here no caller can violate it: the library owns what it still needs.
//!
//! | | returns | key and value meanwhile |
//! | --- | --- | --- |
//! | [`Client::iset`], [`Client::iget`] | when the request is queued | belong to the operation, and are returned; no copy of the value |
//! | [`Client::bset`], [`Client::bget`] | when the caller may reuse them | stay the caller's: sent, or copied |
//!
//! [`Request::iset_from`] takes a value of any owner, and drops it when the operation completes.
//!
//! Each has a [`Request`], which can be tested ([`Request::test`]), waited for ([`Request::wait`]) or awaited. It can
//! then be reused without an allocation.
//!
//! ```no_run
//! # use fabcache_client::{Client, Options, Outcome, Request, Ttl};
//! # let cache = Client::new(["tcp://127.0.0.1:11211"], Options::default())?;
//! // A window of 32 requests, of 10,000 in all.
//! let mut window: Vec<Request> = (0..32).map(|i| cache.iget(format!("key{i}"), Vec::new())).collect();
//! for i in 32..10_000 {
//!     let request = &mut window[i % 32];
//!     let completed = request.wait();
//!     if let Outcome::Found { .. } = completed.result? {
//!         println!("{:?}: {} bytes", completed.key, completed.value.len());
//!     }
//!     request.iget(format!("key{i}"), completed.value);
//! }
//! for request in &mut window {
//!     request.wait().result?;
//! }
//! # async fn awaited(cache: Client) -> Result<(), fabcache_client::Error> {
//! // In any runtime, or in none.
//! let stored = cache.iset("key", "value", Ttl::NEVER);
//! let found = cache.iget("key", Vec::new());
//! assert_eq!(stored.await.result?, Outcome::Stored);
//! assert_eq!(found.await.item()?.map(|item| item.value), Some(b"value".to_vec()));
//! # Ok(())
//! # }
//! # Ok::<(), fabcache_client::Error>(())
//! ```
//! Over a fabric, values read from the server's memory arrive without a copy in memory of [`Client::register`], which
//! is registered with the provider once, and long ones are sent from it without a copy: by [`Client::get_registered`]
//! and [`Client::set_registered`], or by [`Request::iget_registered`], [`Request::iset_registered`] and
//! [`Request::take_buffer`].
//!
//! ```no_run
//! # use fabcache_client::{Client, Options, Outcome, Ttl};
//! # let cache = Client::new(["fab://10.0.0.5"], Options::default())?;
//! let mut buffer = cache.register(1 << 20);
//! if let Outcome::Found { .. } = cache.get_registered(b"key", &mut buffer)? {
//!     println!("{} bytes", buffer.len());
//! }
//! buffer.resize(100_000).fill(7);
//! cache.set_registered(b"key", &mut buffer, Ttl::NEVER, 0)?;
//! # Ok::<(), fabcache_client::Error>(())
//! ```
//! All threads share one connection to each server for these calls, and hold its lock only for what is possible at
//! once. On it a server runs requests in order, so a get sees an earlier set of the same key. Blocking calls have their
//! own connections: they are ordered only after completed operations. Any thread that issues, tests or waits makes
//! progress for all requests of that connection. Otherwise nothing moves, except while a future is pending: then a
//! driver thread of the connection makes progress, and ends soon after the last.
//!
//! A child process of fork(2) uses its own connections: operations in flight have failed in it, and the next is sent
//! on a new connection. This requires that no other thread was in a call during the fork, whose locks the child would
//! find locked.
//!
//! When a connection breaks, or its server leaves the oldest request unanswered for [`Options::timeout`], all
//! requests in flight on it fail with that error, and the next is sent on a new connection.
//!
//! # Errors
//!
//! A request is never sent twice. When a connection breaks, the error says that the request may or may not have taken
//! effect.
#![forbid(unsafe_code)]

/// Compiles the Rust code of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

mod admin;
mod answer;
mod arithmetic;
mod bounds;
mod client;
mod command;
mod connection;
mod error;
mod fabric;
#[cfg(fuzzing)]
pub mod fuzzing;
mod input;
mod item;
mod message;
mod meta;
mod multiget;
mod operation;
mod options;
mod packet;
mod path_selector;
mod pipeline;
mod read_result;
use fabcache_layout::reader::region_clock;
mod registered;
mod registered_calls;
mod request;
mod server;
mod shm;
mod socket;
mod stream;
mod text;
mod waking;

/// Which server a key belongs to: as libmemcached maps them, so that clients of all languages agree.
pub mod distribution {
    pub use fabcache_distribution::{Distribution, Hash, Hashing, Mapping, Names, Placement, Weights};
}

pub use client::Client;
pub use command::Mode;
pub use error::{Error, Failure};
pub use fabcache_distribution::{Address, AddressError, Distribution, ServerEndpoint};
pub use item::{FastGet, Found, Item, MultigetOutcome, Outcome, Stored, Transport, Ttl};
pub use options::{Credentials, Fabric, FabricMode, Options, Protocol, SharedMemory};
pub use registered::RegisteredBuffer;
pub use request::{CompletedRequest, Request};
