//! The segments that items may leave next, oldest first.
//!
//! Without eviction flash may refuse the items of one segment after another. A survey of all segments for each would take time
//! that grows with the square of their number.

use crate::segments::{Queue, SealedSegment};

/// The sealed segments of one survey.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Each segment's place in the order of sealing, and its number.
    small: Vec<(u64, u32)>,
    main: Vec<(u64, u32)>,
    /// The queue whose segments are taken first.
    first: Option<Queue>,
}

impl Candidates {
    /// Adds a segment.
    pub fn add(&mut self, segment: &SealedSegment) {
        match segment.queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
        .push((segment.order, segment.id));
    }

    /// Returns the segments in their order, those of this queue first.
    pub fn sorted(mut self, first: Queue) -> Candidates {
        self.first = Some(first);
        for segments in [&mut self.small, &mut self.main] {
            // The oldest is the last.
            segments.sort_unstable_by(|one, other| other.cmp(one));
        }
        self
    }

    /// Takes the next segment: its order and its number.
    pub fn take_next(&mut self) -> Option<(u64, u32)> {
        debug_assert!(self.first.is_some(), "they were sorted");
        let (first, second) = match self.first {
            Some(Queue::Main) => (&mut self.main, &mut self.small),
            _ => (&mut self.small, &mut self.main),
        };
        first.pop().or_else(|| second.pop())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn oldest_of_the_first_queue_comes_first() {
        let mut candidates = Candidates::default();
        let segment = |id: u32, order, queue| SealedSegment {
            id,
            queue,
            live_items: 1,
            live_bytes: 1,
            used: 1,
            order,
            last_expiry: None,
            orphans: false,
        };
        for (id, order, queue) in
            [(1, 7, Queue::Small), (2, 3, Queue::Small), (3, 1, Queue::Main), (4, 5, Queue::Small)]
        {
            candidates.add(&segment(id, order, queue));
        }
        let mut candidates = candidates.sorted(Queue::Small);
        let taken: Vec<_> = std::iter::from_fn(|| candidates.take_next()).collect();
        assert_eq!(taken, [(3, 2), (5, 4), (7, 1), (1, 3)]);
    }
}
