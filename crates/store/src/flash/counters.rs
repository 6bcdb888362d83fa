//! Counters of the flash tier.

use fabcache_layout::sync::{AtomicU64, Ordering};

use super::Flash;
use super::segments::Kind;
use crate::store::Store;

/// A count that several threads raise.
#[derive(Debug)]
pub(crate) struct Count(AtomicU64);

impl Default for Count {
    fn default() -> Count {
        Count(AtomicU64::new(0))
    }
}

impl Count {
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of the flash tier.
#[derive(Debug, Default)]
pub(crate) struct FlashCounters {
    pub(crate) segments_evicted: Count,
    pub(crate) segments_reclaimed: Count,
    pub(crate) items_evicted: Count,
    pub(crate) bytes_evicted: Count,
    pub(crate) items_read: Count,
    pub(crate) bytes_read: Count,
    pub(crate) items_written: Count,
    pub(crate) bytes_written: Count,
    pub(crate) device_bytes_written: Count,
    pub(crate) items_returned: Count,
    pub(crate) items_refused: Count,
    pub(crate) items_promoted: Count,
    pub(crate) items_moved: Count,
    pub(crate) bytes_moved: Count,
    pub(crate) segments_compacted: Count,
    pub(crate) mismatches: Count,
    pub(crate) bad_pages: Count,
    pub(crate) read_errors: Count,
    pub(crate) write_errors: Count,
}

/// Whether items still go to flash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FlashState {
    /// Items are written and read.
    #[default]
    Working,
    /// Writes have failed: items are evicted from memory, and flash is read as far as it can be.
    Failing,
}

impl std::fmt::Display for FlashState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FlashState::Working => "working",
            FlashState::Failing => "memory_only: writes fail",
        })
    }
}

/// Declares [`FlashSums`]: numbers that only rise, and others.
macro_rules! flash_sums {
    (rising { $($(#[$doc:meta])* $rising:ident,)* } others { $($(#[$other_doc:meta])* $other:ident: $kind:ty,)* }) => {
        /// The sums and the contents of the flash tier.
        ///
        /// memcached's page is a flash segment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct FlashSums {
            $($(#[$doc])* pub $rising: u64,)*
            $($(#[$other_doc])* pub $other: $kind,)*
        }

        impl FlashSums {
            /// Returns these, less what rose until `earlier`.
            pub fn since(&self, earlier: &FlashSums) -> FlashSums {
                FlashSums {
                    $($rising: self.$rising.wrapping_sub(earlier.$rising),)*
                    $($other: self.$other.clone(),)*
                }
            }
        }
    };
}

flash_sums! {
    rising {
        /// Flash segments opened for writing.
        pages_allocated,
        /// Flash segments evicted with live items.
        pages_evicted,
        /// Flash segments freed, with live items or without.
        pages_reclaimed,
        /// Live items evicted from flash.
        objects_evicted,
        /// Items read from flash.
        objects_read,
        /// Items written to flash.
        objects_written,
        /// Bytes of live items evicted from flash.
        bytes_evicted,
        /// Bytes of items written to flash.
        bytes_written,
        /// Bytes of items read from flash.
        bytes_read,
        /// Items that went back to flash unchanged, without a write.
        returned,
        /// Evicted items that the write budget or a slow device refused.
        refused,
        /// Pages whose checksum, offset or sequence was wrong.
        bad_pages,
        /// Reads of an item with another key than the one looked for.
        mismatches,
        /// Reads that failed.
        read_errors,
        /// Writes that failed.
        write_errors,
        /// Items that returned to memory.
        recached,
        /// Live items that compaction moved to other flash segments.
        moved,
        /// Bytes of the live items that compaction moved.
        bytes_moved,
        /// Flash segments whose live items were all moved.
        compacted,
        /// Bytes written to devices, with headers and unused space.
        device_bytes_written,
    }
    others {
        /// Flash segments that are free.
        pages_free: u64,
        /// Flash segments that are written or hold items.
        pages_used: u64,
        /// Live items on flash.
        objects_used: u64,
        /// Bytes of the live items on flash.
        bytes_used: u64,
        /// Bytes of used flash segments that hold no live item.
        bytes_fragmented: u64,
        /// Bytes of all flash segments.
        limit_maxbytes: u64,
        /// Writes that wait or are in progress.
        io_queue: u64,
        /// Whether items move to flash.
        state: FlashState,
    }
}

/// One flash segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashSegmentSums {
    /// The number of segments opened up to this one; 0 while it is free.
    pub sequence: u64,
    /// Bytes of its live items.
    pub bytes: u64,
}

impl Flash {
    /// Returns the sums.
    fn sums(&self) -> FlashSums {
        let counters = &self.counters;
        let segment_bytes = u64::from(self.segments.segment_pages()) * super::page::PAGE_BYTES as u64;
        let (mut free, mut used, mut live, mut live_bytes) = (0, 0, 0, 0);
        for segment in self.segments.uses() {
            if segment.kind == Kind::Free {
                free += 1;
                continue;
            }
            used += 1;
            live += u64::from(segment.live);
            live_bytes += segment.live_bytes();
        }
        let log = self.log();
        let (io_queue, state) = log.queue();
        FlashSums {
            pages_allocated: log.segments_opened(),
            pages_evicted: counters.segments_evicted.get(),
            pages_reclaimed: counters.segments_reclaimed.get(),
            pages_free: free,
            pages_used: used,
            objects_evicted: counters.items_evicted.get(),
            objects_read: counters.items_read.get(),
            objects_written: counters.items_written.get(),
            objects_used: live,
            bytes_evicted: counters.bytes_evicted.get(),
            bytes_written: counters.bytes_written.get(),
            bytes_read: counters.bytes_read.get(),
            bytes_used: live_bytes,
            bytes_fragmented: (used * segment_bytes).saturating_sub(live_bytes),
            limit_maxbytes: self.segments.len() as u64 * segment_bytes,
            io_queue,
            returned: counters.items_returned.get(),
            refused: counters.items_refused.get(),
            mismatches: counters.mismatches.get(),
            bad_pages: counters.bad_pages.get(),
            read_errors: counters.read_errors.get(),
            write_errors: counters.write_errors.get(),
            recached: counters.items_promoted.get(),
            moved: counters.items_moved.get(),
            bytes_moved: counters.bytes_moved.get(),
            compacted: counters.segments_compacted.get(),
            device_bytes_written: counters.device_bytes_written.get(),
            state,
        }
    }
}

impl Store {
    /// Returns below how many bytes items are evicted rather than written to flash.
    pub fn flash_item_bytes_min(&self) -> u32 {
        self.flash_item_bytes_min.load(Ordering::Relaxed)
    }

    /// Sets below how many bytes items are evicted rather than written to flash.
    pub fn set_flash_item_bytes_min(&self, bytes: u32) {
        self.flash_item_bytes_min.store(bytes, Ordering::Relaxed);
    }

    /// Returns the sums of the flash tier, if there is one.
    pub fn flash_sums(&self) -> Option<FlashSums> {
        self.flash.as_ref().map(|flash| flash.sums())
    }

    /// Returns the flash segments from a number on, at most so many; none without a flash tier.
    pub fn flash_segments(&self, from: usize, count_max: usize) -> Vec<FlashSegmentSums> {
        let uses = self.flash.iter().flat_map(|flash| flash.segments.uses());
        let sums = |segment: super::segments::SegmentUse| FlashSegmentSums {
            sequence: if segment.kind == Kind::Free { 0 } else { segment.sequence },
            bytes: segment.live_bytes(),
        };
        uses.skip(from).take(count_max).map(sums).collect()
    }
}
