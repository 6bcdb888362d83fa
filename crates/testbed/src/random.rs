//! Reproducible random numbers.

/// Adds to the state of [`SplitMix64`] with each number.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). A seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Returns the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns a generator for one part of the work, independent of how many numbers the others draw.
    pub fn split(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let number = mix(self.state);
        self.state = self.state.wrapping_add(INCREMENT);
        number
    }

    /// Returns a number below `limit`, which must not be 0. The bias is below 2^-32 for limits below 2^32.
    pub fn below(&mut self, limit: usize) -> usize {
        assert!(limit > 0, "below() needs a range");
        (self.next_u64() % limit as u64) as usize
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns true in `percent` of 100 cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the items, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Returns true once in `n` cases.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Shuffles the items (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Returns lower-case letters.
    pub fn letters(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| b'a' + self.below(26) as u8).collect()
    }
}

/// Returns a random function of a number: the finalizer of SplitMix64 after one increment.
#[inline]
pub fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(INCREMENT);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        let mut random = SplitMix64::new(0);
        assert_eq!(
            [random.next_u64(), random.next_u64(), random.next_u64()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
        );
    }

    #[test]
    fn ranges_are_respected_and_filled() {
        let mut random = SplitMix64::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.between(3, 7) - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn a_shuffle_preserves_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        SplitMix64::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
