//! Which live items go when memory is full: S3-FIFO (Yang et al., SOSP'23), over segments and with bytes for items.
//!
//! ```text
//!               new ------> small queue --- read since ------------> main queue <-----+
//!                                |                                     |  |           |
//!   asked for again       not read since                    read least |  +- the rest-+
//!   --> main queue               v                                     v
//!        ^------------------- ghosts                                 gone
//! ```
//! The queues are the segments of their items, in the order in which they were sealed. The victim is the oldest segment
//! of the small queue if that has more than its share of all, else the oldest of the main queue. What is kept moves to
//! the open segment of the main queue.
//!
//! What differs from the paper: of a main segment at most nine tenths are kept, so that each one emptied gains memory
//! at a bounded cost. Where more was read, the least read go: a frequency is found (`main_least`) that this part of the
//! last main victim had. An item leaves the small queue for the main one if it has been read as often as items must be
//! to stay there, which is once where most items of the main queue are not read, and more where all are, as in a loop.
//! What is kept in the main queue loses that many reads.

use crate::bounds::{
    EVICTION_FREQUENCY_MAX as FREQUENCY_MAX, MAIN_KEPT_DIVISOR, MAIN_KEPT_NUMERATOR, SMALL_QUEUE_DIVISOR,
};
use crate::segments::Queue;

/// What eviction has learnt of the main queue. Part of what the lock of reclaim guards.
#[derive(Debug)]
pub struct Eviction {
    /// Bytes of the items of the main segment that is being emptied, or was last, by frequency.
    bytes: [u64; FREQUENCY_MAX as usize + 1],
    /// Items of the main queue that were read less go.
    main_least: u8,
    /// A moving mean of that, in units of 1/256.
    main_least_mean: u32,
}

impl Default for Eviction {
    fn default() -> Eviction {
        Eviction { bytes: [0; FREQUENCY_MAX as usize + 1], main_least: 1, main_least_mean: MEAN_ONE }
    }
}

const MEAN_ONE: u32 = 256;
/// A new value counts for 1/n of the mean.
const MEAN_WEIGHT_DIVISOR: u32 = 4;

impl Eviction {
    /// The queue to take the next victim from, if these are the segments of both.
    pub fn queue(&self, small_segments: u32, main_segments: u32) -> Queue {
        let small_max = (small_segments + main_segments) / SMALL_QUEUE_DIVISOR;
        if main_segments == 0 || small_segments > small_max.max(1) { Queue::Small } else { Queue::Main }
    }

    /// The least frequency of items that are kept.
    pub fn least(&self, queue: Queue) -> u8 {
        match queue {
            Queue::Small => {
                (((self.main_least_mean + MEAN_ONE / 2) / MEAN_ONE) as u8).clamp(1, FREQUENCY_MAX)
            }
            Queue::Main => self.main_least,
        }
    }

    /// At most so many bytes of a segment of `capacity` are kept.
    pub fn kept_bytes_max(capacity: u64) -> u64 {
        capacity * MAIN_KEPT_NUMERATOR / MAIN_KEPT_DIVISOR
    }

    /// What is left of the frequency of an item that is kept.
    pub fn worn(&self, queue: Queue, frequency: u8) -> u8 {
        match queue {
            Queue::Small => 0,
            Queue::Main => frequency.min(FREQUENCY_MAX).saturating_sub(self.main_least),
        }
    }

    /// An item of the main segment that is being emptied.
    pub fn see_main(&mut self, frequency: u8, bytes: u64) {
        self.bytes[usize::from(frequency.min(FREQUENCY_MAX))] += bytes;
    }

    /// A main segment was emptied.
    pub fn finish_main(&mut self, capacity: u64) {
        let max = Eviction::kept_bytes_max(capacity);
        let mut kept = 0;
        let mut least = FREQUENCY_MAX;
        for frequency in (1..=FREQUENCY_MAX).rev() {
            kept += self.bytes[usize::from(frequency)];
            if kept > max {
                break;
            }
            least = frequency;
        }
        self.main_least = least;
        let change = u32::from(least) * MEAN_ONE / MEAN_WEIGHT_DIVISOR;
        self.main_least_mean = self.main_least_mean - self.main_least_mean / MEAN_WEIGHT_DIVISOR + change;
        self.bytes = Default::default();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CAPACITY: u64 = 1_000;

    fn after(victims: &[&[(u8, u64)]]) -> Eviction {
        let mut eviction = Eviction::default();
        for victim in victims {
            victim.iter().for_each(|(frequency, bytes)| eviction.see_main(*frequency, *bytes));
            eviction.finish_main(CAPACITY);
        }
        eviction
    }

    #[test]
    fn the_small_queue_has_its_share() {
        let eviction = Eviction::default();
        assert_eq!(eviction.queue(100, 0), Queue::Small, "there is nothing else");
        assert_eq!(eviction.queue(11, 189), Queue::Small);
        assert_eq!(eviction.queue(10, 190), Queue::Main);
        assert_eq!(eviction.queue(1, 8), Queue::Main, "in the smallest store too");
    }

    #[test]
    fn what_is_read_at_all_stays_while_enough_is_not() {
        let eviction = after(&[&[(0, 500), (1, 300), (7, 200)]]);
        assert_eq!((eviction.least(Queue::Main), eviction.least(Queue::Small)), (1, 1));
        assert_eq!((eviction.worn(Queue::Main, 2), eviction.worn(Queue::Main, 7)), (1, 2));
        assert_eq!(eviction.worn(Queue::Small, 7), 0);
    }

    #[test]
    fn where_all_is_read_the_least_read_goes_and_little_comes() {
        let eviction = after(&[[(2, 300), (3, 700)].as_slice(); 8]);
        assert_eq!((eviction.least(Queue::Main), eviction.least(Queue::Small)), (3, 3));
        assert_eq!(eviction.worn(Queue::Main, 3), 0);
        assert_eq!(after(&[&[(7, 1_000)]]).least(Queue::Main), 3);
        let again = after(&[&[(2, 300), (3, 700)], &[(0, 900)], &[(0, 900)], &[(0, 900)], &[(0, 900)]]);
        assert_eq!((again.least(Queue::Main), again.least(Queue::Small)), (1, 1));
    }
}
