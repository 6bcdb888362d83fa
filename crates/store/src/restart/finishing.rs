//! Finishes a takeover while requests are answered: the recovery after a kill, then the verification of the items.

use fabcache_layout::succession;

use crate::bounds::SCRUB_STEP_BYTES;
use crate::handle::Handle;
use crate::store::Store;

impl Handle {
    /// Finishes the start of a store that took a region over; does nothing for another store. `go_on` is called between
    /// parts and ends it early when it returns false. A part is less than a quarter of a millisecond of work, but for the
    /// pass over the index that clears an unreadable segment's slots. Returns whether all was done.
    pub fn finish_restart(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        self.store.finish_recovery(self.counters(), go_on) && self.scrub(go_on)
    }

    /// Verifies all segments of earlier servers. Then readers of other processes need not ask the server any more.
    fn scrub(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        let store = &*self.store;
        let mut worked = 0;
        for id in 0..store.geometry.segments {
            if !store.segments.is_unverified(id) {
                continue;
            }
            if !store.verify_segment(id, go_on) {
                return false;
            }
            worked += store.segments.sealed_end(id).unwrap_or(0);
            if worked >= SCRUB_STEP_BYTES {
                worked = 0;
                if !go_on() {
                    return false;
                }
            }
        }
        store.note_verified();
        true
    }
}

impl Store {
    /// Returns how many segments of earlier servers are verified, and how many there were.
    pub fn scrubbed(&self) -> (u32, u32) {
        let found = self.segments.taken_over();
        (found - self.segments.unverified(), found)
    }

    /// Notes that everything is verified, if it is.
    pub(crate) fn note_verified(&self) {
        if !self.segments.has_unverified() && self.is_recovered() {
            succession::set_verified(&self.memory);
        }
    }
}
