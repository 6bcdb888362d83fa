//! One cache over the symmetric memory of an OpenSHMEM job (`--fabric openshmem`).
//!
//! Each PE is a server with its shard, and the *delegator* of its node: clients that come by Unix socket or shared memory get
//! the whole job's items from it. Design: docs/openshmem.md.
//!
//! ```text
//!   client ─> worker (commands/forward.rs: whose key?) ── own ──> the store
//!               │ another PE's: a ticket, and an Operation
//!               v
//!             Pe's queue ─> driver ─────> link ─> slots of that PE ─> its driver ─> its worker
//!             Answer <───── answers.rs <─ link <─ slots of this PE <──────────────────┘
//! ```
//! The driver of a link is a progress thread (`threads.rs`), or a worker if the PE is on this host (`source.rs`).
//!
//! - `settings.rs`: the options.
//! - `start.rs`: what PEs agree on when the job starts; `exchange.rs`: how they exchange it.
//! - `pes.rs`: the other PEs as workers see them; `pe.rs`: one of them as the driver of its links does.
//! - `threads.rs`: the progress threads, their sleep, and the heartbeats; `source.rs`: links that workers drive.
//! - `mapped_reads.rs`: a worker's GETs from the region of another PE of its host; `gets.rs`: a thread's from one elsewhere;
//!   `words.rs`: whether words arrive whole from there.
//! - `answers.rs`: where one answer ends and the next begins.

mod answers;
mod exchange;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gets;
mod mapped_reads;
mod operation;
mod pe;
mod pes;
mod settings;
mod source;
mod start;
mod threads;
mod words;

pub use mapped_reads::{MappedRead, MappedReads};
pub use operation::{Completion, DirectGet, Gathering, InFlight, Operation};
pub use pes::{JobPhase, Pes};
pub use settings::{OpenShmemSettings, PROVIDER};
pub use source::{PeHooks, PeSource};
pub use start::{AgreedError, StartedJob, heap_bytes, join};
pub use threads::start;
