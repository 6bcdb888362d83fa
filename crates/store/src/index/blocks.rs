//! Memory for tables and chains: segments cut into blocks.

use std::collections::VecDeque;

use fabcache_layout::Geometry;
use fabcache_layout::format::{BUCKET_BYTES, GROUP_BYTES};
use fabcache_layout::sync::Mutex;

use super::NoIndexBlock;

/// Free blocks of the index.
#[derive(Debug)]
pub struct Blocks {
    block_bytes: u64,
    blocks_per_segment: u64,
    free: Mutex<VecDeque<u64>>,
}

impl Blocks {
    /// Returns an empty list.
    pub fn new(geometry: &Geometry) -> Blocks {
        Blocks::with_free(geometry, Vec::new())
    }

    /// Returns a list of these blocks, by offset.
    pub fn with_free(geometry: &Geometry, free: Vec<u64>) -> Blocks {
        Blocks {
            block_bytes: geometry.block_bytes(),
            blocks_per_segment: geometry.blocks_per_segment(),
            free: Mutex::new(free.into()),
        }
    }

    /// Returns the free blocks, by offset.
    #[cfg(not(loom))]
    pub fn free(&self) -> Vec<u64> {
        self.free.lock().expect("no thread panics while it holds the blocks").iter().copied().collect()
    }

    /// Takes `count` blocks, or none at all.
    pub fn take(
        &self,
        count: usize,
        take_segment: &impl Fn() -> Option<u64>,
    ) -> Result<Vec<u64>, NoIndexBlock> {
        let mut free = self.free.lock().expect("no thread panics while it holds the blocks");
        while free.len() < count {
            let segment = take_segment().ok_or(NoIndexBlock)?;
            free.extend((0..self.blocks_per_segment).map(|i| segment + i * self.block_bytes));
        }
        Ok(free.drain(..count).collect())
    }

    /// Returns blocks. Readers that still use them notice by the head of their partition.
    pub fn give_back(&self, blocks: impl IntoIterator<Item = u64>) {
        self.free.lock().expect("no thread panics while it holds the blocks").extend(blocks);
    }
}

/// Chain buckets of one table, cut from blocks of their own. They are freed with the table.
#[derive(Debug, Default)]
pub struct ChainBuckets {
    blocks: Vec<u64>,
    buckets_per_block: u64,
    /// Buckets in use: the first ones of the blocks.
    taken: u64,
    /// Of the others, those for the group that is moving.
    reserved: u64,
}

/// Which chain buckets a key may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainUse {
    /// Those that nobody reserved, up to the bound of its group.
    Bounded,
    /// Reserved ones, as many as it takes.
    Reserved,
}

impl ChainBuckets {
    /// Returns the buckets of these blocks, of which the first `taken` are in use; none if there are not so many.
    #[cfg(not(loom))]
    pub fn with_blocks(blocks: Vec<u64>, block_bytes: u64, taken: u64) -> Option<ChainBuckets> {
        let buckets_per_block = block_bytes / BUCKET_BYTES;
        let is_enough = taken <= blocks.len() as u64 * buckets_per_block;
        is_enough.then_some(ChainBuckets { blocks, buckets_per_block, taken, reserved: 0 })
    }

    /// Returns the blocks, and how many of their buckets are in use.
    #[cfg(not(loom))]
    pub fn blocks(&self) -> (&[u64], u64) {
        (&self.blocks, self.taken)
    }

    /// Returns the buckets available without another block.
    pub fn ready(&self) -> u64 {
        self.blocks.len() as u64 * self.buckets_per_block - self.taken - self.reserved
    }

    /// Adds a block, a zeroed one.
    pub fn add_block(&mut self, block: u64, block_bytes: u64) {
        debug_assert!(block_bytes.is_multiple_of(GROUP_BYTES));
        self.blocks.push(block);
        self.buckets_per_block = block_bytes / BUCKET_BYTES;
    }

    /// Adds a block all of whose buckets are in use.
    pub fn add_full_block(&mut self, block: u64, block_bytes: u64) {
        // Buckets in use are the first ones.
        self.blocks.insert(0, block);
        self.buckets_per_block = block_bytes / BUCKET_BYTES;
        self.taken += self.buckets_per_block;
    }

    /// Reserves buckets that are ready, in place of those that were reserved.
    pub fn reserve(&mut self, buckets: u64) {
        self.reserved = 0;
        debug_assert!(buckets <= self.ready());
        self.reserved = buckets;
    }

    /// A bucket, if one is ready.
    pub fn take(&mut self, chain_use: ChainUse) -> Option<u64> {
        match chain_use {
            ChainUse::Bounded if self.ready() == 0 => return None,
            ChainUse::Bounded => {}
            ChainUse::Reserved => self.reserved = self.reserved.checked_sub(1)?,
        }
        let (block, bucket) = (self.taken / self.buckets_per_block, self.taken % self.buckets_per_block);
        self.taken += 1;
        Some(self.blocks[block as usize] + bucket * BUCKET_BYTES)
    }

    /// Takes all blocks, which are then no longer the index's.
    pub fn clear(&mut self) -> Vec<u64> {
        std::mem::take(self).blocks
    }
}
