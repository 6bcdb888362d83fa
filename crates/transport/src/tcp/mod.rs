//! TCP, over IPv4 and IPv6.

mod link;
mod listener;

pub use link::TcpLink;
pub use listener::{TcpListener, TcpOptions};
