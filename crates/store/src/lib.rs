//! fabcache's storage engine: items in one shareable region, found through an index, kept in segments.
//!
//! A [`Store`] is shared by all threads; each thread works through its own [`Handle`]. Reads take no lock; a write
//! locks the group of buckets its key belongs to. The bytes of the region are described by `fabcache-layout`.
//!
//! - `opening.rs`: makes a store in its memory, or takes over what a file holds; `backing/`: the memory.
//! - `index/`: from key to item.
//! - `segments/`: the heap.
//! - `read.rs`, `read_many.rs`, `write/`, `upload.rs`: operations of a handle.
//! - `hints.rs`: reads that clients report.
//! - `reclaim/`: frees memory; `eviction.rs`, `recent_keys.rs`, `simulation/`: chooses items; `expiry/`: frees expired items;
//!   `maintenance.rs`: periodic work.
//! - `flash/`: items that memory does not hold.
//! - `dump.rs`: visits all items.

#[cfg(not(loom))]
pub mod backing;
pub mod bounds;
mod cas;
pub mod clock;
pub mod counters;
pub mod dump;
pub mod error;
mod eviction;
mod expiry;
pub mod flash;
pub mod handle;
pub mod hints;
pub mod index;
pub mod info;
mod item_info;
mod kill;
#[cfg(not(loom))]
pub mod liveness;
pub mod maintenance;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod opening;
pub mod read;
pub mod read_many;
mod recent_keys;
mod reclaim;
pub mod restart;
pub mod segments;
mod simulation;
mod store;
pub mod upload;
pub mod write;

pub use counters::{StoreCounters, StoreSums};
pub use error::{CreateError, OutOfMemory};
pub use eviction::EvictionPolicy;
pub use flash::{
    FalseMatches, Fetched, FetchedItem, FetchedValue, FlashOptions, FlashRead, FlashReadResult,
    FlashSegmentSums, FlashState, FlashSums, FlashWrite, MaintenanceRead, PageBuffer, VisitResult,
    VisitedKey, VisitedOnFlash,
};
#[cfg(not(loom))]
pub use flash::{FlashLoss, FlashOpening};
pub use handle::Handle;
pub use hints::Access;
pub use info::{Detail, Expiry, ItemInfo, Miss};
#[cfg(not(loom))]
pub use opening::{DiscardReason, Opening};
pub use read::{Get, NotInMemory, Payload, PinnedValue};
pub use read_many::{Located, LocatedItem, Probe};
pub use simulation::SimulationCounts;
pub use store::{AgeStatistics, EvictionBalance, Observer, Store, StoreOptions, Usage};
pub use upload::Upload;
pub use write::run::{IncompleteRun, Put};
pub use write::{Change, ExistingItem, NewValue, StoredItem, Value, Write};
