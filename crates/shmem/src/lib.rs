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
//! [`Process`], [`SymmetricHeap`] and [`RemoteHeaps`] are what the cache needs of this; `local` is the same among threads,
//! for tests. [`slots`] passes messages by puts.

#[cfg(not(loom))]
mod context;
#[cfg(not(loom))]
pub mod environment;
mod error;
#[cfg(not(loom))]
mod heap_file;
#[cfg(not(loom))]
mod job;
#[cfg(not(loom))]
mod library;
#[cfg(not(loom))]
pub mod local;
mod mapped_heaps;
#[cfg(all(test, loom))]
mod models;
mod remote_heaps;
pub mod sleep;
pub mod slots;

pub use error::Error;
#[cfg(not(loom))]
pub use heap_file::{HeapFile, HeapFileError};
#[cfg(not(loom))]
pub use job::Job;
#[cfg(not(loom))]
pub use library::FILE_VARIABLE;
pub use mapped_heaps::MappedHeaps;
pub use remote_heaps::{Process, RemoteHeaps, SymmetricHeap};
