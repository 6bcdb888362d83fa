//! What a start over a kept region leaves to be done while the store is used.

use crate::handle::Handle;

impl Handle {
    /// Finishes what the start left to be done. `go_on` is called between short parts of it, and ends the work by
    /// returning false; returns whether all was done.
    pub fn finish_restart(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        self.store.finish_recovery(self.counters(), go_on)
    }
}
