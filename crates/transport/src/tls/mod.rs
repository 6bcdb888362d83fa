//! TLS over a stream link, with rustls.

mod link;
mod listener;

pub use link::TlsLink;
pub use listener::{TlsContext, TlsListener};
