//! Links between the PEs of an OpenSHMEM job.
//!
//! A *link* leads from a client PE to a server PE: requests one way, answers the other, both streams of bytes in the messages
//! of [`fabcache_fabric::channel`]. Each PE is the client of every other and the server of every other.
//!
//! ```text
//!   client PE                                              server PE
//!   ClientLink ── put, fence, put the flag ──────────────> slots ─> ServerLink ═ pipe ═ PipeLink (a worker's Link)
//!            <─ slots <── put, fence, put the flag ──────────────
//!      staging <── get ──────────────────────────────────────────   long requests
//!      landing <── put ──────────────────────────────────────────   long answers
//! ```
//! [`ClientLink`] and [`ServerLink`] access the other PE's memory by the [`fabcache_shmem::RemoteHeaps`] of their caller. An
//! access by OpenSHMEM may block, so only threads without clients make it. A worker drives a link if it has the PE's heap
//! mapped. All messages lie in *slots* of the receiver's heap ([`fabcache_shmem::slots`]), a ring for each sender.
//!
//! A link whose worker closed it restarts, with the slots that follow:
//! ```text
//!   client                                    server
//!     <───────────────── Bye ──────────────────  the worker has closed, and all that it sent was sent
//!     ──────────── empty message ─────────────>  the client has read all slots, and writes no more
//!     <────────── empty message ───────────────  the server has read all slots; the link is open for another worker
//! ```
//! The client's empty message needs no credit, as a server that has sent its last message returns none any more.
//!
//! To compare with, the rings may have *mutexes* ([`LinkShape::has_mutexes`]). A mutex that a stopped PE holds blocks the thread
//! that waits for it, as an access to that PE's memory does.
//!
//! Any PE may write any slot, and staging and landing memory, at any time. Whatever lies there, an end takes a bounded
//! number of messages at a time, accesses only the link's memory, and breaks the link at a message that breaks the rules.

mod client;
mod error;
mod listener;
mod pipe;
mod plan;
mod server;

pub use client::{ClientLink, Progress};
pub use error::LinkError;
pub use listener::OpenShmemListener;
pub use pipe::PipeLink;
pub use plan::{HeapPlan, LinkShape, SLEEPERS_MAX, ShapeError};
pub use server::{ServerLink, Wake};
