//! The flash tier: stores items that leave memory in segments of files or block devices.
//!
//! ```text
//!   memory --stage: copied to a write buffer--> being written --publish: the slot changes--> flash
//!      ^                                                                                       |
//!      +------------------- promote: a read item is stored in memory again -------------------+
//! ```
//! The store does no I/O. It hands out writes ([`FlashWrite`]) and reads ([`FlashRead`]), and takes their results. A staged item
//! stays where it is, and is read and changed there, until its pages are written. Then, under its group's lock, its slot is
//! changed, if it is still the same item.
//!
//! - `page.rs`: the bytes of a page; `filling.rs`: the buffer in which pages are filled; `log.rs`: the order of buffers and their
//!   writes; `long_items.rs`: the chained items among them; `unlinked_writes.rs`: writes that free no memory; `refusals.rs`: items that
//!   were refused; `spare_buffers.rs`: buffers of long items.
//! - `segments.rs`: which flash segments are in use, by how many items and readers; `spans.rs`: items longer than one.
//! - `demotion.rs`: from memory to flash; `locations.rs`: where promoted items still are on flash.
//! - `reading.rs`: reads of items; `visiting.rs`: reads of keys alone; `maintenance_reads.rs`: those that the store itself needs.
//! - `retirement.rs`: emptying segments for later use; `compaction.rs`: moving live items out of them, without eviction;
//!   `records.rs`: the records of their pages.
//! - `restart.rs`: what a clean stop saves, and how the next server continues.
//!
//! With eviction, flash segments are reused in the order in which they were written. Slots that lead to one are cleared before by
//! a pass over the index; what such a slot leads to is not read, as reading would take as much of the device's time as writing
//! does.

mod budget;
mod compaction;
mod counters;
mod demotion;
mod device_pauses;
mod filling;
mod locations;
mod log;
mod long_items;
mod maintenance_reads;
#[cfg(all(test, not(loom)))]
mod maintenance_tests;
#[cfg(all(test, loom))]
mod models;
pub mod page;
mod reading;
mod records;
mod refusals;
#[cfg(not(loom))]
mod restart;
mod retirement;
mod segments;
mod spans;
mod spare_buffers;
#[cfg(all(test, not(loom)))]
mod tests;
mod unlinked_writes;
mod visiting;

use aligned_vec::{AVec, ConstAlign};
use fabcache_layout::flash_slot::{FlashItem, PAGE_BITS};
use fabcache_layout::geometry::Geometry;
use fabcache_layout::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};

use crate::bounds::{FLASH_READS_BETWEEN_DIVISOR, FLASH_READS_BETWEEN_MIN, ITEM_BYTES_MIN};
use crate::error::CreateError;
use crate::recent_keys::RecentKeys;
use compaction::Compaction;
use counters::FlashCounters;
pub use counters::{FlashSegmentSums, FlashState, FlashSums};
pub(crate) use demotion::Demotion;
pub(crate) use locations::{FlashLocation, Locations};
pub use log::FlashWrite;
use log::Log;
pub use maintenance_reads::MaintenanceRead;
use maintenance_reads::MaintenanceReads;
pub(crate) use reading::FlashReader;
pub(crate) use reading::OnFlash;
pub use reading::{FalseMatches, Fetched, FetchedItem, FetchedValue, FlashRead, FlashReadResult};
#[cfg(not(loom))]
pub(crate) use restart::restore_flash;
#[cfg(not(loom))]
pub use restart::{FlashLoss, FlashOpening};
use retirement::UnsuccessfulSearch;
use segments::{FlashSegments, Kind};
use spans::Spans;
pub use visiting::{VisitResult, VisitedKey, VisitedOnFlash};

/// The memory of pages that are read or written, aligned for devices.
pub type PageBuffer = AVec<u8, ConstAlign<{ page::PAGE_BYTES }>>;

/// Options of the flash tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashOptions {
    /// Bytes for segments on each device.
    pub device_bytes: Vec<u64>,
    /// Bytes of a flash segment: a multiple of a page.
    pub segment_bytes: u64,
    /// Items of fewer bytes are evicted rather than written to flash.
    pub item_bytes_min: u32,
    /// Bytes that may be written in a second, once all of flash was written; `None` for any number.
    pub write_bytes_per_second: Option<u64>,
    /// The random id of the devices at this opening: no other opening has it.
    pub set_id: u128,
    /// Their id at the opening before, if the same devices formed the set then.
    pub previous_set_id: Option<u128>,
}

#[cfg(test)]
impl FlashOptions {
    /// Returns the options of one new device with so many segments.
    pub(crate) fn of_device(segments: u64, segment_bytes: u64) -> FlashOptions {
        FlashOptions {
            device_bytes: vec![segments * segment_bytes],
            segment_bytes,
            item_bytes_min: 0,
            write_bytes_per_second: None,
            set_id: 1,
            previous_set_id: None,
        }
    }
}

/// The flash tier's part of a store.
#[derive(Debug)]
pub(crate) struct Flash {
    pub(crate) segments: FlashSegments,
    pub(crate) locations: Locations,
    pub(crate) counters: FlashCounters,
    /// The keys read last: those read again soon return to memory.
    recent_reads: RecentKeys,
    maintenance_reads: MaintenanceReads,
    compaction: Compaction,
    spans: Spans,
    log: Mutex<Log>,
    /// Held by the thread that publishes written items.
    publishing: Mutex<()>,
    /// Held by the thread that retires segments.
    retirement: Mutex<()>,
    /// The last search for segments to free, if it found none.
    searched: Mutex<Option<UnsuccessfulSearch>>,
    /// Segments of the region whose items are being written.
    leaving: AtomicUsize,
    /// The most items that the index has had.
    items_most: AtomicU64,
    /// The first sequence that no earlier server used.
    first_sequence: u64,
    /// The random id of the devices at this opening.
    #[cfg(not(loom))]
    set_id: u128,
}

impl Flash {
    /// Returns an empty tier beside a region, whose live items may be evicted or not.
    ///
    /// # Errors
    /// Its devices hold fewer segments than it needs, or more pages than slots can name.
    pub(crate) fn new(
        options: &FlashOptions,
        geometry: &Geometry,
        evicts: bool,
    ) -> Result<Flash, CreateError> {
        let segments =
            FlashSegments::new(options.set_id as u64, &options.device_bytes, options.segment_bytes);
        if segments.len() < FLASH_SEGMENTS_MIN {
            return Err(CreateError::FlashTooSmall {
                needed: FLASH_SEGMENTS_MIN as u64 * options.segment_bytes,
            });
        }
        if segments.pages() > 1 << PAGE_BITS {
            return Err(CreateError::FlashTooLarge { max: (page::PAGE_BYTES as u64) << PAGE_BITS });
        }
        let flash = Flash {
            log: Mutex::new(Log::new(options, &segments, evicts)),
            segments,
            locations: Locations::new(geometry.segments),
            recent_reads: RecentKeys::new(recent_reads_for(geometry.region_bytes / ITEM_BYTES_MIN)),
            maintenance_reads: MaintenanceReads::default(),
            compaction: Compaction::default(),
            spans: Spans::default(),
            counters: FlashCounters::default(),
            publishing: Mutex::new(()),
            retirement: Mutex::new(()),
            searched: Mutex::new(None),
            leaving: AtomicUsize::new(0),
            items_most: AtomicU64::new(0),
            first_sequence: 1,
            #[cfg(not(loom))]
            set_id: options.set_id,
        };
        flash.fit_recent_reads(0);
        Ok(flash)
    }

    /// Adapts the window of reads to the number of items in memory.
    pub(crate) fn fit_recent_reads(&self, items: u64) {
        self.recent_reads.fit(recent_reads_for(items).max(FLASH_READS_BETWEEN_MIN));
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no thread panics while it holds the log")
    }

    /// Returns whether items of memory may go to flash: they have room there, and it is neither stalled nor failing.
    pub(crate) fn takes_items(&self, now_ns: u64) -> bool {
        self.log().takes_others(&self.segments, now_ns)
    }

    /// Returns whether a write and all before it are published.
    pub(crate) fn is_published(&self, number: u64) -> bool {
        self.log().is_published(number)
    }

    /// Returns the number of segments of the region that will be free when writes have ended.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving.load(Ordering::Relaxed)
    }

    pub(crate) fn set_leaving(&self, segments: usize) {
        self.leaving.store(segments, Ordering::Relaxed);
    }

    /// Counts an item on flash as dead: its slot no longer leads to it.
    pub(crate) fn count_dead(&self, item: FlashItem) {
        self.spans.count_dead(item, &self.segments);
        self.segments.count_dead(item.page);
    }

    /// Counts the item of a slot that an earlier server left, and returns whether it is still there.
    ///
    /// Only a restored tier has such slots. No segment is retired until all of them are counted.
    pub(crate) fn count_found(&self, item: FlashItem) -> bool {
        let Some(id) = self.segments.segment_of(item.page) else { return false };
        let is_there =
            self.segments.kind(id) != Kind::Free && self.segments.sequence(id) < self.first_sequence;
        if is_there {
            self.segments.count_live(item.page);
            self.spans.count_found(item, &self.segments);
        }
        is_there
    }
}

/// The fewest segments of a tier: one is written, one is retired, and others keep items meanwhile.
pub const FLASH_SEGMENTS_MIN: usize = 4;

/// Returns how many reads of other items on flash make the next read of an item late.
///
/// `items` is the number of items in memory.
fn recent_reads_for(items: u64) -> u64 {
    items / FLASH_READS_BETWEEN_DIVISOR
}
