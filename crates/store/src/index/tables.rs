//! The tables that a region's directory names, for a server that takes the region over.

use fabcache_layout::directory::{self, Head};
use fabcache_layout::sync::{AtomicU32, AtomicU64, Ordering};
use fabcache_layout::{Geometry, Memory};

use super::Index;

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
    fn name_table(&mut self, memory: &Memory, partition: usize, table: usize, groups: u32) -> bool {
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
