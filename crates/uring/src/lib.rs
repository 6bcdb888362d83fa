//! io_uring behind safe types: multishot receives into provided buffers, and waiting; reads and writes of files.
//!
//! - `ring.rs`: the ring for sockets; `buffers.rs`: its buffers, and who owns which.
//! - `file.rs`: the ring for files, whose requests own their buffers.
//!
//! The calls are those of [io_uring(7), io_uring_setup(2), io_uring_enter(2),
//! io_uring_register(2)](https://man.archlinux.org/man/io_uring.7).

mod buffers;
mod file;
mod ring;

pub use buffers::{BUFFER_BYTES, BUFFERS, BufferId};
pub use file::{FileCompletion, FileRing, PageBuffer, Unqueued, probe_files};
pub use ring::{Completion, Outcome, Ring, TOKEN_MAX, probe};
