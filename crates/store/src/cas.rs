//! The counter of CAS values, which never gives one twice, in no incarnation of a kept region.

use fabcache_layout::sync::{AtomicU64, Ordering, in_order};
use fabcache_layout::{Memory, succession};

/// Values between two limits: a server that is killed loses at most this many.
const LIMIT_STEP: u64 = if cfg!(loom) { 4 } else { 1 << 20 };

/// The counter. The region's header has a limit that no value exceeds; it is raised before a greater value is given.
#[derive(Debug)]
pub(crate) struct CasCounter {
    last: AtomicU64,
    /// A limit that the header has, or one that it had.
    limit: AtomicU64,
}

impl CasCounter {
    /// Returns a counter that continues after `last`, and stores its first limit.
    pub(crate) fn after(memory: &Memory, last: u64) -> CasCounter {
        let counter = CasCounter { last: AtomicU64::new(last), limit: AtomicU64::new(last) };
        counter.raise_limit(memory, last + 1);
        counter
    }

    /// Returns the last value taken.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Takes `count` values: those after the one returned.
    #[inline]
    pub(crate) fn take(&self, memory: &Memory, count: u64) -> u64 {
        let before = self.last.fetch_add(count, Ordering::Relaxed);
        // Acquire: the header has a limit that is seen here.
        if before + count > self.limit.load(Ordering::Acquire) {
            self.raise_limit(memory, before + count);
        }
        before
    }

    /// Raises the limit to at least `value`.
    #[cold]
    fn raise_limit(&self, memory: &Memory, value: u64) {
        let limit = value.next_multiple_of(LIMIT_STEP);
        let store = || succession::raise_cas_limit(memory, limit);
        in_order("limit_first", store, || {
            self.limit.fetch_max(limit, Ordering::AcqRel);
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use fabcache_layout::format::{STATUS_AT, USED_BYTES};
    use loom::thread;

    use super::*;
    use crate::models::check;

    /// Whatever value a thread has got, a server that finds the region now does not give it again.
    #[test]
    fn cas_is_not_given_before_its_limit_is_stored() {
        check(2, || {
            let memory = Memory::sparse(USED_BYTES, |offset| offset >= STATUS_AT);
            let counter = Arc::new(CasCounter::after(&memory, 0));
            // One thread raises the limit, and the other goes by it.
            let take = |counter: &CasCounter, memory: &Memory| {
                for _ in 0..2 {
                    let last = counter.take(memory, 2) + 2;
                    assert!(last <= succession::cas_limit(memory), "{last} is above the limit");
                }
            };
            let other = {
                let (counter, memory) = (Arc::clone(&counter), memory.clone());
                thread::spawn(move || take(&counter, &memory))
            };
            take(&counter, &memory);
            other.join().expect("taken");
            assert!(counter.last() <= succession::cas_limit(&memory));
        });
    }
}
