//! Reclaim of chunks of chained values: each is evicted or moved with its item.

use fabcache_layout::KeyHash;
use fabcache_layout::item::{self, ChunkEntry, Item, State};
use fabcache_layout::slot::FREQUENCY_MAX;

use super::stuck::StuckReason;
use super::{ImmovableItem, Obstacle, ReclaimPurpose, Victim};
use crate::bounds::RECLAIM_STEP_BYTES;
use crate::counters::StoreCounters;
use crate::eviction::Eviction;
use crate::index::SlotSnapshot;
use crate::index::group::LockedGroup;
use crate::info::Expiry;
use crate::segments::{ClaimPurpose, Queue};
use crate::store::Store;

impl Store {
    pub(super) fn pass_over_chunk(
        &self,
        victim: &mut Victim,
        eviction: &mut Eviction,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        owner: KeyHash,
        (offset, chunk): (u64, &Item),
    ) -> Result<(), Obstacle> {
        let found = group.find(owner, |slot| self.lists_chunk(slot, |entry| entry.offset == offset));
        let Some(at) = found else {
            // Its server was killed before it linked it. It does not count as alive.
            if self.segments.is_inherited(victim.id) {
                return Ok(());
            }
            // A value still being received: its client gets the error that memory is full.
            if victim.purpose != ReclaimPurpose::Evict || !self.evicts() {
                return Err(Obstacle::Stuck(StuckReason::Memory));
            }
            item::set_state(&self.memory, offset, State::DEAD);
            self.segments.count_dead(offset, chunk.bytes(), 0);
            return Ok(());
        };
        let head = Item::read(&self.memory, at.slot.offset()).expect("a slot points into the region");
        if let Some(miss) = self.gone(&head, self.now()) {
            self.drop_gone(counters, group, at, &head, miss);
            return Ok(());
        }
        let bytes = chunk.bytes() + head.bytes();
        // Its item may have been read to go to the main queue, and come there without it.
        let follows = victim.queue == Queue::Small && self.segments.queue_at(at.slot.offset()) == Queue::Main;
        let frequency = if follows { FREQUENCY_MAX } else { at.slot.frequency() };
        if victim.purpose == ReclaimPurpose::Evict && victim.queue == Queue::Main {
            eviction.see_main(frequency, bytes);
        }
        if self.keeps(victim, frequency, bytes) {
            // More of the victim's, up to about the bytes of a step, because each move rewrites the table.
            let end = victim.end;
            let which = |chunk: &ChunkEntry, bytes| {
                chunk.offset == offset || (offset..end).contains(&chunk.offset) && bytes <= RECLAIM_STEP_BYTES
            };
            let worn = self.worn(victim, eviction, at, &head);
            let to = (self.destination(victim), worn);
            match self.move_chunks(counters, group, owner, at, &head, which, to) {
                Ok(moved) => {
                    victim.moved_bytes += moved + head.bytes();
                    counters.bytes_moved.add(moved);
                    return Ok(());
                }
                Err(immovable) if !self.may_leave(victim) => return Err(immovable.into()),
                Err(ImmovableItem) => {}
            }
        }
        self.leave(victim, eviction, counters, group, owner, (at, &head))
    }

    /// Moves the chunks of one value that `which` wants, given the bytes of those before. With the last of all the item
    /// gets the frequency of `to`. Returns the bytes moved.
    #[expect(clippy::too_many_arguments, reason = "the chunks, their owner, which and to where")]
    pub(crate) fn move_chunks(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        owner: KeyHash,
        at: SlotSnapshot,
        head: &Item,
        which: impl Fn(&ChunkEntry, u64) -> bool,
        (queue, worn): (Queue, u8),
    ) -> Result<u64, ImmovableItem> {
        let mut moved = Vec::new();
        let mut left = Vec::new();
        let mut chunks = Vec::new();
        let mut bytes = 0;
        let mut last_moved = false;
        for chunk in self.chunks(at.slot.offset(), head) {
            last_moved = false;
            if !which(&chunk, bytes) {
                chunks.push(chunk);
                continue;
            }
            last_moved = true;
            bytes += u64::from(chunk.len);
            left.push(chunk);
            let Ok(parts) = self.copy_chunk(owner, head, chunk, queue) else {
                moved.into_iter().for_each(|part| self.kill_chunk(part));
                return Err(ImmovableItem);
            };
            chunks.extend(&parts);
            moved.extend(parts);
        }
        let to = (queue, if last_moved { worn } else { at.slot.frequency() });
        if let Err(stuck) = self.rewrite(group, owner, at, head, Some(chunks), to) {
            moved.into_iter().for_each(|part| self.kill_chunk(part));
            return Err(stuck);
        }
        counters.items_moved.add(left.len() as u64);
        left.into_iter().for_each(|chunk| self.kill_chunk(chunk));
        Ok(bytes)
    }

    /// Copies the bytes of a chunk to one or several new chunks.
    fn copy_chunk(
        &self,
        owner: KeyHash,
        head: &Item,
        chunk: ChunkEntry,
        queue: Queue,
    ) -> Result<Vec<ChunkEntry>, ImmovableItem> {
        let value = self.chunk_value(chunk);
        let mut parts = Vec::new();
        let mut rest = &value[..];
        while !rest.is_empty() {
            match self.write_chunk(owner, queue, Expiry::at(head.expiry), rest, ClaimPurpose::Move, false) {
                Ok(part) => {
                    rest = &rest[part.len as usize..];
                    parts.push(part);
                }
                Err(_) => {
                    parts.into_iter().for_each(|part| self.kill_chunk(part));
                    return Err(ImmovableItem);
                }
            }
        }
        Ok(parts)
    }
}
