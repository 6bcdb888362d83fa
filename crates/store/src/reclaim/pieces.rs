//! The same for pieces of chained values: each goes or moves with the item that has it.

use fabcache_layout::KeyHash;
use fabcache_layout::item::{self, Item, PieceEntry, State};
use fabcache_layout::slot::FREQUENCY_MAX;

use super::{Purpose, Stuck, Victim};
use crate::bounds::RECLAIM_STEP_BYTES;
use crate::counters::StoreCounters;
use crate::eviction::Eviction;
use crate::index::SlotAt;
use crate::index::group::LockedGroup;
use crate::info::Expiry;
use crate::segments::{Claim, Queue};
use crate::store::Store;

impl Store {
    pub(super) fn pass_over_piece(
        &self,
        victim: &mut Victim,
        eviction: &mut Eviction,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        owner: KeyHash,
        (offset, piece): (u64, &Item),
    ) -> Result<(), Stuck> {
        let found = group.find(owner, |slot| {
            let head = Item::read(&self.memory, slot.offset());
            head.is_some_and(|head| {
                head.is_chained() && self.pieces(slot.offset(), &head).iter().any(|p| p.offset == offset)
            })
        });
        let Some(at) = found else {
            // A value still being received. Its client is told that memory is full.
            if victim.purpose != Purpose::Evict {
                return Err(Stuck);
            }
            item::set_state(&self.memory, offset, State::DEAD);
            self.segments.count_dead(offset, piece.bytes(), 0);
            return Ok(());
        };
        let head = Item::read(&self.memory, at.slot.offset()).expect("a slot points into the region");
        if let Some(miss) = self.gone(&head, self.now()) {
            self.drop_gone(counters, group, at, &head, miss);
            return Ok(());
        }
        let bytes = piece.bytes() + head.bytes();
        // Its item may have been read to go to the main queue, and come there without it.
        let follows = victim.queue == Queue::Small && self.segments.queue_at(at.slot.offset()) == Queue::Main;
        let frequency = if follows { FREQUENCY_MAX } else { at.slot.frequency() };
        if victim.purpose == Purpose::Evict && victim.queue == Queue::Main {
            eviction.see_main(frequency, bytes);
        }
        if self.keeps(victim, frequency, bytes) {
            let which = (offset, victim.end);
            let worn = self.worn(victim, eviction, at, &head);
            let to = (self.destination(victim), worn);
            match self.move_pieces(counters, group, owner, at, &head, which, to) {
                Ok(moved) => {
                    victim.moved_bytes += moved + head.bytes();
                    counters.bytes_moved.add(moved);
                    return Ok(());
                }
                Err(Stuck) if !self.evicts() => return Err(Stuck),
                Err(Stuck) => {}
            }
        }
        self.evict_from(victim, eviction, counters, group, owner, (at, &head));
        Ok(())
    }

    /// Moves pieces of one value that lie in the victim from `from` on, all at once, for each time their table is
    /// written anew: at least the one at `from`, and more up to about the bytes of a step. With the last of all the item
    /// gets the frequency of `to`. The bytes moved.
    #[expect(clippy::too_many_arguments, reason = "the pieces, their owner, from where and to where")]
    fn move_pieces(
        &self,
        counters: &StoreCounters,
        group: &LockedGroup<'_>,
        owner: KeyHash,
        at: SlotAt,
        head: &Item,
        (from, end): (u64, u64),
        (queue, worn): (Queue, u8),
    ) -> Result<u64, Stuck> {
        let mut moved = Vec::new();
        let mut left = Vec::new();
        let mut pieces = Vec::new();
        let mut bytes = 0;
        let mut last_moved = false;
        for piece in self.pieces(at.slot.offset(), head) {
            last_moved = false;
            if piece.offset != from && (!(from..end).contains(&piece.offset) || bytes > RECLAIM_STEP_BYTES) {
                pieces.push(piece);
                continue;
            }
            last_moved = true;
            bytes += u64::from(piece.len);
            left.push(piece);
            let Ok(parts) = self.copy_piece(owner, head, piece, queue) else {
                moved.into_iter().for_each(|part| self.kill_piece(part));
                return Err(Stuck);
            };
            pieces.extend(&parts);
            moved.extend(parts);
        }
        let to = (queue, if last_moved { worn } else { at.slot.frequency() });
        if let Err(stuck) = self.rewrite(group, owner, at, head, Some(pieces), to) {
            moved.into_iter().for_each(|part| self.kill_piece(part));
            return Err(stuck);
        }
        counters.items_moved.add(left.len() as u64);
        left.into_iter().for_each(|piece| self.kill_piece(piece));
        Ok(bytes)
    }

    /// Writes the bytes of a piece anew, in one or several.
    fn copy_piece(
        &self,
        owner: KeyHash,
        head: &Item,
        piece: PieceEntry,
        queue: Queue,
    ) -> Result<Vec<PieceEntry>, Stuck> {
        let value = self.piece_value(piece);
        let mut parts = Vec::new();
        let mut rest = &value[..];
        while !rest.is_empty() {
            match self.write_piece(owner, queue, Expiry::at(head.expiry), rest, Claim::Move, false) {
                Ok(part) => {
                    rest = &rest[part.len as usize..];
                    parts.push(part);
                }
                Err(_) => {
                    parts.into_iter().for_each(|part| self.kill_piece(part));
                    return Err(Stuck);
                }
            }
        }
        Ok(parts)
    }
}
