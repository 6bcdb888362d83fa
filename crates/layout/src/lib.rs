//! The byte layout of fabcache's region: everything that a client may read without the server.
//!
//! ```text
//!  0              header        magic, geometry, published clock, flush epoch      header.rs
//!  directory      partitions    two tables each: where the groups of buckets lie   directory.rs
//!  segment table  segments      generation and use of each segment                 segment.rs
//!  segments       equal sized   items (item.rs), or blocks of the index            slot.rs
//! ```
//!
//! All references are offsets from the start of the region, so it may be mapped anywhere. Numbers are little endian.
//! Only the server writes. In addition, a client of the same host has a channel for its requests (channel/), used by
//! one process (process.rs). The crate depends on no other crate of fabcache, so clients link no server code;
//! docs/region.md describes the format in prose.

#[cfg(not(target_endian = "little"))]
compile_error!("the region is little endian and is read in place");

pub mod bounds;
pub mod bucket;
pub mod channel;
pub mod checksum;
pub mod directory;
pub mod flash_slot;
pub mod format;
pub mod geometry;
pub mod hash;
pub mod header;
pub mod item;
pub mod kill_points;
#[cfg(not(loom))]
pub mod mapping;
pub mod memory;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
pub mod process;
pub mod reader;
pub mod segment;
pub mod size_class;
pub mod slot;
pub mod succession;
pub mod sync;

pub use bucket::Bucket;
pub use checksum::Secret;
pub use geometry::Geometry;
pub use hash::KeyHash;
pub use item::{Item, State};
pub use memory::Memory;
pub use slot::Slot;
