//! The index's own part of its state: saved by a clean stop, and restored over a region that was kept.
//!
//! Heads, block numbers and slots are in the region. Each block is named once: by a table, as chain buckets, or as free.

use crossbeam_utils::CachePadded;
use fabcache_layout::directory::Head;
use fabcache_layout::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use fabcache_layout::{Geometry, Memory};

use super::blocks::{Blocks, ChainBuckets};
use super::tables::BlockNames;
use super::{Index, Partition};
use crate::restart::saved_state::{SavedChains, SavedIndex, SavedPartition, StateError};

impl Index {
    /// Returns what the region does not have. No thread uses the index meanwhile.
    pub fn save(&self) -> SavedIndex {
        let number = |block: u64| (block / self.geometry.block_unit_bytes()) as u32;
        let numbers = |blocks: &[u64]| blocks.iter().map(|block| number(*block)).collect();
        let partition = |index: usize| {
            let chains = self.chains(index);
            let partition = &self.partitions[index];
            SavedPartition {
                items: partition.items.load(Ordering::Relaxed),
                next_group: partition.next_group.load(Ordering::Relaxed),
                chains: std::array::from_fn(|table| {
                    let (blocks, taken) = chains[table].blocks();
                    SavedChains { blocks: numbers(blocks), taken }
                }),
            }
        };
        SavedIndex {
            partitions: (0..self.partitions.len()).map(partition).collect(),
            free_blocks: numbers(&self.blocks.free()),
            group_sums: self.group_sums(),
            chain_buckets: self.chain_buckets.load(Ordering::Relaxed),
        }
    }

    /// Returns the index of a kept region, with this saved state; reads the region only. `is_index` says which segments
    /// are the index's.
    ///
    /// # Errors
    /// State and region disagree.
    pub fn restore(
        memory: Memory,
        geometry: Geometry,
        locks: usize,
        saved: &SavedIndex,
        is_index: impl Fn(u32) -> bool,
    ) -> Result<Index, StateError> {
        let disagrees = StateError::Disagrees;
        if saved.partitions.len() != geometry.partitions() {
            return Err(disagrees("number of partitions"));
        }
        let mut names = BlockNames::new(geometry, is_index);
        let mut index = Index::empty(memory, geometry, locks);
        index.find_tables(&mut names).map_err(disagrees)?;
        for (number, saved) in saved.partitions.iter().enumerate() {
            let head = Head::from_word(index.head_word(number));
            if head.next_groups.is_some() && saved.next_group >= head.groups {
                return Err(disagrees("a growing table"));
            }
            index.partitions[number] = CachePadded::new(restore_partition(saved, &geometry, &mut names)?);
        }
        let free = saved.free_blocks.iter().map(|number| names.name(*number)).collect::<Option<Vec<_>>>();
        index.blocks = Blocks::with_free(&geometry, free.ok_or(disagrees("a free block"))?);
        index.chain_buckets = AtomicU64::new(saved.chain_buckets);
        index.verify_lazily(names, &saved.group_sums)?;
        Ok(index)
    }
}

fn restore_partition(
    saved: &SavedPartition,
    geometry: &Geometry,
    names: &mut BlockNames,
) -> Result<Partition, StateError> {
    let chains = |saved: &SavedChains| {
        let blocks = saved.blocks.iter().map(|number| names.name(*number)).collect::<Option<Vec<_>>>()?;
        ChainBuckets::with_blocks(blocks, geometry.block_bytes(), saved.taken)
    };
    let [current, next] = saved.chains.each_ref().map(chains);
    let (Some(current), Some(next)) = (current, next) else {
        return Err(StateError::Disagrees("the blocks of a partition's chains"));
    };
    Ok(Partition {
        items: AtomicU32::new(saved.items),
        next_group: AtomicU32::new(saved.next_group),
        chains: Mutex::new([current, next]),
        ..Partition::default()
    })
}
