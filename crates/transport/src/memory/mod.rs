//! A transport within this process, for tests: bounded pipes in place of sockets, and a source of events.

mod link;
mod listener;
mod source;

pub use link::{MemoryLink, MemoryPeer, ended, pair};
pub use listener::MemoryListener;
pub use source::{MemorySource, MemorySourceLink};
