//! Which share of the small queue has more hits: two caches in miniature, one with each share.
//!
//! ```text
//!            requests for one key in 2^n
//!           /                           \
//!  small queue of 5%             small queue of 76%        -> the share of the one with more hits
//! ```
//! A cache of 1/n of memory that sees the requests for one key in n has about the hit ratio of the whole, with the same
//! policy (Waldspurger et al., "Cache Modeling and Optimization using Miniature Simulations", ATC'17). The store takes the other
//! share once that would have had so many more hits as a certain part of memory holds items (a one-sided CUSUM test):
//! a batch that is written and lost costs as much, so neither share is given up for less.
//!
//! `cache.rs` is one of them. Hits of readers that the server does not see count as their reports say.

mod cache;

use crossbeam_utils::CachePadded;
use fabcache_layout::KeyHash;
use fabcache_layout::item::Item;
use fabcache_layout::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

pub use cache::SimulatedItem;

use self::cache::SimulatedCache;
use crate::bounds::{
    SIMULATED_ITEMS_MAX, SIMULATED_ITEMS_MIN, SIMULATION_GAIN_ITEMS_MIN, SIMULATION_GAIN_SHARE,
    SMALL_QUEUE_SHARE_LARGE, SMALL_QUEUE_SHARE_SMALL,
};
use crate::reclaim::whole_bytes;

/// The large share's place among the caches, and the small one's.
const LARGE: usize = 0;
const SMALL: usize = 1;
/// Missed keys of the sample that are waited for at once.
const MISSED_KEYS_MAX: usize = 32;
/// Reads that one report counts for at most: a client may invent them.
const REPORTED_READS_MAX: u8 = 4;
/// The mask of the smallest sample.
const MASK_MAX: u64 = (1 << 32) - 1;

/// Counts of the requests for the keys that take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulationCounts {
    /// Requests.
    pub requests: u64,
    /// Hits with a small queue of 76% of memory.
    pub hits_large: u64,
    /// Hits with one of 5%.
    pub hits_small: u64,
    /// Changes of the share.
    pub changes: u64,
}

/// Two caches in miniature.
#[derive(Debug)]
pub struct Simulation {
    /// Keys take part whose mixed hash has none of these bits; all bits if none does.
    mask: AtomicU64,
    /// Written by requests for keys of the sample, and not in the cache line of the mask, which every request reads.
    state: CachePadded<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    caches: [SimulatedCache; 2],
    /// Bytes of live items when memory was full last.
    live_bytes: u64,
    /// The cache whose share the store has.
    current: usize,
    /// Hits that the other one had more, and never less than none.
    gain: u64,
    /// The latest keys that were requested and had no item, until they are stored.
    missed: [Option<KeyHash>; MISSED_KEYS_MAX],
    counts: SimulationCounts,
}

impl Simulation {
    /// Returns a simulation for a store that so many items will fill; it sees no requests if that is not known.
    pub fn new(items: Option<u64>) -> Simulation {
        // Models leave it out: it is behind one lock, and nothing depends on it.
        let mask = items.filter(|_| !cfg!(loom)).map_or(u64::MAX, mask_for);
        let caches = [SMALL_QUEUE_SHARE_LARGE, SMALL_QUEUE_SHARE_SMALL].map(SimulatedCache::new);
        let counts = SimulationCounts::default();
        let state =
            State { caches, live_bytes: 0, current: LARGE, gain: 0, missed: [None; MISSED_KEYS_MAX], counts };
        Simulation { mask: AtomicU64::new(mask), state: CachePadded::new(Mutex::new(state)) }
    }

    /// Continues with this share of the small queue, if it is one of the two.
    #[cfg(not(loom))]
    pub fn continue_with(&self, small_share: f64) {
        let mut state = self.state();
        let of_share = state.caches.iter().position(|cache| cache.small_share() == small_share);
        state.current = of_share.unwrap_or(LARGE);
    }

    /// Returns whether a key takes part.
    #[inline]
    pub fn samples(&self, hash: KeyHash) -> bool {
        is_sampled(hash, self.mask.load(Ordering::Relaxed))
    }

    /// Records reads of an item that is in the store.
    #[inline]
    pub fn note_hit(&self, hash: KeyHash, item: &Item, now: u32) {
        if self.samples(hash) {
            self.read(hash, 1, Some(simulated(hash, item)), now);
        }
    }

    /// Records a request for a key that has no item.
    #[inline]
    pub fn note_miss(&self, hash: KeyHash, now: u32) {
        if self.samples(hash) {
            self.read(hash, 1, None, now);
        }
    }

    /// Records reads that a client reports of an item whose key has this hash, and takes part.
    pub fn note_reported(&self, hash: KeyHash, reads: u8, item: &Item, now: u32) {
        self.read(hash, reads.min(REPORTED_READS_MAX), Some(simulated(hash, item)), now);
    }

    /// Records that an item was stored, in place of an existing one or of none. The latter is a request that missed,
    /// unless one was recorded just before: readers of the region see for themselves that a key has no item.
    #[inline]
    pub fn note_stored(&self, item: SimulatedItem, replaces: bool, now: u32) {
        if self.samples(item.hash) {
            self.store(item, replaces, now);
        }
    }

    /// Records that an item was written again as the same: with another size or expiry.
    #[inline]
    pub fn note_updated(&self, item: SimulatedItem) {
        if self.samples(item.hash)
            && let Ok(mut state) = self.state.try_lock()
        {
            state.caches.iter_mut().for_each(|cache| cache.update(item));
        }
    }

    /// Records that a key has no item any more by a client's request.
    #[inline]
    pub fn note_removed(&self, hash: KeyHash) {
        if self.samples(hash) {
            let mut state = self.state();
            state.take_missed(hash);
            state.caches.iter_mut().for_each(|cache| cache.remove(hash));
        }
    }

    /// Records that all items were flushed.
    pub fn note_flushed(&self) {
        if self.mask.load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        let mut state = self.state();
        state.missed = [None; MISSED_KEYS_MAX];
        state.caches.iter_mut().for_each(|cache| cache.retain(|_| false));
    }

    /// Records that memory is full with so many items and bytes of them; returns the small queue's share that has more
    /// hits.
    pub fn note_full(&self, items: u64, live_bytes: u64) -> f64 {
        let (mask, wanted) = (self.mask.load(Ordering::Relaxed), mask_for(items));
        if mask == u64::MAX {
            return SMALL_QUEUE_SHARE_LARGE;
        }
        let mut state = self.state();
        state.live_bytes = live_bytes;
        // Items of the sample may be smaller than others: their number decides, too.
        let is_small = wanted < mask && (state.items() as u64) < SIMULATED_ITEMS_MIN / 2;
        if is_small || wanted > mask << 1 | 1 {
            self.set_mask(&mut state, wanted);
        } else {
            state.set_capacity(mask);
        }
        state.caches[state.current].small_share()
    }

    /// Returns the counts since the last reset.
    pub fn counts(&self) -> SimulationCounts {
        self.state().counts
    }

    /// Starts the counts again.
    pub fn reset_counts(&self) {
        self.state().counts = SimulationCounts::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it simulates")
    }

    #[cold]
    fn read(&self, hash: KeyHash, reads: u8, item: Option<SimulatedItem>, now: u32) {
        // A reader does not wait for a lock: a request of a sample is lost.
        let Ok(mut state) = self.state.try_lock() else { return };
        let hits = state.caches.each_mut().map(|cache| {
            let hit = cache.read(hash, reads, now);
            if let Some(item) = item.filter(|_| !hit) {
                cache.fill(item, now);
            }
            hit
        });
        state.compare(hits, u64::from(reads));
        if item.is_none() && !state.missed.contains(&Some(hash)) {
            state.missed.rotate_right(1);
            state.missed[0] = Some(hash);
        }
        self.widen(&mut state);
    }

    #[cold]
    fn store(&self, item: SimulatedItem, replaces: bool, now: u32) {
        // The caller holds the lock of the key's group, for which others wait.
        let Ok(mut state) = self.state.try_lock() else { return };
        if replaces {
            state.caches.iter_mut().for_each(|cache| cache.replace(item, now));
        } else {
            if !state.take_missed(item.hash) {
                let hits = state.caches.each_mut().map(|cache| cache.read(item.hash, 0, now));
                state.compare(hits, 1);
            }
            state.caches.iter_mut().for_each(|cache| cache.fill(item, now));
        }
        self.widen(&mut state);
    }

    /// Halves the sample if it has grown too large.
    fn widen(&self, state: &mut State) {
        let mask = self.mask.load(Ordering::Relaxed);
        let items = state.caches.iter().map(SimulatedCache::items).max();
        if items > Some(SIMULATED_ITEMS_MAX) && mask < MASK_MAX {
            self.set_mask(state, mask << 1 | 1);
        }
    }

    fn set_mask(&self, state: &mut State, mask: u64) {
        self.mask.store(mask, Ordering::Relaxed);
        state.caches.iter_mut().for_each(|cache| cache.retain(|hash| is_sampled(hash, mask)));
        state.set_capacity(mask);
        state.gain = 0;
    }
}

impl State {
    /// Returns whether a key was requested just before, and forgets that.
    fn take_missed(&mut self, hash: KeyHash) -> bool {
        let missed = self.missed.iter_mut().find(|missed| **missed == Some(hash));
        missed.and_then(Option::take).is_some()
    }

    fn items(&self) -> usize {
        self.caches[LARGE].items()
    }

    fn set_capacity(&mut self, mask: u64) {
        if self.live_bytes > 0 {
            let bytes = self.live_bytes >> mask.count_ones();
            self.caches.iter_mut().for_each(|cache| cache.set_capacity(bytes));
        }
    }

    fn compare(&mut self, hits: [bool; 2], reads: u64) {
        self.counts.requests += reads;
        self.counts.hits_large += reads * u64::from(hits[LARGE]);
        self.counts.hits_small += reads * u64::from(hits[SMALL]);
        if !self.caches[LARGE].has_evicted() {
            return;
        }
        let other = 1 - self.current;
        if hits[other] && !hits[self.current] {
            self.gain += reads;
        } else if hits[self.current] && !hits[other] {
            self.gain = self.gain.saturating_sub(reads);
        }
        let items = self.items().max(SIMULATION_GAIN_ITEMS_MIN);
        if self.gain as f64 > items as f64 * SIMULATION_GAIN_SHARE {
            self.current = other;
            self.gain = 0;
            self.counts.changes += 1;
        }
    }
}

/// Returns the mask that leaves [`SIMULATED_ITEMS_MIN`] of so many items, to twice as many.
fn mask_for(items: u64) -> u64 {
    (items / SIMULATED_ITEMS_MIN).checked_ilog2().map_or(0, |bits| ((1 << bits) - 1).min(MASK_MAX))
}

fn simulated(hash: KeyHash, item: &Item) -> SimulatedItem {
    SimulatedItem { hash, bytes: whole_bytes(item), expiry: item.expiry }
}

/// Returns whether a key takes part: by bits that choose neither its group, nor its row or fingerprint among ghosts.
#[inline]
fn is_sampled(hash: KeyHash, mask: u64) -> bool {
    hash.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 & mask == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::mem::offset_of;

    use super::*;

    const ITEMS: u64 = 20_000;
    const BYTES: u64 = 100;

    #[test]
    fn mask_lies_on_no_line_of_the_state() {
        let (mask, state) = (offset_of!(Simulation, mask), offset_of!(Simulation, state));
        assert!(state + size_of::<Mutex<State>>() <= mask || mask + 64 <= state, "{mask} {state}");
        assert_eq!(align_of::<Simulation>() % 64, 0);
    }

    fn item(number: u64) -> SimulatedItem {
        SimulatedItem { hash: KeyHash::of(&number.to_le_bytes(), 1), bytes: BYTES, expiry: 0 }
    }

    /// Requests a key, and stores it if it is absent, as a cache-aside client does; the store keeps nothing.
    fn request(simulation: &Simulation, number: u64) {
        let item = item(number);
        simulation.note_miss(item.hash, 1);
        simulation.note_stored(item, false, 1);
    }

    fn filled() -> Simulation {
        let simulation = Simulation::new(Some(ITEMS));
        (0..ITEMS).for_each(|number| simulation.note_stored(item(number), false, 1));
        simulation.note_full(ITEMS, ITEMS * BYTES);
        simulation
    }

    #[test]
    fn sample_follows_the_number_of_items() {
        let simulation = filled();
        let items = |simulation: &Simulation| simulation.state().items();
        let mask = |simulation: &Simulation| simulation.mask.load(Ordering::Relaxed);
        assert_eq!(mask(&simulation), 31, "one of 32 of 20,000");
        assert!((500..800).contains(&items(&simulation)), "{}", items(&simulation));
        let sampled = (0..ITEMS).filter(|number| simulation.samples(item(*number).hash)).count();
        assert!((500..800).contains(&sampled), "{sampled}");
        // Items of ten times the size: a tenth as many fill memory.
        for number in ITEMS..2 * ITEMS {
            simulation.note_stored(SimulatedItem { bytes: 10 * BYTES, ..item(number) }, false, 1);
            simulation.note_full(ITEMS / 10, ITEMS * BYTES);
        }
        assert!(mask(&simulation) <= 7, "one of at most eight of 2,000");
        assert!((200..=2_000).contains(&items(&simulation)), "{}", items(&simulation));
        // Many more than were expected.
        (0..ITEMS).for_each(|number| simulation.note_stored(item(number), false, 1));
        let left = items(&simulation);
        assert!(mask(&simulation) > 0 && left <= SIMULATED_ITEMS_MAX, "{left}");
    }

    #[test]
    fn share_with_more_hits_is_taken() {
        let simulation = filled();
        let share = || simulation.note_full(ITEMS, ITEMS * BYTES);
        assert!((share() - SMALL_QUEUE_SHARE_LARGE).abs() < 1e-9);
        // Popular items that fit into the main queue only if the small one is small, and others that are stored once.
        let mut new = ITEMS;
        for _ in 0..20 {
            for number in 0..ITEMS * 3 / 5 {
                request(&simulation, number);
                request(&simulation, new);
                new += 1;
            }
        }
        assert!((share() - SMALL_QUEUE_SHARE_SMALL).abs() < 1e-9, "{:?}", simulation.counts());
        // Each is read once, half a memory later.
        for number in new..new + 4 * ITEMS {
            simulation.note_stored(item(number), false, 1);
            simulation.note_miss(item(number - ITEMS / 2).hash, 1);
        }
        assert!((share() - SMALL_QUEUE_SHARE_LARGE).abs() < 1e-9, "{:?}", simulation.counts());
        assert_eq!(simulation.counts().changes, 2);
        simulation.reset_counts();
        assert_eq!(simulation.counts(), SimulationCounts::default());
    }

    #[test]
    fn missing_key_that_is_stored_is_one_request() {
        let simulation = filled();
        let count = || {
            let SimulationCounts { requests, hits_large, hits_small, .. } = simulation.counts();
            (requests, hits_large, hits_small)
        };
        simulation.reset_counts();
        let known = (0..ITEMS).rev().find(|number| simulation.samples(item(*number).hash)).expect("some are");
        request(&simulation, known);
        assert_eq!(count(), (1, 1, 1));
        simulation.note_stored(item(known), false, 1);
        assert_eq!(count(), (2, 2, 2), "a reader of the region missed it");
        simulation.note_stored(item(known), true, 1);
        assert_eq!(count(), (2, 2, 2), "it was replaced");
    }

    #[test]
    fn requests_after_removal_or_flush_are_no_hits() {
        let simulation = filled();
        let hits = |numbers: std::ops::Range<u64>| {
            let before = simulation.counts().hits_large;
            numbers.for_each(|number| simulation.note_miss(item(number).hash, 1));
            simulation.counts().hits_large - before
        };
        assert!(hits(0..1_000) > 10);
        (0..1_000).for_each(|number| simulation.note_removed(item(number).hash));
        assert_eq!(hits(0..1_000), 0);
        assert!(hits(1_000..2_000) > 10);
        simulation.note_flushed();
        assert_eq!(hits(0..ITEMS), 0);
    }

    #[test]
    fn keys_with_colliding_hashes_and_invented_reports_do_no_harm() {
        let simulation = filled();
        // Hashes that every mask samples.
        let inverse = 0xf1de_83e1_9937_733du64;
        for low in 0..20_000u64 {
            let item = SimulatedItem { hash: KeyHash(low.wrapping_mul(inverse)), bytes: BYTES, expiry: 0 };
            assert!(is_sampled(item.hash, u64::MAX >> 16) || low >= 1 << 16);
            simulation.note_stored(item, false, 1);
        }
        simulation.note_full(ITEMS, ITEMS * BYTES);
        assert!(simulation.state().items() <= 2 * SIMULATED_ITEMS_MAX);
        assert!(simulation.mask.load(Ordering::Relaxed) <= MASK_MAX);
        simulation.note_full(u64::MAX, u64::MAX);
        simulation.note_full(0, 0);
    }

    #[test]
    fn simulation_that_is_off_sees_nothing() {
        let simulation = Simulation::new(None);
        (0..1_000).for_each(|number| request(&simulation, number));
        assert_eq!((simulation.counts(), simulation.state().items()), (SimulationCounts::default(), 0));
    }
}
