//! What the tier has done.

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
    pub(crate) mismatches: Count,
    pub(crate) bad_pages: Count,
    pub(crate) read_errors: Count,
    pub(crate) write_errors: Count,
}

/// Whether items still go to flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlashState {
    /// Items are written and read.
    #[default]
    Working,
    /// Writes have failed: items are evicted from memory, and those on flash are read as far as they can be.
    Failing,
}

/// The sums of the flash tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashSums {
    /// Flash segments that were opened.
    pub pages_allocated: u64,
    /// Segments that were emptied while slots led there.
    pub pages_evicted: u64,
    /// Segments whose items had all died.
    pub pages_reclaimed: u64,
    /// Segments that hold nothing.
    pub pages_free: u64,
    /// All others.
    pub pages_used: u64,
    /// Items that were valid when their segment was emptied, as far as is known.
    pub objects_evicted: u64,
    /// Items read.
    pub objects_read: u64,
    /// Items written.
    pub objects_written: u64,
    /// Items to which slots lead.
    pub objects_used: u64,
    /// Bytes of evicted items, by the mean of their segments.
    pub bytes_evicted: u64,
    /// Bytes of records written.
    pub bytes_written: u64,
    /// Bytes of pages read.
    pub bytes_read: u64,
    /// Bytes of items to which slots lead, by the mean of their segments.
    pub bytes_used: u64,
    /// Bytes of used segments that hold no such items.
    pub bytes_fragmented: u64,
    /// Bytes of all segments.
    pub limit_maxbytes: u64,
    /// Writes that are waiting or under way.
    pub io_queue: u64,
    /// Items that went back to flash without being written.
    pub returned: u64,
    /// Items that were evicted from memory rather than written: too small, beyond the budget, or the device was too slow.
    pub refused: u64,
    /// Reads of an item with another key than the one looked for.
    pub mismatches: u64,
    /// Pages that were not what was written.
    pub bad_pages: u64,
    /// Reads that the device failed.
    pub read_errors: u64,
    /// Writes that the device failed.
    pub write_errors: u64,
    /// Items that were stored in memory again because they were read.
    pub recached: u64,
    /// Bytes of pages written.
    pub device_bytes_written: u64,
    /// Whether items still go to flash.
    pub state: FlashState,
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
            live_bytes += segment.bytes * u64::from(segment.live) / u64::from(segment.items.max(1));
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
            device_bytes_written: counters.device_bytes_written.get(),
            state,
        }
    }
}

impl Store {
    /// Evicts items of fewer bytes rather than writing them to flash.
    pub fn set_flash_item_bytes_min(&self, bytes: u32) {
        if let Some(flash) = &self.flash {
            flash.set_item_bytes_min(bytes);
        }
    }

    /// Returns the sums of the flash tier, if there is one.
    pub fn flash_sums(&self) -> Option<FlashSums> {
        self.flash.as_ref().map(|flash| flash.sums())
    }
}
