//! Unlinked writes: none of their items was linked, so they free no memory, however many end.

/// The last published writes with items of memory, if no item of these writes was linked.
#[derive(Debug, Default)]
pub(super) struct UnlinkedWrites {
    /// When the first and the last of these writes was published.
    published_ns: Option<(u64, u64)>,
}

impl UnlinkedWrites {
    /// Records a published write, and whether any of its items was linked.
    ///
    /// Forgets the writes before a pause of `limit_ns`.
    pub fn note(&mut self, is_linked: bool, now_ns: u64, limit_ns: u64) {
        let before = self.published_ns.filter(|(_, last)| now_ns.saturating_sub(*last) <= limit_ns);
        let first = before.map_or(now_ns, |(first, _)| first);
        self.published_ns = (!is_linked).then_some((first, now_ns));
    }

    /// Returns whether all writes published for longer than `limit_ns` were unlinked.
    ///
    /// Returns false after a pause of `limit_ns`.
    pub fn have_lasted(&self, now_ns: u64, limit_ns: u64) -> bool {
        self.published_ns.is_some_and(|(first, last)| {
            now_ns.saturating_sub(first) > limit_ns && now_ns.saturating_sub(last) <= limit_ns
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn unlinked_writes_last_until_one_is_linked_or_none_comes() {
        let mut writes = UnlinkedWrites::default();
        for now in (0..=10).step_by(2) {
            assert!(!writes.have_lasted(now, 10), "{now}");
            writes.note(false, now, 10);
        }
        writes.note(false, 12, 10);
        assert!(writes.have_lasted(12, 10) && writes.have_lasted(22, 10));
        assert!(!writes.have_lasted(23, 10));
        writes.note(false, 23, 10);
        assert!(!writes.have_lasted(23, 10));
        writes.note(false, 33, 10);
        writes.note(false, 34, 10);
        assert!(writes.have_lasted(34, 10));
        writes.note(true, 34, 10);
        assert!(!writes.have_lasted(34, 10));
    }
}
