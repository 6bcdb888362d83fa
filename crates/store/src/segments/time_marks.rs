//! When the items of a segment were written: a few (offset, second) marks instead of a field in every item.

use crate::bounds::TIME_MARKS_MAX;

/// From `offset` on, items were written at `second` or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeMark {
    offset: u32,
    second: u32,
}

/// The marks of one segment, in order of offset.
#[derive(Debug, Default)]
pub struct TimeMarks(Vec<TimeMark>);

impl TimeMarks {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Items from `offset` on were written at `second`.
    pub fn note(&mut self, offset: u32, second: u32) {
        let before = self.0.partition_point(|mark| mark.offset <= offset);
        match self.0[..before].last_mut() {
            Some(mark) if mark.second == second => return,
            Some(mark) if mark.offset == offset => {
                mark.second = second;
                return;
            }
            _ => {}
        }
        if self.0.len() == TIME_MARKS_MAX {
            // Drop every other one: the rest dates items to within twice the distance.
            let mut keep = false;
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
        let at = self.0.partition_point(|mark| mark.offset < offset);
        self.0.insert(at, TimeMark { offset, second });
    }

    /// Returns when the item at `offset` was written; `None` without marks.
    pub fn written(&self, offset: u32) -> Option<u32> {
        let after = self.0.partition_point(|mark| mark.offset <= offset);
        self.0[..after].last().map(|mark| mark.second)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn time_marks_give_an_items_write_time() {
        let mut marks = TimeMarks::default();
        assert_eq!(marks.written(0), None);
        marks.note(0, 5);
        marks.note(1000, 9);
        assert_eq!((marks.written(0), marks.written(999), marks.written(1000)), (Some(5), Some(5), Some(9)));
        for i in 0..1000 {
            marks.note(2000 + i * 10, 10 + i);
        }
        assert!(marks.0.len() <= TIME_MARKS_MAX);
        let reported = marks.written(2000 + 999 * 10).expect("marked");
        assert!((900..=1009).contains(&reported), "{reported}");
    }
}
