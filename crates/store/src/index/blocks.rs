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
        Blocks {
            block_bytes: geometry.block_bytes(),
            blocks_per_segment: geometry.blocks_per_segment(),
            free: Mutex::new(VecDeque::new()),
        }
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
    next: u64,
    end: u64,
}

impl ChainBuckets {
    /// Returns the buckets available without another block.
    pub fn ready(&self) -> u64 {
        (self.end - self.next) / BUCKET_BYTES
    }

    /// Adds a block, a zeroed one.
    pub fn add_block(&mut self, block: u64, block_bytes: u64) {
        debug_assert!(block_bytes.is_multiple_of(GROUP_BYTES));
        self.blocks.push(block);
        (self.next, self.end) = (block, block + block_bytes);
    }

    /// A bucket, if one is ready.
    pub fn take(&mut self) -> Option<u64> {
        (self.ready() > 0).then(|| {
            self.next += BUCKET_BYTES;
            self.next - BUCKET_BYTES
        })
    }

    /// Takes all blocks, which are then no longer the index's.
    pub fn clear(&mut self) -> Vec<u64> {
        (self.next, self.end) = (0, 0);
        std::mem::take(&mut self.blocks)
    }
}
