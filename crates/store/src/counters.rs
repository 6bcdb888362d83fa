//! Counters: each thread has its own set and alone writes it; reading sums all sets.

use fabcache_layout::sync::{AtomicU64, Ordering};

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; for the owning thread only.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds one; for the owning thread only.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Returns the count.
    #[inline]
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares a set of counters and the sums of several sets.
#[macro_export]
macro_rules! counter_set {
    ($(#[$meta:meta])* $set:ident, $sums:ident { $($(#[$doc:meta])* $name:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub struct $set { $($(#[$doc])* pub $name: $crate::counters::Counter),* }

        /// Sums over the sets of all threads.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct $sums { $($(#[$doc])* pub $name: u64),* }

        impl $sums {
            /// Adds the current values of a set.
            pub fn add(&mut self, set: &$set) {
                $(self.$name += set.$name.read();)*
            }

            /// Returns the difference to `earlier`.
            pub fn since(&self, earlier: &$sums) -> $sums {
                $sums { $($name: self.$name.wrapping_sub(earlier.$name)),* }
            }
        }
    };
}

counter_set! {
    /// Counts of one thread's operations on the store.
    StoreCounters, StoreSums {
        /// Items ever stored.
        total_items,
        /// Valid items evicted for room.
        evictions,
        /// Of these, never read.
        evicted_unfetched,
        /// Of these, old ones that were read again.
        evicted_active,
        /// Of these, with an expiry time.
        evicted_nonzero,
        /// Bytes of evicted items.
        evicted_bytes,
        /// Expired or flushed items whose memory was taken back.
        reclaimed,
        /// Of these, expired and never read.
        expired_unfetched,
        /// Items examined by reclaim.
        reclaim_items_checked,
        /// Items moved to another segment.
        items_moved,
        /// Their bytes.
        bytes_moved,
        /// Segments emptied to make room for live ones by moving what lived in them.
        segments_compacted,
        /// Segments emptied by evicting.
        segments_evicted,
        /// Segments emptied because all in them was expired, flushed or dead.
        segments_expired,
        /// Stores refused because memory was full.
        out_of_memory,
        /// Lock-free reads that started again because something changed under them.
        read_retries,
        /// Of these, reads that took the lock after many attempts.
        locked_reads,
        /// Reads that followed an overflow area.
        overflow_reads,
        /// Reads that found an item in the small queue, of one key in [`crate::bounds::QUEUE_HITS_SAMPLE`].
        small_queue_hits,
        /// Such reads that found one in the main queue.
        main_queue_hits,
        /// Accesses to stored items that readers of the region reported.
        accesses_outside,
        /// Long values whose sending pinned segments.
        pins,
        /// Of these, beyond the part of memory that senders may pin.
        pins_refused,
        /// Tables of the index that were rebuilt.
        tables_resized,
        /// Index groups moved to another table.
        groups_moved,
    }
}
