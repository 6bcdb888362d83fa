//! A region that outlives its server: what a stop saves, and how the next server takes the region over.
//!
//! - `saved_state.rs`: the state that a clean stop saves in PATH.meta.
//! - `keep.rs`: the stop.
//! - `takeover.rs`: the start.
//! - `recovery.rs`: the start after a kill, with `index/recover.rs` and `segments/recover.rs`.

mod keep;
mod recovery;
pub mod saved_state;
pub(crate) mod takeover;

pub use keep::KeepError;
pub use recovery::Damaged;
pub use takeover::{NotKept, Unclean};
