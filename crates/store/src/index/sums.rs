//! Checksums of the index's groups: a clean stop saves them, so that a bit that flips in the file leads no search astray.

use fabcache_layout::format::{BUCKET_BYTES, GROUP_BYTES};
#[cfg(not(loom))]
use fabcache_layout::{directory::Head, sync::AtomicBool};
use xxhash_rust::xxh3::xxh3_64;

use super::Index;
#[cfg(not(loom))]
use super::{recover::Recovery, tables::BlockNames};
#[cfg(not(loom))]
use crate::restart::saved_state::StateError;

/// Chain buckets that a group's checksum covers at most: the links of a damaged group may form a circle.
const CHAIN_BUCKETS_SUMMED_MAX: u32 = 1 << 16;

impl Index {
    /// Returns the checksum of the group at this offset, with its chain.
    pub(super) fn group_sum(&self, start: u64) -> u32 {
        let mut bytes = Vec::with_capacity(GROUP_BYTES as usize);
        self.memory.append_to(start, GROUP_BYTES as usize, &mut bytes);
        let mut link = self.load_slot(start + GROUP_BYTES - 8).link_offset();
        for _ in 0..CHAIN_BUCKETS_SUMMED_MAX {
            let Some(bucket) =
                link.filter(|at| at.is_multiple_of(BUCKET_BYTES) && self.memory.contains(*at, BUCKET_BYTES))
            else {
                break;
            };
            self.memory.append_to(bucket, BUCKET_BYTES as usize, &mut bytes);
            link = self.load_slot(bucket + BUCKET_BYTES - 8).link_offset();
        }
        xxh3_64(&bytes) as u32
    }
}

#[cfg(not(loom))]
impl Index {
    /// Returns the checksums of all groups: of each partition those of its table, then those of the one that it grows to. No
    /// thread uses the index meanwhile.
    pub fn group_sums(&self) -> Vec<u32> {
        (0..self.geometry.partitions()).flat_map(|partition| self.sums_of(partition)).collect()
    }

    fn sums_of(&self, partition: usize) -> Vec<u32> {
        let tables = self.tables_of(partition).into_iter();
        let groups = tables.flat_map(|(table, groups)| (0..groups).map(move |group| (table, group)));
        groups.map(|(table, group)| self.group_sum(self.group_start(partition, table, group))).collect()
    }

    /// Has each group compared with its checksum before a request uses it; those of a growing partition at once.
    ///
    /// # Errors
    /// The number of checksums is another one, or a group of a growing partition is damaged.
    pub(super) fn verify_lazily(&mut self, names: BlockNames, sums: &[u32]) -> Result<(), StateError> {
        let (mut left, mut unchecked) = (sums, Vec::new());
        for partition in 0..self.geometry.partitions() {
            let head = Head::from_word(self.head_word(partition));
            let groups = head.groups + head.next_groups.unwrap_or(0);
            let disagrees = StateError::Disagrees("the number of checksums");
            let (its, others) = left.split_at_checked(groups as usize).ok_or(disagrees)?;
            left = others;
            if head.next_groups.is_none() {
                unchecked.extend_from_slice(its);
            } else if self.sums_of(partition) != its {
                return Err(StateError::Disagrees("a growing table"));
            }
        }
        if !left.is_empty() {
            return Err(StateError::Disagrees("the number of checksums"));
        }
        self.recovery = Some(Box::new(Recovery::new(self, names, Some(unchecked.into()))));
        self.is_recovering = AtomicBool::new(true);
        Ok(())
    }
}
