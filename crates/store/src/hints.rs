//! Access hints: batches of sampled reads that the server did not see, reported by readers of the region.
//!
//! A hint says that a key with this hash was read. It is not trusted: at worst it raises the frequency of an item
//! that was not read. A hint for a deleted item has no effect.

use std::ops::ControlFlow;

use fabcache_layout::KeyHash;
use fabcache_layout::item::{Item, KEY_BYTES_MAX, access_window, load_state};

use crate::handle::Handle;
use crate::index::HomeBucket;
use crate::index::lookup::Search;
use crate::read::is_counted_by_queue;

/// Reads recorded together: about as many cache lines as a core can wait for at once.
const ACCESSES_AHEAD: usize = 16;

/// Reads of one key, reported by a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Hash of the key.
    pub hash: KeyHash,
    /// The number of reads that it represents: one of this many was sampled.
    pub reads: u8,
}

impl Handle {
    /// Counts reported reads, as if the server had performed them. Each is one lookup of the index, whose cache
    /// misses overlap those of the next; it waits for no lock.
    pub fn note_accesses(&self, accesses: impl IntoIterator<Item = Access>) {
        if self.store.index.is_recovering() {
            return;
        }
        let mut accesses = accesses.into_iter().fuse();
        let mut batch = [Access { hash: KeyHash(0), reads: 0 }; ACCESSES_AHEAD];
        loop {
            let mut len = 0;
            for (place, access) in batch.iter_mut().zip(&mut accesses) {
                *place = access;
                len += 1;
            }
            let batch = &batch[..len];
            let mut homes = [HomeBucket::NONE; ACCESSES_AHEAD];
            for (home, access) in homes.iter_mut().zip(batch) {
                *home = self.store.index.prefetch(access.hash);
            }
            for (home, access) in homes.iter().zip(batch) {
                self.store.index.prefetch_items(access.hash, *home);
            }
            batch.iter().for_each(|access| self.note_outside_access(*access));
            if len < ACCESSES_AHEAD {
                return;
            }
        }
    }

    fn note_outside_access(&self, Access { hash, reads }: Access) {
        let store = &*self.store;
        // The tag alone: whose key it is would take a read of the item, to be wrong once in hundreds.
        let (Search::Found(at), _) = store.index.search(hash, ControlFlow::Break) else { return };
        self.counters().accesses_outside.inc();
        store.index.count_reads(at, reads);
        if store.simulation.samples(hash) {
            self.simulate(hash, reads, at.slot.offset());
        }
        let offset = at.slot.offset();
        let Some(segment) = store.geometry.segment_of(offset) else { return };
        if is_counted_by_queue(hash) {
            self.count_queue_hits(segment, u64::from(reads));
        }
        let generation = store.segments.generation(segment);
        let window = access_window(store.now().saturating_sub(store.segments.opened(segment)));
        // Read without checking that it still is this item's: it only decides whether to look again, with the lock.
        if window > load_state(&store.memory, offset).window() {
            store.note_access(hash, at, segment, generation, window);
        }
    }

    /// Records reported reads of a sampled key in the simulation, if the item at `offset` has a key with this hash: a
    /// client may invent hashes.
    #[cold]
    fn simulate(&self, hash: KeyHash, reads: u8, offset: u64) {
        let store = &*self.store;
        let Some(segment) = store.geometry.segment_of(offset) else { return };
        let Some(item) = Item::read(&store.memory, offset) else { return };
        // While it is overwritten its header may say anything.
        let is_whole = usize::from(item.key_len) <= KEY_BYTES_MAX
            && offset + item.bytes() <= store.geometry.segment_end(segment);
        let mut key = [0; KEY_BYTES_MAX];
        if is_whole && store.hash(store.copy_key(offset, &item, &mut key)) == hash {
            store.simulation.note_reported(hash, reads, &item, store.now());
        }
    }
}
