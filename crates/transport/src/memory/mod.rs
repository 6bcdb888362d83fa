//! A transport within this process, for tests: bounded pipes in place of sockets.

mod link;
mod listener;

pub use link::{MemoryLink, MemoryPeer, ended, pair};
pub use listener::MemoryListener;
