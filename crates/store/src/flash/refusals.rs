//! When items that flash refused are tried again, without eviction.

/// Items that flash refuses although it takes others are tried again after a second: some of them may have died.
const RETRY_NS: u64 = 1_000_000_000;

/// The items of memory that flash refused since they were last tried again.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// When the first was refused.
    first_ns: Option<u64>,
    /// Whether one was refused while flash took no others: by the write budget, or for want of room.
    is_by_state: bool,
}

impl Refusals {
    /// Returns whether items were refused.
    pub fn has_some(&self) -> bool {
        self.first_ns.is_some()
    }

    /// Returns whether one was refused while flash took no others.
    pub fn is_by_state(&self) -> bool {
        self.is_by_state
    }

    /// Records that an item was refused, and whether flash takes others.
    pub fn note(&mut self, takes_others: bool, now_ns: u64) {
        self.first_ns.get_or_insert(now_ns);
        self.is_by_state |= !takes_others;
    }

    /// Returns whether the items are to be tried again, by whether flash takes items now, and forgets them then.
    pub fn take_due(&mut self, takes_items: bool, now_ns: u64) -> bool {
        let Some(first_ns) = self.first_ns else { return false };
        let is_due = takes_items && (self.is_by_state || now_ns.saturating_sub(first_ns) >= RETRY_NS);
        if is_due {
            *self = Refusals::default();
        }
        is_due
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn refused_items_are_tried_again_when_something_has_changed() {
        let mut refusals = Refusals::default();
        assert!(!refusals.take_due(true, 0));
        refusals.note(false, 5);
        assert!(!refusals.take_due(false, 5 + 2 * RETRY_NS));
        assert!(refusals.take_due(true, 6));
        assert!(!refusals.has_some() && !refusals.take_due(true, 7));
        // One that flash refuses whatever its state.
        refusals.note(true, 10);
        refusals.note(true, RETRY_NS);
        assert!(!refusals.take_due(true, 9 + RETRY_NS));
        assert!(!refusals.take_due(false, 10 + RETRY_NS));
        assert!(refusals.take_due(true, 10 + RETRY_NS));
        // The state of the last refusals is forgotten with them.
        refusals.note(true, 3 * RETRY_NS);
        assert!(!refusals.take_due(true, 3 * RETRY_NS));
    }
}
