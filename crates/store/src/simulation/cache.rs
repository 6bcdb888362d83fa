//! A cache in miniature: S3-FIFO over keys' hashes, without values.

use std::collections::{HashMap, VecDeque};

use fabcache_layout::KeyHash;

use crate::bounds::{
    EVICTION_FREQUENCY_MAX, SIMULATED_GHOSTS_MAX, SIMULATED_ITEMS_MAX, STRICT_PROMOTION_SHARE,
};

/// Ghosts that it keeps at least.
const GHOSTS_MIN: usize = 16;
/// It stores no item that takes more than this part (1/n) of it.
const ITEM_BYTES_DIVISOR: u64 = 4;

/// An item as the simulation knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedItem {
    /// The hash of its key.
    pub hash: KeyHash,
    /// The bytes it takes.
    pub bytes: u64,
    /// The second in which it expires; 0 for never.
    pub expiry: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Small,
    Main,
    Ghost,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    frequency: u8,
    /// Only the queue entry with this number is current.
    number: u32,
    bytes: u32,
    expiry: u32,
}

/// A FIFO of hashes. An entry that was moved or removed since is skipped.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<(KeyHash, u32)>,
    items: usize,
    bytes: u64,
}

/// A cache in miniature.
#[derive(Debug)]
pub struct SimulatedCache {
    /// The part of its bytes that the small queue may have.
    small_share: f64,
    capacity: u64,
    entries: HashMap<KeyHash, Entry>,
    small: Queue,
    main: Queue,
    ghosts: Queue,
    numbers: u32,
    has_evicted: bool,
}

impl SimulatedCache {
    /// Returns an empty cache of unlimited capacity.
    pub fn new(small_share: f64) -> SimulatedCache {
        SimulatedCache {
            small_share,
            capacity: u64::MAX,
            entries: HashMap::new(),
            small: Queue::default(),
            main: Queue::default(),
            ghosts: Queue::default(),
            numbers: 0,
            has_evicted: false,
        }
    }

    /// Returns the number of items.
    pub fn items(&self) -> usize {
        self.small.items + self.main.items
    }

    /// Returns the small queue's share.
    pub fn small_share(&self) -> f64 {
        self.small_share
    }

    /// Returns whether it was ever full.
    pub fn has_evicted(&self) -> bool {
        self.has_evicted
    }

    /// Sets the bytes that it holds. The next store evicts items beyond it.
    pub fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes;
    }

    /// Reads an item so many times; returns whether it is a hit at second `now`.
    pub fn read(&mut self, hash: KeyHash, reads: u8, now: u32) -> bool {
        let Some(entry) = self.entries.get_mut(&hash).filter(|entry| entry.place != Place::Ghost) else {
            return false;
        };
        if is_expired(entry.expiry, now) {
            self.remove(hash);
            return false;
        }
        entry.frequency = entry.frequency.saturating_add(reads);
        true
    }

    /// Stores an item unless it is there.
    pub fn fill(&mut self, item: SimulatedItem, now: u32) {
        match self.entries.get(&item.hash).map(|entry| entry.place) {
            None => self.insert(item, Place::Small, now),
            Some(Place::Ghost) => self.insert(item, Place::Main, now),
            Some(Place::Small | Place::Main) => self.update(item),
        }
    }

    /// Changes the size and expiry of an item that is there.
    pub fn update(&mut self, item: SimulatedItem) {
        let Some(entry) = self.entries.get_mut(&item.hash) else { return };
        if entry.place != Place::Ghost && item.bytes <= u64::from(u32::MAX) {
            let before = u64::from(std::mem::replace(&mut entry.bytes, item.bytes as u32));
            entry.expiry = item.expiry;
            let place = entry.place;
            let queue = self.queue(place);
            queue.bytes = queue.bytes - before + item.bytes;
        }
    }

    /// Stores an item in place of an existing one: behind all others of its queue, or in the main queue once it was
    /// read often enough.
    pub fn replace(&mut self, item: SimulatedItem, now: u32) {
        let place = match self.entries.get(&item.hash) {
            Some(entry) if entry.place == Place::Small && entry.frequency < self.least() => Place::Small,
            Some(_) => Place::Main,
            None => Place::Small,
        };
        self.insert(item, place, now);
    }

    /// Removes an item and its ghost.
    pub fn remove(&mut self, hash: KeyHash) {
        if let Some(entry) = self.entries.remove(&hash) {
            let queue = self.queue(entry.place);
            queue.items -= 1;
            queue.bytes -= u64::from(entry.bytes);
        }
    }

    /// Removes items whose keys are not sampled any more.
    pub fn retain(&mut self, mut is_sampled: impl FnMut(KeyHash) -> bool) {
        let dropped: Vec<KeyHash> = self.entries.keys().copied().filter(|hash| !is_sampled(*hash)).collect();
        dropped.into_iter().for_each(|hash| self.remove(hash));
        self.entries.shrink_to_fit();
        for place in [Place::Small, Place::Main, Place::Ghost] {
            self.drop_stale(place);
        }
    }

    /// Reads that an item of the small queue needs to move to the main queue.
    fn least(&self) -> u8 {
        1 + u8::from(self.small_share > STRICT_PROMOTION_SHARE)
    }

    fn queue(&mut self, place: Place) -> &mut Queue {
        match place {
            Place::Small => &mut self.small,
            Place::Main => &mut self.main,
            Place::Ghost => &mut self.ghosts,
        }
    }

    fn insert(&mut self, item: SimulatedItem, place: Place, now: u32) {
        self.remove(item.hash);
        while self.items() >= 2 * SIMULATED_ITEMS_MAX && self.evict(now) {}
        if item.bytes > (self.capacity / ITEM_BYTES_DIVISOR).min(u64::from(u32::MAX)) {
            return;
        }
        while self.small.bytes + self.main.bytes + item.bytes > self.capacity && self.evict(now) {}
        self.push(item.hash, place, item.bytes as u32, item.expiry, 0);
    }

    fn push(&mut self, hash: KeyHash, place: Place, bytes: u32, expiry: u32, frequency: u8) {
        self.numbers = self.numbers.wrapping_add(1);
        let number = self.numbers;
        let queue = self.queue(place);
        queue.entries.push_back((hash, number));
        queue.items += 1;
        queue.bytes += u64::from(bytes);
        let stale = queue.entries.len() > 2 * queue.items + GHOSTS_MIN;
        self.entries.insert(hash, Entry { place, frequency, number, bytes, expiry });
        if stale {
            self.drop_stale(place);
        }
    }

    fn drop_stale(&mut self, place: Place) {
        let mut entries = std::mem::take(&mut self.queue(place).entries);
        entries.retain(|(hash, number)| self.entries.get(hash).is_some_and(|entry| entry.number == *number));
        entries.shrink_to_fit();
        self.queue(place).entries = entries;
    }

    /// Takes the oldest entry out of a queue.
    fn pop(&mut self, place: Place) -> Option<(KeyHash, Entry)> {
        loop {
            let (hash, number) = self.queue(place).entries.pop_front()?;
            if self.entries.get(&hash).is_some_and(|entry| entry.number == number) {
                let entry = self.entries.remove(&hash).expect("it was just there");
                let queue = self.queue(place);
                queue.items -= 1;
                queue.bytes -= u64::from(entry.bytes);
                return Some((hash, entry));
            }
        }
    }

    /// Returns whether there are more ghosts than items, and than fit into the cache.
    fn has_excess_ghosts(&self) -> bool {
        let ghosts = &self.ghosts;
        let fit = ghosts.bytes <= self.capacity && ghosts.items <= SIMULATED_GHOSTS_MAX;
        ghosts.items > self.items().max(GHOSTS_MIN) && !fit
    }

    /// Evicts the oldest item of a queue, or moves it. Returns false if there is none.
    fn evict(&mut self, now: u32) -> bool {
        let small_max = self.small_share * self.capacity as f64;
        let is_small = self.main.items == 0 || self.small.items > 0 && self.small.bytes as f64 > small_max;
        let place = if is_small { Place::Small } else { Place::Main };
        let Some((hash, entry)) = self.pop(place) else { return false };
        let Entry { frequency, bytes, expiry, .. } = entry;
        match place {
            _ if is_expired(expiry, now) => self.has_evicted = true,
            Place::Small if frequency >= self.least() => self.push(hash, Place::Main, bytes, expiry, 0),
            Place::Small => {
                self.has_evicted = true;
                self.push(hash, Place::Ghost, bytes, 0, 0);
                while self.has_excess_ghosts() {
                    self.pop(Place::Ghost);
                }
            }
            _ if frequency > 0 => {
                let left = frequency.min(EVICTION_FREQUENCY_MAX) - 1;
                self.push(hash, Place::Main, bytes, expiry, left);
            }
            _ => self.has_evicted = true,
        }
        true
    }
}

fn is_expired(expiry: u32, now: u32) -> bool {
    expiry != 0 && expiry <= now
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(number: u64, bytes: u64) -> SimulatedItem {
        SimulatedItem { hash: KeyHash(number), bytes, expiry: 0 }
    }

    fn filled(small_share: f64, numbers: std::ops::Range<u64>) -> SimulatedCache {
        let mut cache = SimulatedCache::new(small_share);
        cache.set_capacity(10_000);
        numbers.for_each(|number| cache.fill(item(number, 100), 1));
        cache
    }

    fn hits(cache: &mut SimulatedCache, numbers: std::ops::Range<u64>) -> usize {
        numbers.filter(|number| cache.read(KeyHash(*number), 1, 1)).count()
    }

    #[test]
    fn small_queue_has_its_share_of_memory() {
        for (share, kept) in [(0.05, 4..=6), (0.76, 75..=77)] {
            let mut cache = filled(share, 0..100);
            // Promotes all, so that the main queue is full.
            (0..2).for_each(|_| assert_eq!(hits(&mut cache, 0..100), 100));
            (1_000..1_100).for_each(|number| cache.fill(item(number, 100), 1));
            assert_eq!(cache.items(), 100);
            let new = hits(&mut cache, 1_000..1_100);
            assert!(kept.contains(&new), "{new} of 100 new items are there with a share of {share}");
        }
    }

    #[test]
    fn read_items_and_ghosts_enter_the_main_queue() {
        let mut cache = filled(0.05, 0..100);
        assert_eq!(hits(&mut cache, 0..1), 1);
        (1_000..1_100).for_each(|number| cache.fill(item(number, 100), 1));
        assert_eq!((hits(&mut cache, 0..1), hits(&mut cache, 1..50)), (1, 0), "one read is enough");
        cache.fill(item(60, 100), 1);
        (2_000..2_080).for_each(|number| cache.fill(item(number, 100), 1));
        assert_eq!(hits(&mut cache, 60..61), 1, "it was evicted a moment before");
    }

    #[test]
    fn expired_removed_and_too_large_items_are_absent() {
        let mut cache = filled(0.76, 0..1);
        cache.replace(SimulatedItem { expiry: 10, ..item(0, 100) }, 1);
        assert!(cache.read(KeyHash(0), 1, 9) && !cache.read(KeyHash(0), 1, 10));
        cache.fill(item(1, 100), 1);
        cache.remove(KeyHash(1));
        cache.fill(item(2, 2_501), 1);
        assert_eq!((hits(&mut cache, 0..3), cache.items()), (0, 0));
    }

    #[test]
    fn number_of_items_is_bounded_whatever_they_take() {
        let mut cache = SimulatedCache::new(0.76);
        (0..100_000).for_each(|number| cache.fill(item(number, 1), 1));
        assert!(
            cache.items() <= 2 * SIMULATED_ITEMS_MAX && cache.entries.len() <= 4 * SIMULATED_ITEMS_MAX + 1
        );
    }

    #[test]
    fn expired_items_leave_no_ghosts() {
        let mut cache = filled(0.05, 0..0);
        (0..100).for_each(|number| cache.fill(SimulatedItem { expiry: 5, ..item(number, 100) }, 1));
        (1_000..1_100).for_each(|number| cache.fill(item(number, 100), 5));
        assert_eq!((cache.items(), cache.ghosts.items), (100, 0));
    }

    proptest! {
        #[test]
        fn counts_agree_with_the_entries(operations in prop::collection::vec((0u8..6, 0u64..60, 1u64..900), 1..400)) {
            let mut cache = SimulatedCache::new(0.3);
            cache.set_capacity(5_000);
            for (operation, number, bytes) in operations {
                match operation {
                    0 => cache.fill(item(number, bytes), 1),
                    1 => cache.replace(item(number, bytes), 1),
                    2 => cache.remove(KeyHash(number)),
                    4 => cache.update(item(number, bytes)),
                    3 => cache.retain(|hash| hash.0 % 16 != number % 16),
                    _ => { cache.read(KeyHash(number), 1, 1); }
                }
                let of = |place| cache.entries.values().filter(move |entry| entry.place == place);
                for (place, queue) in [(Place::Small, &cache.small), (Place::Main, &cache.main), (Place::Ghost, &cache.ghosts)] {
                    prop_assert_eq!(queue.items, of(place).count());
                    prop_assert_eq!(queue.bytes, of(place).map(|entry| u64::from(entry.bytes)).sum::<u64>());
                    prop_assert!(queue.entries.len() <= 2 * queue.items + GHOSTS_MIN + 1);
                }
                prop_assert!(cache.small.bytes + cache.main.bytes <= 5_000 + 60 * 900, "updates may exceed the capacity");
            }
        }
    }
}
