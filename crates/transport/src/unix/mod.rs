//! Unix stream sockets.

mod link;
mod listener;

pub use link::UnixLink;
pub use listener::UnixListener;
