//! A region that outlives its server: what a stop saves, and how the next server takes the region over.
//!
//! - `saved_state.rs`: the state that a clean stop saves in PATH.meta.
//! - `keep.rs`: the stop.
//! - `takeover.rs`: the start.
//! - `recovery.rs`: the check of each group of the index after a kill, before a request uses it, with `index/recover.rs` and `segments/recover.rs`.
//! - `tables_sum.rs`: the checksum of directory and segment table.
//! - `finishing.rs`, `verification.rs`: the items that were taken over are verified, while requests are answered.
//! - `populating.rs`: page tables after the start.
//!
//! The flash tier's part is in `flash/restart.rs`.

mod finishing;
#[cfg(not(loom))]
mod keep;
#[cfg(not(loom))]
mod populating;
pub(crate) mod recovery;
#[cfg(not(loom))]
pub mod saved_state;
#[cfg(not(loom))]
mod tables_sum;
#[cfg(not(loom))]
pub(crate) mod takeover;
pub(crate) mod verification;

#[cfg(not(loom))]
pub use keep::KeepError;
pub use recovery::Damaged;
#[cfg(not(loom))]
pub use takeover::{NotKept, Unclean};
