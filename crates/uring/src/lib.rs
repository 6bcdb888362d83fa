//! io_uring behind safe types: multishot receives into provided buffers, and waiting.
//!
//! - `ring.rs`: the ring; `buffers.rs`: its buffers, and who owns which.
//!
//! The calls are those of [io_uring(7), io_uring_setup(2), io_uring_enter(2),
//! io_uring_register(2)](https://man.archlinux.org/man/io_uring.7).

mod buffers;
mod ring;

pub use buffers::{BUFFER_BYTES, BUFFERS, BufferId};
pub use ring::{Completion, Outcome, Ring, TOKEN_MAX, probe};
