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
//! of the small queue if that has more than its share of all, else the oldest of the main queue. Kept items move to
//! the open segment of the main queue.
//!
//! The small queue's share is one of two, whichever has more hits in a simulation (`simulation/`). It starts with the
//! large one, so that what was just stored can be read. While it is large, items are promoted that were read twice.
//!
//! Differences from the paper: of main segments at most nine tenths are kept, so that emptying them gains memory at a
//! bounded cost. Where more was read, the least read go: a frequency is found (`main_least`) that this part of the
//! last main victim had. An item leaves the small queue for the main one if it has been read as often as items must be
//! to stay there, which is once where most items of the main queue are not read, and more where all are, as in a loop.
//! An item kept in the main queue loses that many reads, times its size in units of the mean, and a small item enters
//! with a credit: items that take little memory may be read less, as in the policies that weigh hits by bytes (GDSF,
//! LHD). So small items enter without having been read and stay for one round, the smallest for several.

use crate::bounds::{
    EVICTION_FREQUENCY_MAX as FREQUENCY_MAX, EVICTION_SIZE_PART_MAX as SIZE_PART_MAX,
    EVICTION_UNREAD_CREDIT_DIVISOR as UNREAD_CREDIT_DIVISOR,
    EVICTION_UNREAD_KEPT_DIVISOR as UNREAD_KEPT_DIVISOR, GHOSTS_PER_ITEM_DIVISOR, GHOSTS_PER_ITEM_NUMERATOR,
    MAIN_KEPT_DIVISOR, MAIN_KEPT_NUMERATOR, MAIN_SPARE_SEGMENTS, SMALL_QUEUE_SHARE_LARGE,
    SMALL_QUEUE_SHARE_SMALL, STRICT_PROMOTION_SHARE,
};
use crate::segments::Queue;
#[cfg(not(loom))]
use fabcache_layout::slot::REGION_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Which live items go when memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvictionPolicy {
    /// S3-FIFO with the small queue's share that has more hits.
    #[default]
    Adaptive,
    /// S3-FIFO whose small queue has its least share: for loads whose popular items stay so, among many that are read
    /// once.
    S3Fifo,
    /// The items that were not read since they were last spared, oldest first (CLOCK): for loads whose items are
    /// popular for a time.
    Lru,
}

impl EvictionPolicy {
    /// All policies.
    pub const ALL: [EvictionPolicy; 3] =
        [EvictionPolicy::Adaptive, EvictionPolicy::S3Fifo, EvictionPolicy::Lru];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            EvictionPolicy::Adaptive => "adaptive",
            EvictionPolicy::S3Fifo => "s3fifo",
            EvictionPolicy::Lru => "lru",
        }
    }

    /// Returns the policy with this name.
    pub fn of_name(name: &str) -> Option<EvictionPolicy> {
        EvictionPolicy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// Statistics of the main queue that decide evictions. The reclaim lock guards them. A clean stop saves them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eviction {
    policy: EvictionPolicy,
    /// Item bytes of the main segment that is being emptied, or was last, by frequency.
    bytes: [u64; FREQUENCY_MAX as usize + 1],
    /// Items of the main queue that were read less are evicted.
    main_least: u8,
    /// A moving mean of that, in units of 1/256.
    main_least_mean: u32,
    /// Bytes that earlier main segments could have kept and did not.
    spare: u64,
    /// The mean item size in bytes.
    pub mean_bytes: u64,
    /// A moving mean of the bytes of what the small queue evicts, in units of `1/MEAN_OF`; 0 before anything was.
    evicted_bytes: u64,
    /// The part of the segments that the small queue may have.
    small_share: f64,
}

impl Default for Eviction {
    fn default() -> Eviction {
        Eviction::new(EvictionPolicy::default())
    }
}

impl Eviction {
    /// Returns the state before anything was evicted.
    pub fn new(policy: EvictionPolicy) -> Eviction {
        Eviction {
            policy,
            bytes: [0; FREQUENCY_MAX as usize + 1],
            main_least: 1,
            main_least_mean: MEAN_ONE,
            spare: 0,
            mean_bytes: 1,
            evicted_bytes: 0,
            small_share: match policy {
                EvictionPolicy::Adaptive => SMALL_QUEUE_SHARE_LARGE,
                EvictionPolicy::S3Fifo => SMALL_QUEUE_SHARE_SMALL,
                EvictionPolicy::Lru => 0.0,
            },
        }
    }
}

const MEAN_ONE: u32 = 256;
/// Unit of an item's part of the mean size: prime, so that any multiple is as good as random modulo it.
const PART_ONE: u64 = 251;
/// The mean size of evicted items is over about this many items.
const MEAN_OF: u64 = 1024;
/// A new value counts for 1/n of the mean.
const MEAN_WEIGHT_DIVISOR: u32 = 4;

impl Eviction {
    /// The queue to take the next victim from, if these are the segments of both.
    pub fn queue(&self, small_segments: u32, main_segments: u32) -> Queue {
        let small_max = (f64::from(small_segments + main_segments) * self.small_share) as u32;
        if main_segments == 0 || small_segments > small_max.max(1) { Queue::Small } else { Queue::Main }
    }

    /// Returns the saved statistics, if they are of this policy and can be those of a server; else those of the start.
    #[cfg(not(loom))]
    pub fn restored(saved: &Eviction, policy: EvictionPolicy) -> Eviction {
        let is_sound = saved.main_least <= FREQUENCY_MAX
            && saved.main_least_mean <= u32::from(FREQUENCY_MAX) * MEAN_ONE
            && (0.0..=1.0).contains(&saved.small_share)
            && saved.mean_bytes > 0
            && [saved.mean_bytes, saved.spare, saved.evicted_bytes / MEAN_OF]
                .into_iter()
                .chain(saved.bytes)
                .all(|bytes| bytes <= REGION_BYTES_MAX);
        if saved.policy == policy && is_sound { saved.clone() } else { Eviction::new(policy) }
    }

    /// Returns the part of the segments that the small queue may have.
    pub fn small_share(&self) -> f64 {
        self.small_share
    }

    /// Sets the part of the segments that the small queue may have.
    pub fn set_small_share(&mut self, share: f64) {
        self.small_share = share;
    }

    /// Returns whether items have time to be read twice in the small queue.
    fn is_strict(&self) -> bool {
        self.small_share > STRICT_PROMOTION_SHARE
    }

    /// The least frequency of items that are kept.
    pub fn least(&self, queue: Queue) -> u8 {
        match queue {
            Queue::Small => (((self.main_least_mean + MEAN_ONE / 2) / MEAN_ONE) as u8)
                .clamp(1 + u8::from(self.is_strict()), FREQUENCY_MAX),
            Queue::Main => self.main_least,
        }
    }

    /// Returns the most bytes of a segment of `capacity` that are kept.
    pub fn kept_bytes_max(&self, queue: Queue, capacity: u64) -> u64 {
        match queue {
            // The main queue's excess goes there.
            Queue::Small => u64::MAX,
            Queue::Main => share(capacity) + self.spare,
        }
    }

    /// Returns the remaining frequency of a kept item of this size; `chance` rounds.
    pub fn worn(&self, queue: Queue, frequency: u8, bytes: u64, chance: u64) -> u8 {
        match queue {
            Queue::Small if frequency == 0 && bytes > self.mean_bytes / UNREAD_CREDIT_DIVISOR => 0,
            Queue::Small => self.credit(bytes),
            Queue::Main if self.policy == EvictionPolicy::Lru => 0,
            Queue::Main => {
                let mean = self.mean_bytes.max(1);
                let part =
                    (bytes * PART_ONE / mean).clamp(PART_ONE / SIZE_PART_MAX, PART_ONE * SIZE_PART_MAX);
                let loses = (part * u64::from(self.main_least) + chance % PART_ONE) / PART_ONE;
                u64::from(frequency.min(FREQUENCY_MAX)).saturating_sub(loses) as u8
            }
        }
    }

    /// Returns the frequency of an item for the comparison with the least that is kept.
    pub fn credited(&self, queue: Queue, frequency: u8, bytes: u64) -> u8 {
        match queue {
            Queue::Small
                if frequency == 0 && (self.is_strict() || bytes > self.mean_bytes / UNREAD_KEPT_DIVISOR) =>
            {
                0
            }
            Queue::Small => frequency + self.credit(bytes),
            Queue::Main => frequency,
        }
    }

    /// Assumed reads of small items before any were counted.
    fn credit(&self, bytes: u64) -> u8 {
        match self.mean_bytes {
            mean if bytes <= mean / 4 => 2,
            mean if bytes <= mean / 2 => 1,
            _ => 0,
        }
    }

    /// Records that a queue evicts an item of this many bytes.
    pub fn see_evicted(&mut self, queue: Queue, bytes: u64) {
        if queue == Queue::Main {
            return;
        }
        if self.evicted_bytes == 0 {
            self.evicted_bytes = bytes * MEAN_OF;
        }
        self.evicted_bytes = self.evicted_bytes - self.evicted_bytes / MEAN_OF + bytes;
    }

    /// Returns how many items would fill memory if they were like the evicted ones, or the number of items that live
    /// in it, if that is more: as many may be requested again and stay.
    pub fn items_wanted(&self, items: u64, live_bytes: u64) -> u64 {
        let like_evicted = (live_bytes * MEAN_OF).checked_div(self.evicted_bytes);
        items.max(like_evicted.unwrap_or(0))
    }

    /// An item of the main segment that is being emptied.
    pub fn see_main(&mut self, frequency: u8, bytes: u64) {
        self.bytes[usize::from(frequency.min(FREQUENCY_MAX))] += bytes;
    }

    /// A main segment was emptied, and `kept` bytes of it moved.
    pub fn finish_main(&mut self, capacity: u64, kept: u64) {
        let max = share(capacity);
        // A value in chunks takes whole segments; they may be kept if neighbours made room.
        let spare_max = capacity * MAIN_SPARE_SEGMENTS;
        self.spare = (self.spare + max).saturating_sub(kept).min(spare_max);
        let mut kept = 0;
        let mut least = FREQUENCY_MAX;
        for frequency in (1..=FREQUENCY_MAX).rev() {
            kept += self.bytes[usize::from(frequency)];
            if kept > max {
                break;
            }
            least = frequency;
        }
        // Whether an item was read since it was last spared decides, not how often.
        let least = if self.policy == EvictionPolicy::Lru { 1 } else { least };
        self.main_least = least;
        let change = u32::from(least) * MEAN_ONE / MEAN_WEIGHT_DIVISOR;
        self.main_least_mean = self.main_least_mean - self.main_least_mean / MEAN_WEIGHT_DIVISOR + change;
        self.bytes = Default::default();
    }
}

/// Returns how many ghosts a store of so many items has.
pub fn ghosts_for(items: u64) -> u64 {
    items * GHOSTS_PER_ITEM_NUMERATOR / GHOSTS_PER_ITEM_DIVISOR
}

/// The part of main segments that may be kept.
fn share(capacity: u64) -> u64 {
    capacity * MAIN_KEPT_NUMERATOR / MAIN_KEPT_DIVISOR
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CAPACITY: u64 = 1_000;
    const MEAN: u64 = 100;

    fn after(victims: &[&[(u8, u64)]]) -> Eviction {
        let mut eviction =
            Eviction { mean_bytes: MEAN, small_share: SMALL_QUEUE_SHARE_SMALL, ..Eviction::default() };
        for victim in victims {
            victim.iter().for_each(|(frequency, bytes)| eviction.see_main(*frequency, *bytes));
            eviction.finish_main(CAPACITY, victim.iter().skip(1).map(|(_, bytes)| bytes).sum());
        }
        eviction
    }

    #[test]
    fn small_queue_has_its_share() {
        let eviction = after(&[]);
        assert_eq!(eviction.queue(100, 0), Queue::Small, "there is nothing else");
        assert_eq!(eviction.queue(11, 189), Queue::Small);
        assert_eq!(eviction.queue(10, 190), Queue::Main);
        assert_eq!(eviction.queue(1, 8), Queue::Main, "in the smallest store too");
        let eviction = Eviction::default();
        assert_eq!(eviction.queue(153, 47), Queue::Small, "76%, before there is evidence");
        assert_eq!(eviction.queue(152, 48), Queue::Main);
    }

    #[test]
    fn policies_have_names() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(EvictionPolicy::of_name(policy.name()), Some(policy));
        }
    }

    #[test]
    fn lru_keeps_what_was_read_for_one_round() {
        let mut lru = Eviction { mean_bytes: MEAN, ..Eviction::new(EvictionPolicy::Lru) };
        lru.see_main(3, CAPACITY);
        lru.finish_main(CAPACITY, CAPACITY);
        assert_eq!((lru.least(Queue::Main), lru.worn(Queue::Main, 3, 1, 0)), (1, 0), "one read, one round");
    }

    #[test]
    fn items_are_read_twice_where_new_ones_have_much_memory() {
        let eviction = Eviction { mean_bytes: MEAN, ..Eviction::default() };
        let is_kept = |frequency, bytes| {
            eviction.credited(Queue::Small, frequency, bytes) >= eviction.least(Queue::Small)
        };
        assert!(!is_kept(1, MEAN) && is_kept(2, MEAN));
        assert!(!is_kept(0, 1) && is_kept(1, 1), "a small item has a credit once it was read");
    }

    #[test]
    fn read_items_stay_while_enough_are_unread() {
        let eviction = after(&[&[(0, 500), (1, 300), (7, 200)]]);
        assert_eq!((eviction.least(Queue::Main), eviction.least(Queue::Small)), (1, 1));
        let worn = |queue, frequency| eviction.worn(queue, frequency, MEAN, 0);
        assert_eq!((worn(Queue::Main, 2), worn(Queue::Main, 7), worn(Queue::Small, 7)), (1, 2, 0));
    }

    #[test]
    fn if_all_are_read_the_least_read_goes_and_admission_is_strict() {
        let eviction = after(&[[(2, 300), (3, 700)].as_slice(); 8]);
        assert_eq!((eviction.least(Queue::Main), eviction.least(Queue::Small)), (3, 3));
        assert_eq!(eviction.worn(Queue::Main, 3, MEAN, 0), 0);
        assert_eq!(after(&[&[(7, 1_000)]]).least(Queue::Main), 3);
        let again = after(&[&[(2, 300), (3, 700)], &[(0, 900)], &[(0, 900)], &[(0, 900)], &[(0, 900)]]);
        assert_eq!((again.least(Queue::Main), again.least(Queue::Small)), (1, 1));
    }

    #[test]
    fn budget_unused_by_neighbours_is_available() {
        assert_eq!(after(&[]).kept_bytes_max(Queue::Main, CAPACITY), 900);
        let eviction = after(&[&[(0, 500), (1, 500)]]);
        assert_eq!(eviction.kept_bytes_max(Queue::Main, CAPACITY), 900 + 400);
        let eviction = after(&[[(0, 1_000)].as_slice(); 100]);
        assert_eq!(eviction.kept_bytes_max(Queue::Main, CAPACITY), 900 + CAPACITY * MAIN_SPARE_SEGMENTS);
    }

    #[test]
    fn small_items_age_slowly_and_large_ones_fast() {
        let eviction = after(&[]);
        let mean_loss = |bytes| {
            let lost = (0..10_000).map(|i| 3 - u64::from(eviction.worn(Queue::Main, 3, bytes, i * 4)));
            lost.sum::<u64>() as f64 / 10_000.0
        };
        for (bytes, loss) in [(1, 0.125), (50, 0.5), (100, 1.0), (150, 1.5), (1_000, 3.0)] {
            assert!((mean_loss(bytes) - loss).abs() < 0.02, "{bytes}: {}", mean_loss(bytes));
        }
        let credit = |bytes| eviction.worn(Queue::Small, 1, bytes, 0);
        assert_eq!((credit(20), credit(40), credit(60)), (2, 1, 0));
        let of_unread = |bytes| eviction.worn(Queue::Small, 0, bytes, 0);
        assert_eq!((of_unread(12), of_unread(20)), (2, 0));
    }

    #[test]
    fn small_items_are_kept_before_they_are_read() {
        let eviction = after(&[]);
        let is_kept =
            |queue, frequency, bytes| eviction.credited(queue, frequency, bytes) >= eviction.least(queue);
        assert!(is_kept(Queue::Small, 0, 33) && !is_kept(Queue::Small, 0, 34));
        assert!(is_kept(Queue::Small, 1, 1_000) && !is_kept(Queue::Main, 0, 1));
        let where_all_is_read = after(&[[(2, 300), (3, 700)].as_slice(); 8]);
        assert_eq!(where_all_is_read.credited(Queue::Small, 0, 20), 2, "less than the three that it takes");
    }

    #[test]
    fn ghosts_are_recorded_for_evicted_items_only() {
        let mut eviction = Eviction::default();
        assert_eq!(eviction.items_wanted(10, 10_000_000), 10, "nothing was evicted");
        (0..10).for_each(|_| eviction.see_evicted(Queue::Small, 1_000_000));
        assert_eq!(eviction.items_wanted(10, 10_000_000), 10);
        (0..20_000).for_each(|_| eviction.see_evicted(Queue::Small, 1_000));
        let wanted = eviction.items_wanted(10, 10_000_000);
        assert!((9_000..=10_000).contains(&wanted), "{wanted}");
    }
}
