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
//! [`ClientLink`] and [`ServerLink`] access other PEs' memory, which may block: threads of their own drive them, never a
//! worker. All messages lie in *slots* of the receiver's heap ([`fabcache_shmem::slots`]), a ring for each sender.
//!
//! A link whose worker closed it restarts: the server's last message says so, the client's last message follows, and then the
//! server, which has read all of the client's slots, opens the next one by an empty message. So the slots of a link never
//! hold more than the receiver has granted.

mod client;
mod listener;
mod pipe;
mod plan;
mod server;

pub use client::{ClientLink, Progress};
pub use listener::OpenShmemListener;
pub use pipe::PipeLink;
pub use plan::{HeapPlan, LinkShape, SLEEPERS_MAX, ShapeError};
pub use server::{LinkError, ServerLink, Wake};
