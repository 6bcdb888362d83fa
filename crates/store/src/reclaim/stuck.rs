//! Segments that could not be emptied, and are not tried again before something has changed.

/// Why a segment could not be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StuckReason {
    /// An item could not be moved, for want of memory, or because it is still being received.
    Memory,
    /// Flash refused an item, and nothing is evicted.
    Flash,
}

/// The segments that could not be emptied.
#[derive(Debug, Default)]
pub(super) struct StuckSegments {
    by_memory: SegmentSet,
    by_flash: SegmentSet,
}

impl StuckSegments {
    /// Adds a segment.
    pub fn insert(&mut self, id: u32, why: StuckReason) {
        match why {
            StuckReason::Memory => self.by_memory.insert(id),
            StuckReason::Flash => self.by_flash.insert(id),
        }
    }

    /// Returns whether nothing can be done with the segment.
    pub fn is_by_memory(&self, id: u32) -> bool {
        self.by_memory.contains(id)
    }

    /// Returns whether its items cannot leave memory. They may still be moved within it.
    pub fn is_by_flash(&self, id: u32) -> bool {
        self.by_flash.contains(id)
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.by_memory.is_empty && self.by_flash.is_empty
    }

    /// Memory was freed: items that could not be moved may be moved now.
    pub fn note_freed_memory(&mut self) {
        self.by_memory.clear();
    }

    /// Makes all segments eligible again.
    pub fn clear(&mut self) {
        self.by_memory.clear();
        self.by_flash.clear();
    }
}

/// A set of segments: a survey asks for each segment of memory whether it is one.
#[derive(Debug)]
struct SegmentSet {
    words: Vec<u64>,
    is_empty: bool,
}

impl Default for SegmentSet {
    fn default() -> SegmentSet {
        SegmentSet { words: Vec::new(), is_empty: true }
    }
}

impl SegmentSet {
    fn insert(&mut self, id: u32) {
        let (word, bit) = place(id);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
        self.is_empty = false;
    }

    fn contains(&self, id: u32) -> bool {
        let (word, bit) = place(id);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    fn clear(&mut self) {
        if !std::mem::replace(&mut self.is_empty, true) {
            self.words.fill(0);
        }
    }
}

/// Returns the word of a segment, and its bit there.
fn place(id: u32) -> (usize, u64) {
    ((id / u64::BITS) as usize, 1 << (id % u64::BITS))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_makes_only_its_segments_eligible() {
        let mut stuck = StuckSegments::default();
        for (id, why) in [(0, StuckReason::Memory), (64, StuckReason::Flash), (200, StuckReason::Memory)] {
            stuck.insert(id, why);
        }
        let ids = |stuck: &StuckSegments| {
            let by_memory = (0..300).filter(|id| stuck.is_by_memory(*id)).collect::<Vec<_>>();
            (by_memory, (0..300).filter(|id| stuck.is_by_flash(*id)).collect::<Vec<_>>(), stuck.is_empty())
        };
        assert_eq!(ids(&stuck), (vec![0, 200], vec![64], false));
        stuck.note_freed_memory();
        assert_eq!(ids(&stuck), (vec![], vec![64], false));
        stuck.clear();
        assert_eq!(ids(&stuck), (vec![], vec![], true));
    }
}
