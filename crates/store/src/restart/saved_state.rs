//! The state of a region that is only in its server's process, saved by a clean stop for the next server.
//!
//! It is O(segments + partitions + blocks of the index), and does not depend on the number of items. The region's table and
//! header have the rest. Its hash is in the header, so the decoder only meets bytes that a server encoded; each number
//! is still compared with the geometry and the region's table where it is used.

use serde::{Deserialize, Serialize};

use crate::eviction::Eviction;

/// Version of the encoding. A state of another version is not used: the region is recovered from its index instead.
const VERSION: u32 = 3;

/// Why a saved state cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The bytes are not those that the last server saved.
    #[error("the saved state is not the one that the last server wrote")]
    OtherBytes,
    /// Another release wrote it.
    #[error("the saved state has version {0}, and this release reads version {VERSION}")]
    Version(u32),
    /// The region's header is not the one that the last server left.
    #[error("the header of the region is damaged")]
    Header,
    /// A number does not agree with the region.
    #[error("the saved state disagrees with the region: {0}")]
    Disagrees(&'static str),
}

/// The saved state.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedState {
    /// The region's identity.
    pub region_id: u64,
    /// The incarnation that saved it.
    pub incarnation: u32,
    /// The checksum of the header's words that the next server finds as they are.
    pub header_sum: u64,
    /// The segments.
    pub segments: SavedSegments,
    /// The checksum of the directory and the segment table.
    pub tables_sum: u64,
    /// The index.
    pub index: SavedIndex,
    /// Reclaim and eviction.
    pub reclaim: SavedReclaim,
    /// The last flush epoch in which an item was stored.
    pub stored_epoch: u64,
    /// Segments sealed up to this order held only items that are flushed when the last flush happened.
    pub flushed_order: u64,
    /// The flush epoch that all segments were walked for.
    pub expired_epoch: u64,
    /// The flash tier, if there was one.
    pub flash: Option<SavedFlash>,
}

/// The segments' part.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSegments {
    /// The sealed segments.
    pub sealed: Vec<SavedSegment>,
    /// Free segments, those used first in front.
    pub free: Vec<u32>,
    /// Segments beyond the memory limit.
    pub retired: Vec<u32>,
    /// The next place in the order of sealing.
    pub next_order: u64,
    /// Segments ever opened for moves.
    pub opened_for_moves: u64,
    /// Bytes that clients wrote to them.
    pub gained_bytes: u64,
}

/// A sealed segment.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSegment {
    /// Its number.
    pub id: u32,
    /// Live items in it.
    pub live_items: u32,
    /// Their bytes.
    pub live_bytes: u32,
    /// The second of the last reservation.
    pub written: u32,
    /// The last expiry second of its items.
    pub last_expiry: u32,
    /// The shortest time to live in it.
    pub shortest_ttl: u32,
    /// An item without expiry is in it.
    pub endless: bool,
    /// The second at which it is to be walked for expired items.
    pub deadline: u32,
}

/// The index's part.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedIndex {
    /// The partitions, in order.
    pub partitions: Vec<SavedPartition>,
    /// Free blocks, by number.
    pub free_blocks: Vec<u32>,
    /// The checksums of the groups (`index/sums.rs`).
    pub group_sums: Vec<u32>,
    /// Chain buckets in use.
    pub chain_buckets: u64,
}

/// A partition of the index.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPartition {
    /// Items in it.
    pub items: u32,
    /// The next group to move, while it grows.
    pub next_group: u32,
    /// The chain buckets of its two tables.
    pub chains: [SavedChains; 2],
}

/// The chain buckets of a table.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedChains {
    /// Their blocks, by number.
    pub blocks: Vec<u32>,
    /// Buckets in use, the first ones of the blocks.
    pub taken: u64,
}

/// The part of reclaim and eviction.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedReclaim {
    /// Segments emptied in excess of those filled by moves.
    pub emptied: u32,
    /// Segments that moves had filled then.
    pub opened_before: u64,
    /// The dead bytes when moving turned out to gain nothing.
    pub fruitless_at: Option<u64>,
    /// Which items are evicted.
    pub eviction: Eviction,
}

/// The flash tier's part.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFlash {
    /// The id of the devices when the server that saves this opened them.
    pub set_id: u128,
    /// The id of the tier, which the checksums of its pages cover.
    pub tier: u64,
    /// The number of segments of each device.
    pub device_segments: Vec<u32>,
    /// Pages of a segment.
    pub segment_pages: u32,
    /// The segments that hold items, and the one that is written.
    pub segments: Vec<SavedFlashSegment>,
    /// The order in which segments are written.
    pub log: SavedFlashLog,
    /// The first page of each item that goes on in further segments, and these.
    pub spans: Vec<(u32, Vec<u32>)>,
    /// Slots that lead to flash.
    pub items: u64,
}

/// A flash segment.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFlashSegment {
    /// Its number.
    pub id: u32,
    /// Which use of a segment this is, in the order of all uses.
    pub sequence: u64,
    /// The flush epoch of its items.
    pub epoch: u64,
    /// Items written.
    pub items: u32,
    /// Bytes of their records.
    pub bytes: u64,
    /// The second in which the last item expires; `u32::MAX` if one never does.
    pub last_expiry: u32,
}

/// The order in which flash segments are written.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFlashLog {
    /// Free segments, those used first in front.
    pub free: Vec<u32>,
    /// Of these, the first so many were never used.
    pub fresh: u32,
    /// The sequence of the next use of a segment.
    pub next_sequence: u64,
    /// The segment that is written.
    pub open: Option<SavedOpenFlashSegment>,
}

/// The flash segment that is written.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedOpenFlashSegment {
    /// Its number.
    pub id: u32,
    /// Its first page that was not written, from its start.
    pub next_page: u32,
}

impl SavedState {
    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let start = VERSION.to_le_bytes().to_vec();
        postcard::to_extend(self, start).expect("numbers and lists are encoded into memory")
    }

    /// Decodes the bytes that [`SavedState::encode`] returned.
    ///
    /// # Errors
    /// They are of another version, or not those bytes.
    pub fn decode(bytes: &[u8]) -> Result<SavedState, StateError> {
        let (version, state) = bytes.split_first_chunk().ok_or(StateError::OtherBytes)?;
        match u32::from_le_bytes(*version) {
            VERSION => {}
            version => return Err(StateError::Version(version)),
        }
        match postcard::take_from_bytes(state) {
            Ok((state, [])) => Ok(state),
            _ => Err(StateError::OtherBytes),
        }
    }
}
