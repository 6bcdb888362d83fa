//! Cached locations of items, which a GET reads first: bounded, and only a hint.
//!
//! Sets of four in LRU order. An entry has 24 bytes: the key's hash, the generation, and offset and length in a word.
//! The GET detects colliding hashes and outdated entries, as it compares the key and the generation.

use crate::geometry::SEGMENT_BYTES_MAX;
use crate::hash::KeyHash;
use crate::item::ALIGN_BYTES;

use super::super::Location;

/// Entries per set.
const WAYS: usize = 4;

/// An entry; its word is 0 if it is empty.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    generation: u64,
    /// Offset and length, in units of the item alignment.
    place: u64,
}

/// Bytes of an entry.
pub const LOCATION_BYTES: usize = size_of::<Entry>();
const _: () = assert!(LOCATION_BYTES == 24);

const NONE: Entry = Entry { hash: 0, generation: 0, place: 0 };

/// Bits of the length.
const LENGTH_BITS: u32 = 20;
const _: () = assert!(SEGMENT_BYTES_MAX.div_ceil(ALIGN_BYTES) < 1 << LENGTH_BITS);

/// Locations by key hash.
#[derive(Clone, Debug)]
pub(super) struct LocationCache {
    sets: Box<[[Entry; WAYS]]>,
}

impl LocationCache {
    /// Returns a cache of this many locations, rounded up to four times a power of two; 0 disables it.
    pub(super) fn new(count: usize) -> LocationCache {
        let sets = if count == 0 { 0 } else { count.div_ceil(WAYS).next_power_of_two() };
        LocationCache { sets: vec![[NONE; WAYS]; sets].into() }
    }

    /// Returns the location of the key with this hash.
    pub(super) fn get(&mut self, hash: KeyHash) -> Option<Location> {
        let set = self.set(hash)?;
        let at = LocationCache::position(set, hash)?;
        set[..=at].rotate_right(1);
        let Entry { generation, place, .. } = set[0];
        let units = place & ((1 << LENGTH_BITS) - 1);
        let (offset, bytes) = (place >> LENGTH_BITS, units as u32);
        let unit = ALIGN_BYTES;
        Some(Location { offset: offset * unit, generation, bytes: bytes * unit as u32 })
    }

    /// Caches a location.
    pub(super) fn put(&mut self, hash: KeyHash, location: Location) {
        let Some(set) = self.set(hash) else { return };
        let at = LocationCache::position(set, hash).unwrap_or(WAYS - 1);
        set[..=at].rotate_right(1);
        let Location { offset, generation, bytes } = location;
        let units = u64::from(bytes).min(SEGMENT_BYTES_MAX).div_ceil(ALIGN_BYTES);
        set[0] = Entry { hash: hash.0, generation, place: ((offset / ALIGN_BYTES) << LENGTH_BITS) | units };
    }

    /// Removes a location, unless it was replaced.
    pub(super) fn remove(&mut self, hash: KeyHash, location: Location) {
        let Some(set) = self.set(hash) else { return };
        let Some(at) = LocationCache::position(set, hash) else { return };
        if (set[at].place >> LENGTH_BITS, set[at].generation)
            == (location.offset / ALIGN_BYTES, location.generation)
        {
            set[at] = NONE;
            set[at..].rotate_left(1);
        }
    }

    fn position(set: &[Entry; WAYS], hash: KeyHash) -> Option<usize> {
        set.iter().position(|entry| entry.hash == hash.0 && entry.place != 0)
    }

    fn set(&mut self, hash: KeyHash) -> Option<&mut [Entry; WAYS]> {
        // Hash bits outside partition and bucket, so that keys of one group are spread.
        let at = (hash.0 >> 24) as usize & self.sets.len().wrapping_sub(1);
        self.sets.get_mut(at)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn location(offset: u64, generation: u64) -> Location {
        Location { offset, generation, bytes: offset as u32 % 4096 * 4 + 4 }
    }

    #[test]
    fn least_recently_used_location_is_evicted() {
        let mut locations = LocationCache::new(4);
        for i in 0..4 {
            locations.put(KeyHash(i), location(4 + 4 * i, i));
        }
        assert_eq!(locations.get(KeyHash(0)), Some(location(4, 0)));
        locations.put(KeyHash(4), location(400, u64::MAX));
        assert_eq!(locations.get(KeyHash(1)), None);
        for i in [0, 2, 3] {
            assert_eq!(locations.get(KeyHash(i)), Some(location(4 + 4 * i, i)));
        }
        assert_eq!(locations.get(KeyHash(4)), Some(location(400, u64::MAX)));
    }

    #[test]
    fn newer_location_is_not_forgotten() {
        let mut locations = LocationCache::new(100);
        let hash = KeyHash(77 << 24);
        locations.put(hash, location(8, 1));
        locations.put(hash, location(80, 2));
        locations.remove(hash, location(8, 1));
        assert_eq!(locations.get(hash), Some(location(80, 2)));
        locations.remove(hash, location(80, 2));
        assert_eq!(locations.get(hash), None);
    }

    #[test]
    fn zero_capacity_cache_keeps_nothing() {
        let mut locations = LocationCache::new(0);
        locations.put(KeyHash(1), location(8, 1));
        locations.remove(KeyHash(1), location(8, 1));
        assert_eq!(locations.get(KeyHash(1)), None);
    }

    #[test]
    fn spread_locations_fill_the_cache() {
        let mut locations = LocationCache::new(4096);
        let hash = |i: u64| KeyHash(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (0..2048).for_each(|i| locations.put(hash(i), location(4 * i + 4, i)));
        let kept = (0..2048).filter(|i| locations.get(hash(*i)) == Some(location(4 * i + 4, *i))).count();
        assert!(kept > 1900, "{kept}");
    }
}
