//! Which items share segments: those whose times to live are alike, as far as few open segments allow.
//!
//! Times to live are distinguished in steps of an eighth of a doubling. There are more steps than segments may be
//! open, so neighbouring ones share a bucket: at first evenly, then so that each bucket gets about the same share of
//! the bytes written. A common time to live thus has its own bucket, and rare ones share the rest. A step that
//! changes its bucket mixes one segment; expiry reads the segments, not this table, so a bad mix costs work but no
//! memory.
//!
//! Threads that write to one segment wait for each other's cache lines, so where more segments may be open than classes
//! need, each class has several, and threads are spread over them: its lanes.

use fabcache_layout::sync::{AtomicU32, AtomicU64, Ordering};

use crate::bounds::{
    CLASSES_BEFORE_LANES, LONG_TTL_LANES_DIVISOR, MOVED_CHUNKS_OPEN_MIN, OPEN_SEGMENTS_DIVISOR, TTL_SAMPLE,
    TTL_SAMPLES_MIN,
};

/// The queues of eviction (`eviction.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New items.
    Small,
    /// Items that were read since, or requested again soon after their eviction.
    Main,
}

/// Steps of time to live.
const STEPS: usize = if cfg!(loom) { 1 } else { 256 };
/// Steps up to thirty days, the longest relative time.
const COMMON_STEPS: usize = step_of(30 * 24 * 3_600) + 1;
/// Classes of moved long values: those without expiry, and others. One for each queue fewer is for expiring items.
const MOVED_CHUNKS_CLASSES: usize = 2;
/// Classes in one word of the table, a byte each.
const CLASSES_PER_WORD: usize = 8;

/// The step of a time to live: exact below 8 s, then eight to a doubling.
const fn step_of(ttl: u32) -> usize {
    if STEPS == 1 {
        return 0;
    }
    if ttl < 8 {
        return ttl as usize;
    }
    let doublings = ttl.ilog2();
    (doublings as usize - 2) * 8 + (ttl >> (doublings - 3)) as usize - 8
}
const _: () = assert!(step_of(u32::MAX) < STEPS);

/// Returns which of `lanes` a thread writes to. Mostly there are as many as threads, and a division takes long.
#[inline]
fn lane_of(thread: usize, lanes: usize) -> usize {
    if thread < lanes { thread } else { thread % lanes }
}

/// The buckets, and their places among the open segments: the small queue's, then the main queue's; of each, first
/// the lanes of items without expiry, then each bucket of expiring items with its lanes. Last come those of moved
/// long values.
#[derive(Debug)]
pub struct TtlBuckets {
    /// Lanes of items without expiry.
    lasting_lanes: usize,
    /// Classes of items that expire.
    count: usize,
    /// Lanes of each of these.
    lanes: usize,
    /// Whether long values that reclaim moves within the small queue have open segments of their own, which come last.
    moves_chunks_apart: bool,
    /// The bucket of each step. Written by the balancing thread, read by writers; any value is correct.
    classes: Box<[AtomicU64]>,
    /// Sampled items of each step; incremented by writers, halved when balancing.
    seen: Box<[AtomicU32]>,
}

impl TtlBuckets {
    /// Returns as many buckets as `segments` allow, at least one of expiring items and one of others for each queue,
    /// for `threads` threads.
    pub fn new(segments: u32, threads: usize) -> TtlBuckets {
        let open_max = segments as usize / OPEN_SEGMENTS_DIVISOR / 2;
        let lasting_lanes = (open_max / LONG_TTL_LANES_DIVISOR).clamp(1, threads);
        let moves_chunks_apart = open_max >= MOVED_CHUNKS_OPEN_MIN;
        let expiring = open_max.saturating_sub(lasting_lanes + usize::from(moves_chunks_apart)).max(1);
        let lanes = (expiring / CLASSES_BEFORE_LANES).clamp(1, threads);
        let count = (expiring / lanes).min(STEPS);
        let classes = TtlBuckets {
            lasting_lanes,
            count,
            lanes,
            moves_chunks_apart,
            classes: (0..STEPS.div_ceil(CLASSES_PER_WORD)).map(|_| AtomicU64::new(0)).collect(),
            seen: (0..STEPS).map(|_| AtomicU32::new(0)).collect(),
        };
        classes.assign(|step| (step * count / COMMON_STEPS).min(count - 1));
        classes
    }

    /// Segments that may be open.
    pub fn open_max(&self) -> usize {
        2 * self.open_max_of_queue() + if self.moves_chunks_apart { MOVED_CHUNKS_CLASSES } else { 0 }
    }

    fn open_max_of_queue(&self) -> usize {
        self.lasting_lanes + self.count * self.lanes
    }

    /// Which open segment items of a queue with this expiry go to that this thread writes.
    #[inline]
    pub fn class_of(&self, queue: Queue, expiry: u32, now: u32, thread: usize) -> usize {
        let first = if queue == Queue::Small { 0 } else { self.open_max_of_queue() };
        if expiry == 0 {
            return first + lane_of(thread, self.lasting_lanes);
        }
        let class = self.class_of_step(step_of(expiry.saturating_sub(now)));
        first + self.lasting_lanes + class * self.lanes + lane_of(thread, self.lanes)
    }

    /// Which open segment a long value with this expiry goes to that reclaim moves. In the small queue it lies apart from
    /// new ones: among their chunks, its own would leave holes when it goes, and the rest be moved again.
    pub fn class_of_moved_chunks(&self, queue: Queue, expiry: u32, now: u32) -> usize {
        if queue == Queue::Small && self.moves_chunks_apart {
            2 * self.open_max_of_queue() + usize::from(expiry != 0)
        } else {
            self.class_of(queue, expiry, now, 0)
        }
    }

    /// The queue of the items that go to an open segment.
    pub fn queue_of(&self, class: usize) -> Queue {
        let of_queue = self.open_max_of_queue();
        if (of_queue..2 * of_queue).contains(&class) { Queue::Main } else { Queue::Small }
    }

    fn class_of_step(&self, step: usize) -> usize {
        let word = self.classes[step / CLASSES_PER_WORD].load(Ordering::Relaxed);
        usize::from(word.to_le_bytes()[step % CLASSES_PER_WORD])
    }

    /// Counts one item in [`TTL_SAMPLE`]; `offset` is as good as random.
    #[inline]
    pub fn sample(&self, offset: u64, ttl: u32) {
        if (offset >> 2).is_multiple_of(TTL_SAMPLE) {
            self.seen[step_of(ttl)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives each bucket about the same share of the bytes written recently. One thread at a time.
    pub fn balance(&self) {
        let seen: Vec<u32> = self.seen.iter().map(|seen| seen.load(Ordering::Relaxed)).collect();
        if seen.iter().map(|seen| u64::from(*seen)).sum::<u64>() < TTL_SAMPLES_MIN {
            return;
        }
        for (count, seen) in self.seen.iter().zip(&seen) {
            count.fetch_sub(seen.div_ceil(2), Ordering::Relaxed);
        }
        let ends = shares(&seen, self.count);
        let names = self.names(&seen, &ends);
        self.assign(|step| names[ends.partition_point(|end| *end <= step)]);
    }

    /// A class for each range of steps: that of its commonest step until now, unless it went to a commoner range.
    fn names(&self, seen: &[u32], ends: &[usize]) -> Vec<usize> {
        let starts = [0].iter().chain(ends);
        let commonest = starts.zip(ends).map(|(start, end)| (*start..*end).max_by_key(|step| seen[*step]));
        let commonest: Vec<usize> = commonest.map(|step| step.expect("no range is empty")).collect();
        let mut by_count: Vec<usize> = (0..ends.len()).collect();
        by_count.sort_by_key(|range| std::cmp::Reverse(seen[commonest[*range]]));
        let mut free = vec![true; self.count];
        let mut names = vec![None; ends.len()];
        for range in by_count {
            let class = self.class_of_step(commonest[range]);
            names[range] = std::mem::take(&mut free[class]).then_some(class);
        }
        let mut free = (0..self.count).filter(|class| free[*class]);
        let other =
            |name: Option<usize>| name.or_else(|| free.next()).expect("at most as many ranges as buckets");
        names.into_iter().map(other).collect()
    }

    fn assign(&self, class_of_step: impl Fn(usize) -> usize) {
        for (i, word) in self.classes.iter().enumerate() {
            let bytes =
                std::array::from_fn(|j| class_of_step((i * CLASSES_PER_WORD + j).min(STEPS - 1)) as u8);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }
}

/// Divides the steps into at most `count` ranges of about the same sum; returns their ends.
fn shares(seen: &[u32], count: usize) -> Vec<usize> {
    let mut left: u64 = seen.iter().map(|seen| u64::from(*seen)).sum();
    let mut steps_left = seen.iter().filter(|seen| **seen > 0).count();
    let mut ends = Vec::new();
    let mut here = 0;
    for (step, seen) in seen.iter().map(|seen| u64::from(*seen)).enumerate() {
        let ranges_left = count - ends.len();
        let is_full = (here + seen) * ranges_left as u64 > left || steps_left < ranges_left;
        if seen > 0 && here > 0 && ranges_left > 1 && is_full {
            ends.push(step);
            left -= here;
            here = 0;
        }
        here += seen;
        steps_left -= usize::from(seen > 0);
    }
    ends.push(seen.len());
    ends
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn written(classes: &TtlBuckets, items: &[(u32, usize)]) {
        for (ttl, count) in items {
            (0..*count).for_each(|_| classes.sample(0, *ttl));
        }
        classes.balance();
    }

    #[test]
    fn steps_are_an_eighth_of_a_doubling() {
        assert_eq!((step_of(0), step_of(7), step_of(8), step_of(15), step_of(16)), (0, 7, 8, 15, 16));
        for ttl in (8..100_000u32).chain([u32::MAX / 2]) {
            let (here, next) = (step_of(ttl), step_of(ttl + 1));
            assert!(next == here || next == here + 1);
            assert!(step_of(ttl + ttl / 7 + 1) > here, "{ttl}: no wider than an eighth");
        }
    }

    #[test]
    fn ttl_buckets_grow_with_the_segment_count() {
        for segments in [8, 63, 255, 511, 2_047, 7_168, 1 << 20] {
            for threads in [1, 4, 64] {
                let classes = TtlBuckets::new(segments, threads);
                let open_max = segments as usize * 3 / 100;
                assert!(classes.open_max() <= open_max.max(4), "{segments}: {classes:?}");
                let all = (0..STEPS).map(|step| classes.class_of_step(step)).collect::<Vec<_>>();
                assert!(all.is_sorted() && *all.last().expect("steps") < classes.count);
            }
        }
        let classes = TtlBuckets::new(1 << 20, 1);
        let class = |ttl: u32| classes.class_of(Queue::Small, 1_000 + ttl, 1_000, 0);
        assert_ne!(class(60), class(70));
    }

    #[test]
    fn common_ttls_get_their_own_bucket_and_rare_ones_share() {
        let classes = TtlBuckets::new(410, 8);
        assert_eq!((classes.open_max(), classes.count), (12, 4));
        let class = |ttl: u32| classes.class_of(Queue::Small, 10 + ttl, 10, 3);
        written(&classes, &[(60, 5_000), (70, 4_000), (300, 3_000), (900, 5), (5_000, 5), (86_400, 5)]);
        let common = [60, 70, 300].map(class);
        let rare = [900, 5_000, 86_400].map(class);
        assert!(common[0] != common[1] && common[1] != common[2] && common[0] != common[2]);
        assert!(rare.iter().all(|class| !common.contains(class)));
        written(&classes, &[(60, 5_000), (70, 4_000), (300, 3_000), (1, 5)]);
        assert_eq!([60, 70, 300].map(class), common, "a common TTL keeps its bucket");
    }

    #[test]
    fn ttls_get_separate_buckets_while_buckets_suffice() {
        let classes = TtlBuckets::new(410, 8);
        written(&classes, &[(10, 3), (20, 3), (40, 3), (9_000, 500)]);
        let mut all = [10, 20, 40, 9_000].map(|ttl| classes.class_of(Queue::Small, 10 + ttl, 10, 3));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    }

    #[test]
    fn lanes_are_disjoint() {
        for (segments, threads) in [(255, 8), (1_023, 8), (7_168, 16), (1 << 16, 64)] {
            let classes = TtlBuckets::new(segments, threads);
            let mut seen = std::collections::HashMap::new();
            for (thread, queue) in (0..threads).flat_map(|i| [(i, Queue::Small), (i, Queue::Main)]) {
                for ttl in [0, 1, 60, 3_600, 90_000] {
                    let class = classes.class_of(queue, if ttl == 0 { 0 } else { 10 + ttl }, 10, thread);
                    assert!(class < classes.open_max() && classes.queue_of(class) == queue);
                    let step = if ttl == 0 { None } else { Some(classes.class_of_step(step_of(ttl))) };
                    assert_eq!(*seen.entry(class).or_insert(step), step, "one class each");
                }
            }
        }
        for segments in [63, 204, 511, 7_168] {
            let classes = TtlBuckets::new(segments, 1);
            let of = |expiry| classes.class_of_moved_chunks(Queue::Small, expiry, 10);
            assert!([0, 20, 90_000].map(of).iter().all(|class| classes.queue_of(*class) == Queue::Small));
            assert!(of(0) < classes.open_max() && of(20) < classes.open_max() && of(0) != of(20));
            assert_eq!(of(0) != classes.class_of(Queue::Small, 0, 10, 0), segments >= 204);
        }
        let of = |thread| TtlBuckets::new(7_168, 16).class_of(Queue::Small, 0, 10, thread);
        let lanes: std::collections::HashSet<_> = (0..16).map(of).collect();
        assert_eq!(lanes.len(), 16, "each thread has its own where memory is large");
    }
}
