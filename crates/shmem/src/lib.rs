//! OpenSHMEM, opened at run time: the symmetric memory of a job, behind safe types.
//!
//! A *job* consists of processes that a launcher started together (`oshrun`), the *PEs*. Each allocates the same
//! *symmetric heap*; any of them reads and writes the heap of any other, by offset, without that one's help as far as the
//! transport allows (OpenSHMEM specification 1.4, <http://openshmem.org>).
//!
//! ```text
//!   environment::prepare ──> Job::start ──> allocate (collective) ──> open, in each thread: get, put, fence
//!                                              └─ Memory: the own part, by atomics and copies
//! ```
//! [`Process`], [`SymmetricHeap`] and [`RemoteHeaps`] are what the cache needs of this; [`local`] is the same among threads,
//! for tests.

mod context;
pub mod environment;
mod error;
mod job;
mod library;
pub mod local;
mod remote_heaps;
mod sleep;

pub use error::Error;
pub use job::Job;
pub use library::FILE_VARIABLE;
pub use remote_heaps::{Process, RemoteHeaps, SymmetricHeap};
