//! The index's own part of its state: saved by a clean stop, and restored over a region that was kept.
//!
//! Heads, block numbers and slots are in the region. Each block is named once: by a table, as chain buckets, or as free.

use crossbeam_utils::CachePadded;
use fabcache_layout::directory::{self, Head};
use fabcache_layout::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use fabcache_layout::{Geometry, Memory};

use super::blocks::{Blocks, ChainBuckets};
use super::{Index, Partition};
use crate::restart::saved_state::{SavedChains, SavedIndex, SavedPartition, StateError};

/// The blocks of the segments that the index has, each of which is named at most once.
#[derive(Debug)]
pub struct BlockNames {
    geometry: Geometry,
    /// For each block of each segment.
    is_free: Vec<bool>,
}

impl BlockNames {
    /// Returns the blocks of the segments for which `is_index` holds; none is named.
    pub fn new(geometry: Geometry, is_index: impl Fn(u32) -> bool) -> BlockNames {
        let blocks = geometry.blocks_per_segment() as usize;
        let is_free =
            (0..geometry.segments).flat_map(|id| std::iter::repeat_n(is_index(id), blocks)).collect();
        BlockNames { geometry, is_free }
    }

    /// Names a block by its number. Returns its offset; none if it is no block of the index, or was named before.
    pub fn name(&mut self, number: u32) -> Option<u64> {
        let geometry = &self.geometry;
        let offset = u64::from(number) * geometry.block_unit_bytes();
        let segment = geometry.segment_of(offset)?;
        let within = offset - geometry.segment_offset(segment);
        let block = within / geometry.block_bytes();
        if !within.is_multiple_of(geometry.block_bytes()) || block >= geometry.blocks_per_segment() {
            return None;
        }
        let at = u64::from(segment) * geometry.blocks_per_segment() + block;
        std::mem::take(&mut self.is_free[at as usize]).then_some(offset)
    }

    /// Returns the blocks that nothing names, by offset.
    pub fn free(&self) -> Vec<u64> {
        let blocks = self.geometry.blocks_per_segment();
        let offset = |at: u64| {
            let segment = (at / blocks) as u32;
            self.geometry.segment_offset(segment) + at % blocks * self.geometry.block_bytes()
        };
        (0u64..).zip(&self.is_free).filter(|(_, is_free)| **is_free).map(|(at, _)| offset(at)).collect()
    }

    /// Names the blocks of a table. Returns false if one cannot be named.
    pub fn name_table(&mut self, memory: &Memory, partition: usize, table: usize, groups: u32) -> bool {
        let blocks = groups.div_ceil(1 << self.geometry.block_shift) as usize;
        (0..blocks).all(|block| {
            let at = directory::block_number_offset(&self.geometry, partition, table, block);
            self.name(memory.load_u32(at, Ordering::Relaxed)).is_some()
        })
    }
}

/// Returns whether the numbers of groups are possible.
fn is_head_sound(head: Head, geometry: &Geometry) -> bool {
    let is_possible = |groups: u32| (1..=geometry.groups_max()).contains(&groups);
    is_possible(head.groups) && head.next_groups.is_none_or(|next| is_possible(next) && next >= head.groups)
}

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
        Ok(index)
    }

    /// Finds the tables of all partitions by their heads, and names their blocks.
    ///
    /// # Errors
    /// The part of the directory that no server can have left so.
    pub(super) fn find_tables(&mut self, names: &mut BlockNames) -> Result<(), &'static str> {
        let (mut groups, mut growing) = (0, 0);
        for partition in 0..self.geometry.partitions() {
            let head = Head::from_word(self.head_word(partition));
            if !is_head_sound(head, &self.geometry) {
                return Err("a partition's head");
            }
            let next = head.next_groups.map(|groups| (1 - head.current, groups));
            if next.is_some() && std::mem::replace(&mut growing, partition as u32 + 1) != 0 {
                return Err("a growing table");
            }
            for (table, table_groups) in [Some((head.current, head.groups)), next].into_iter().flatten() {
                if !names.name_table(&self.memory, partition, table, table_groups) {
                    return Err("a block of a table");
                }
                groups += u64::from(table_groups);
            }
        }
        self.groups = AtomicU64::new(groups);
        self.growing = AtomicU32::new(growing);
        Ok(())
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
