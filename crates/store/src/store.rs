//! The store: a region and the server's private state for it.

use std::sync::OnceLock;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use fabcache_layout::format::LEASE_MAX;
use fabcache_layout::header::{self, Birth};
use fabcache_layout::item::{HEADER_BYTES_MAX, Item, KEY_BYTES_MAX};
use fabcache_layout::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use fabcache_layout::{Geometry, KeyHash, Memory, Secret};

use crate::bounds::{
    CONTIGUOUS_ITEM_DIVISOR, EXPECTED_ITEM_BYTES, FREE_SEGMENTS_LEAST_DIVISOR_MIN,
    FREE_SEGMENTS_WANTED_DIVISOR, FREE_SEGMENTS_WANTED_MIN, GROUP_LOCKS_MAX, GROUP_LOCKS_MIN,
    GROUP_LOCKS_PER_THREAD, ITEM_BYTES_MIN, SEGMENTS_FOR_ITEMS_MIN, WRITTEN_BEFORE_WAIT_BYTES,
};
use crate::cas::CasCounter;
use crate::clock::{Clock, FIRST_SECOND, SystemTimeSource, TimeSource};
use crate::counters::{StoreCounters, StoreSums};
use crate::error::CreateError;
use crate::eviction::{Eviction, EvictionPolicy, ghosts_for};
use crate::expiry::Expirer;
use crate::flash::{Flash, FlashOptions};
use crate::handle::Handle;
use crate::index::resize::Rehash;
use crate::index::{Index, NoIndexBlock, SlotSnapshot};
use crate::info::ItemInfo;
use crate::recent_keys::RecentKeys;
use crate::reclaim::Reclaim;
use crate::restart::recovery::Recovery;
use crate::restart::verification::Verification;
use crate::segments::{ClaimPurpose, Queue, Segments};
use crate::simulation::{Simulation, SimulationCounts};

#[cfg(not(loom))]
use crate::backing::{Backing, BackingOptions, Given, Locking, Sharing};
#[cfg(not(loom))]
use crate::flash::FlashOpening;
#[cfg(not(loom))]
use crate::opening::Opening;

/// Options of a store.
#[derive(Debug)]
pub struct StoreOptions {
    /// Bytes of memory, including the whole region (`-m`).
    pub memory_bytes: u64,
    /// Bytes that the limit may be raised to while running; at least `memory_bytes`.
    pub memory_bytes_max: u64,
    /// The backing of the memory.
    #[cfg(not(loom))]
    pub backing: BackingOptions,
    /// Memory that the caller allocated, in place of `backing`.
    #[cfg(not(loom))]
    pub given: Option<Given>,
    /// Evict live items when memory is full; else refuse to store (`-M`).
    pub evict: bool,
    /// Which items are evicted.
    pub eviction: EvictionPolicy,
    /// Items have CAS values (`-C` turns them off).
    pub cas: bool,
    /// The number of threads that will take a handle and store items.
    pub threads: usize,
    /// The number of threads that will take a handle for work in the background.
    pub background_threads: usize,
    /// The grace: how long an emptied segment is not overwritten. Remote readers rely on it to validate an item by
    /// what they read before it. Zero without such readers.
    pub grace: Duration,
    /// The lease: how long remote readers may assume that nothing was flushed since their last check. A flush waits
    /// this long, except for a second flush before the next [`maintain`](crate::Handle::maintain). Zero without such
    /// readers, at most [`LEASE_MAX`].
    pub lease: Duration,
    /// The flash tier, if there is one.
    pub flash: Option<FlashOptions>,
    /// The source of time.
    pub time: Box<dyn TimeSource>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            memory_bytes: 64 << 20,
            memory_bytes_max: 64 << 20,
            #[cfg(not(loom))]
            backing: BackingOptions::default(),
            #[cfg(not(loom))]
            given: None,
            evict: true,
            eviction: EvictionPolicy::default(),
            cas: true,
            threads: 1,
            background_threads: 0,
            grace: Duration::ZERO,
            lease: Duration::ZERO,
            flash: None,
            time: Box::new(SystemTimeSource),
        }
    }
}

impl StoreOptions {
    /// The number of locks of the index's groups.
    pub(crate) fn group_locks(&self) -> usize {
        (self.threads * GROUP_LOCKS_PER_THREAD).clamp(GROUP_LOCKS_MIN, GROUP_LOCKS_MAX)
    }

    /// Takes the source of time.
    pub(crate) fn take_time(&mut self) -> Box<dyn TimeSource> {
        std::mem::replace(&mut self.time, Box::new(SystemTimeSource))
    }
}

/// The parts of a store, new or restored.
pub(crate) struct Parts {
    pub(crate) memory: Memory,
    pub(crate) geometry: Geometry,
    pub(crate) hash_seed: u64,
    pub(crate) secret: Secret,
    pub(crate) index: Index,
    pub(crate) segments: Segments,
    pub(crate) clock: Clock,
    /// CAS values continue after this one.
    pub(crate) last_cas: u64,
    /// Of a region whose server was killed.
    pub(crate) recovery: Option<Recovery>,
    pub(crate) flash: Option<Flash>,
    #[cfg(not(loom))]
    pub(crate) backing: Box<dyn Backing>,
}

/// A region and the server's private state for it.
#[derive(Debug)]
pub struct Store {
    pub(crate) memory: Memory,
    pub(crate) geometry: Geometry,
    pub(crate) hash_seed: u64,
    pub(crate) secret: Secret,
    pub(crate) index: Index,
    pub(crate) segments: Segments,
    /// Requested by every write while memory is full, so in cache lines of its own.
    pub(crate) reclaim: CachePadded<Mutex<Reclaim>>,
    /// The last second in which reclaim was looking ahead and found nothing to take back.
    pub(crate) nothing_to_reclaim: AtomicU32,
    /// Items that the small queue evicted: those that are requested again go to the main queue.
    pub(crate) ghosts: RecentKeys,
    /// Which share of the small queue has more hits.
    pub(crate) simulation: Simulation,
    /// Held while a flush is started or noted.
    pub(crate) flushes: Mutex<()>,
    /// The flush epoch whose older items are all removed from the index. Raised after a complete walk.
    pub(crate) swept_epoch: AtomicU64,
    /// The last flush epoch in which an item was stored.
    pub(crate) stored_epoch: AtomicU64,
    /// Segments sealed up to this order held only items that are flushed when the last flush happened.
    pub(crate) flushed_order: AtomicU64,
    pub(crate) expirer: Mutex<Expirer>,
    /// Held while the memory limit moves.
    #[cfg(not(loom))]
    pub(crate) limit_moving: Mutex<()>,
    /// The second of the next delayed flush; 0 for none.
    pub(crate) flush_at: AtomicU32,
    /// For how long readers may take the published line to be so.
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    /// Written by every write, so on its own cache line.
    cas: CachePadded<CasCounter>,
    pub(crate) cas_enabled: bool,
    evict: bool,
    eviction_policy: EvictionPolicy,
    /// The small queue's share, as the bits of an `f64`, for statistics, which do not wait for reclaim. Models leave it
    /// out: nothing depends on it.
    pub(crate) small_share: std::sync::atomic::AtomicU64,
    /// Reads after which an item of the small queue is promoted, for writers, which do not wait for reclaim.
    pub(crate) promotion_reads: std::sync::atomic::AtomicU8,
    pub(crate) verification: Verification,
    counters: Box<[CachePadded<StoreCounters>]>,
    handles_taken: AtomicU32,
    memory_limit: AtomicU64,
    /// Seconds that the last evicted item had not been accessed.
    pub(crate) evicted_idle: AtomicU32,
    pub(crate) observer: OnceLock<Box<dyn Observer>>,
    pub(crate) recovery: Option<Box<Recovery>>,
    pub(crate) flash: Option<Box<Flash>>,
    /// Without a flash tier it has no effect.
    pub(crate) flash_item_bytes_min: AtomicU32,
    /// How the store began, and how long that took.
    #[cfg(not(loom))]
    pub(crate) opening: (Opening, Duration),
    /// What became of the items on flash.
    #[cfg(not(loom))]
    pub(crate) flash_opening: FlashOpening,
    #[cfg(not(loom))]
    pub(crate) backing: Box<dyn Backing>,
}

/// Receives items that leave memory, and learns what to do for the store.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// Whether there is a listener now.
    fn is_listening(&self) -> bool;

    /// An item was evicted. Called under a lock: be quick.
    fn evicted(&self, key: &[u8], info: &ItemInfo);

    /// An item left memory for flash. Called under a lock: be quick.
    fn demoted(&self, _key: &[u8], _info: &ItemInfo) {}

    /// Writers will soon write to untouched memory: [`Handle::touch_ahead`](crate::Handle::touch_ahead) is due.
    fn memory_is_untouched(&self) {}

    /// Items were staged: [`Store::take_flash_write`] may have a write. Called under locks: be quick.
    fn flash_has_writes(&self) {}

    /// Writers wait for room on flash: [`Handle::maintain_flash`](crate::Handle::maintain_flash) is due. Called under locks: be quick.
    fn flash_lacks_room(&self) {}

    /// Items are to be read ([`Handle::take_maintenance_read`](crate::Handle::take_maintenance_read)). Called under locks: be quick.
    fn flash_has_reads(&self) {}
}

/// The use of a store's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Items alive.
    pub items: u64,
    /// Bytes they take.
    pub item_bytes: u64,
    /// The memory limit.
    pub memory_limit: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments within the limit.
    pub segments: u32,
    /// Of these, free.
    pub segments_free: u32,
    /// Of these, used by the index.
    pub segments_index: u32,
    /// Segments that senders keep from being reused.
    pub segments_pinned: u32,
    /// Bytes of the index's tables.
    pub index_bytes: u64,
    /// Home slots in them.
    pub index_slots: u64,
    /// Buckets linked behind overflow areas.
    pub index_chain_buckets: u64,
    /// Some table is growing.
    pub index_growing: bool,
}

/// The division of memory between the small queue, of new items, and the main queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionBalance {
    /// The part of the items' segments that the small queue may have.
    pub small_share: f64,
    /// Hits with either of two shares, by simulation.
    pub simulation: SimulationCounts,
}

/// The ages of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeStatistics {
    /// Seconds since the oldest segment that holds items was opened: no item was written before.
    pub oldest_seconds: u32,
    /// Seconds that the last evicted item had not been accessed.
    pub evicted_seconds: u32,
}

impl Store {
    /// Makes a store over model memory, all of whose segments are within the limit.
    #[cfg(loom)]
    pub fn model(options: StoreOptions, geometry: Geometry, memory: Memory) -> Result<Store, CreateError> {
        let secret = Secret([0; fabcache_layout::checksum::SECRET_BYTES]);
        Store::assemble(options, memory, geometry, secret, (0, 0), geometry.segments)
    }

    /// Writes a new region into zeroed memory, and makes the store for it.
    pub(crate) fn assemble(
        mut options: StoreOptions,
        memory: Memory,
        geometry: Geometry,
        secret: Secret,
        (hash_seed, region_id): (u64, u64),
        segments_limit: u32,
        #[cfg(not(loom))] backing: Box<dyn Backing>,
    ) -> Result<Store, CreateError> {
        let (bytes, region_bytes) = (options.memory_bytes, geometry.region_bytes);
        let too_small = || CreateError::TooSmall { bytes, region_bytes };
        let segments = Segments::new(
            memory.clone(),
            geometry,
            segments_limit,
            !options.evict,
            options.threads.max(1),
            options.grace,
        );
        let index = Index::new(memory.clone(), geometry, options.group_locks(), || segments.take_for_index())
            .map_err(|NoIndexBlock| too_small())?;
        if segments_limit < segments.index_segments() + SEGMENTS_FOR_ITEMS_MIN {
            return Err(too_small());
        }
        let make_flash = |flash| Flash::new(flash, &geometry, options.evict);
        let flash = options.flash.as_ref().map(make_flash).transpose()?;
        let clock = Clock::start(options.take_time());
        let clock_origin = clock.origin();
        header::write(&memory, &Birth { geometry, hash_seed, clock_origin, region_id, incarnation: 1 });
        header::grant_leases(&memory, options.lease.min(LEASE_MAX));
        let parts = Parts {
            memory,
            geometry,
            hash_seed,
            secret,
            index,
            segments,
            clock,
            last_cas: 0,
            recovery: None,
            flash,
            #[cfg(not(loom))]
            backing,
        };
        let store = Store::of_parts(&options, parts);
        #[cfg(not(loom))]
        store.note_boot(crate::clock::boot_id());
        store.publish_second(FIRST_SECOND);
        Ok(store)
    }

    /// Returns a store that begins with these parts.
    pub(crate) fn of_parts(options: &StoreOptions, parts: Parts) -> Store {
        let simulated = options.evict && options.eviction == EvictionPolicy::Adaptive;
        let simulated_items = simulated.then_some(options.memory_bytes / EXPECTED_ITEM_BYTES);
        let eviction = Eviction::new(options.eviction);
        let cas = CasCounter::after(&parts.memory, parts.last_cas);
        Store {
            ghosts: RecentKeys::new(ghosts_for(parts.geometry.region_bytes / ITEM_BYTES_MIN)),
            memory: parts.memory,
            geometry: parts.geometry,
            hash_seed: parts.hash_seed,
            secret: parts.secret,
            index: parts.index,
            segments: parts.segments,
            reclaim: CachePadded::new(Mutex::new(Reclaim::new(options.eviction))),
            nothing_to_reclaim: AtomicU32::new(0),
            simulation: Simulation::new(simulated_items),
            flushes: Mutex::new(()),
            swept_epoch: AtomicU64::new(0),
            stored_epoch: AtomicU64::new(0),
            flushed_order: AtomicU64::new(0),
            expirer: Mutex::new(Expirer::default()),
            #[cfg(not(loom))]
            limit_moving: Mutex::new(()),
            flush_at: AtomicU32::new(0),
            lease: options.lease.min(LEASE_MAX),
            clock: parts.clock,
            cas: CachePadded::new(cas),
            cas_enabled: options.cas,
            evict: options.evict,
            eviction_policy: options.eviction,
            small_share: std::sync::atomic::AtomicU64::new(eviction.small_share().to_bits()),
            promotion_reads: std::sync::atomic::AtomicU8::new(eviction.least(Queue::Small)),
            verification: Verification::default(),
            counters: (0..options.threads.max(1) + options.background_threads)
                .map(|_| CachePadded::default())
                .collect(),
            handles_taken: AtomicU32::new(0),
            memory_limit: AtomicU64::new(options.memory_bytes),
            evicted_idle: AtomicU32::new(0),
            observer: OnceLock::new(),
            recovery: parts.recovery.map(Box::new),
            flash: parts.flash.map(Box::new),
            flash_item_bytes_min: AtomicU32::new(
                options.flash.as_ref().map_or(0, |flash| flash.item_bytes_min),
            ),
            #[cfg(not(loom))]
            opening: (Opening::New, Duration::ZERO),
            #[cfg(not(loom))]
            flash_opening: FlashOpening::New,
            #[cfg(not(loom))]
            backing: parts.backing,
        }
    }

    /// The hash of a key in this region.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::of(key, self.hash_seed)
    }

    /// Returns the hash of a key, whose group of the index is checked first after a kill. The caller holds no lock of a
    /// group.
    #[inline]
    pub(crate) fn recovered_hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.hash(key);
        self.recover_group(hash);
        hash
    }

    /// Checks the group of `hash` first, after a kill. The caller holds no lock of a group.
    #[inline]
    pub(crate) fn recover_group(&self, hash: KeyHash) {
        if self.index.is_recovering() {
            self.check_group(hash);
        }
    }

    /// Returns how the store began, and how long that took.
    #[cfg(not(loom))]
    pub fn opening(&self) -> (Opening, Duration) {
        self.opening
    }

    /// Returns what became of the items on flash that the last server left.
    #[cfg(not(loom))]
    pub fn flash_opening(&self) -> FlashOpening {
        self.flash_opening
    }

    /// Returns which server since the region's creation this is.
    #[cfg(not(loom))]
    pub fn incarnation(&self) -> u32 {
        header::incarnation(&self.memory)
    }

    /// Returns the file of the region for readers to map, if it has one.
    #[cfg(not(loom))]
    pub fn region(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.backing.for_readers()
    }

    /// Returns where the region begins in its file.
    #[cfg(not(loom))]
    pub fn region_offset(&self) -> u64 {
        self.backing.offset_for_readers()
    }

    /// Protects the region against processes that receive its file: they can only read it. The size of an anonymous
    /// memory file stays from then on, and so does memory freed by a lower limit. Returns `None` if the region has no file.
    ///
    /// # Errors
    /// See [`Backing::share`].
    #[cfg(not(loom))]
    pub fn share_region(&self) -> std::io::Result<Option<Sharing>> {
        self.backing.share()
    }

    /// Returns where the region begins in this process, for registering it with hardware. It stays mapped as long as
    /// the store lives, and no references into it exist.
    #[cfg(not(loom))]
    pub fn region_base(&self) -> std::ptr::NonNull<u8> {
        self.backing.base()
    }

    /// Keeps the region's pages from now on: memory freed by a lower limit stays with the process. Hardware that has
    /// pinned pages would otherwise read stale ones.
    #[cfg(not(loom))]
    pub fn keep_pages(&self) {
        self.backing.keep_pages();
    }

    /// The secret of the items' checksums for remote readers. It must not be public, because its holder can forge
    /// items.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The second it is, as last published.
    #[inline]
    pub fn now(&self) -> u32 {
        header::clock(&self.memory)
    }

    /// Returns the monotonic time of the region's second 0, in nanoseconds: with it a reader with the same monotonic
    /// clock, or a known offset to it, decides about expiry itself.
    pub fn clock_zero_ns(&self) -> i128 {
        self.clock.zero_ns()
    }

    /// Returns the region's clock in nanoseconds since its second 0.
    pub fn clock_ns(&self) -> u64 {
        self.clock.elapsed_ns().try_into().unwrap_or(0)
    }

    /// Returns the bytes of the region.
    pub fn region_bytes(&self) -> u64 {
        self.geometry.region_bytes
    }

    /// Unix time of the region's second 0.
    pub fn clock_origin(&self) -> u64 {
        self.clock.origin()
    }

    /// Returns whether live items are evicted when memory is full.
    pub fn evicts(&self) -> bool {
        self.evict
    }

    /// Returns the queue of a new item whose key has none.
    pub(crate) fn queue_of_new(&self, hash: KeyHash) -> Queue {
        match self.eviction_policy {
            _ if !self.evict => Queue::Small,
            EvictionPolicy::Lru => Queue::Main,
            _ if self.ghosts.contains(hash) => Queue::Main,
            _ => Queue::Small,
        }
    }

    /// Returns which items are evicted.
    pub fn eviction_policy(&self) -> EvictionPolicy {
        self.eviction_policy
    }

    /// Returns how memory is divided between new and proven items, and the hits of either share.
    pub fn eviction_balance(&self) -> EvictionBalance {
        let small_share = f64::from_bits(self.small_share.load(Ordering::Relaxed));
        EvictionBalance { small_share, simulation: self.simulation.counts() }
    }

    /// Starts the counts of the simulation again.
    pub fn reset_simulation_counts(&self) {
        self.simulation.reset_counts();
    }

    /// Returns the current use.
    pub fn usage(&self) -> Usage {
        let (items, item_bytes) = self.segments.live();
        Usage {
            items,
            item_bytes,
            memory_limit: self.memory_limit.load(Ordering::Relaxed),
            segment_bytes: self.geometry.segment_bytes(),
            segments: self.segments.limit(),
            segments_free: self.segments.free_count() as u32,
            segments_index: self.segments.index_segments(),
            segments_pinned: self.segments.pinned(),
            index_bytes: self.index.bytes(),
            index_slots: self.index.home_slots(),
            index_chain_buckets: self.index.chain_buckets(),
            index_growing: self.index.is_growing(),
        }
    }

    /// Returns the ages of items.
    pub fn ages(&self) -> AgeStatistics {
        let opened = self.segments.oldest_opened();
        AgeStatistics {
            oldest_seconds: opened.map_or(0, |opened| self.now().saturating_sub(opened)),
            evicted_seconds: self.evicted_idle.load(Ordering::Relaxed),
        }
    }

    /// Locks all memory, at once or as it is touched.
    ///
    /// # Errors
    /// The system's, most often that the limit of locked memory is too low.
    #[cfg(not(loom))]
    pub fn lock_memory(&self, locking: Locking) -> std::io::Result<()> {
        self.backing.lock(locking)
    }

    /// Returns the time until the clock shows another second.
    pub fn until_next_second(&self) -> std::time::Duration {
        self.clock.until_next_second()
    }

    /// Reports every eviction to `observer`. Called once, before threads use the store.
    pub fn observe(&self, observer: Box<dyn Observer>) {
        let observed = self.observer.set(observer);
        debug_assert!(observed.is_ok(), "there is one observer");
    }

    /// Returns the sums of all threads' counters.
    pub fn sums(&self) -> StoreSums {
        let mut sums = StoreSums::default();
        for counters in &self.counters {
            sums.add(counters);
        }
        sums
    }

    /// The counters of a new handle.
    pub(crate) fn take_counters(&self) -> usize {
        let taken = self.handles_taken.fetch_add(1, Ordering::Relaxed) as usize;
        assert!(taken < self.counters.len(), "more handles than the store was made for");
        taken
    }

    #[inline]
    pub(crate) fn counters(&self, thread: usize) -> &StoreCounters {
        &self.counters[thread]
    }

    #[inline]
    pub(crate) fn next_cas(&self) -> u64 {
        self.take_cas(1) + 1
    }

    /// Returns the last CAS value taken.
    pub(crate) fn last_cas(&self) -> u64 {
        self.cas.last()
    }

    /// Takes `count` CAS values: those after the one returned.
    #[inline]
    pub(crate) fn take_cas(&self, count: u64) -> u64 {
        self.cas.take(&self.memory, count)
    }

    #[cfg(not(loom))]
    pub(crate) fn set_memory_limit_bytes(&self, bytes: u64) {
        self.memory_limit.store(bytes, Ordering::Relaxed);
    }

    /// The largest item that is not chained.
    #[inline]
    pub(crate) fn contiguous_bytes_max(&self) -> u64 {
        self.geometry.segment_bytes() / CONTIGUOUS_ITEM_DIVISOR
    }

    /// The longest value of a chunk.
    pub(crate) fn chunk_value_bytes_max(&self) -> usize {
        (crate::bounds::UPLOAD_CHUNK_BYTES as u64).min(self.geometry.segment_bytes() / 2) as usize
    }

    /// Chunks are not cut shorter than this, header included.
    pub(crate) fn chunk_bytes_min(&self) -> u64 {
        (self.geometry.segment_bytes() / crate::bounds::CHUNK_DIVISOR_MAX).max(crate::bounds::CHUNK_BYTES_MIN)
    }

    /// Free segments that reclaim keeps ready.
    pub(crate) fn free_segments_wanted(&self) -> usize {
        let wanted = self.segments.limit() as usize / FREE_SEGMENTS_WANTED_DIVISOR;
        // As many again that must wait for the grace.
        let waiting = if self.grace().is_zero() { 0 } else { wanted.max(FREE_SEGMENTS_WANTED_MIN) };
        let flash = if self.flash.is_some() { 2 * self.free_segments_least() } else { 0 };
        wanted.max(FREE_SEGMENTS_WANTED_MIN) + waiting + self.segments.kept_back(ClaimPurpose::New) + flash
    }

    /// Free segments below which writers wait for writes to flash: what others may take before they wait, too.
    pub(crate) fn free_segments_least(&self) -> usize {
        let taken = WRITTEN_BEFORE_WAIT_BYTES.div_ceil(self.geometry.segment_bytes()) as usize;
        let most = self.segments.limit() as usize / FREE_SEGMENTS_LEAST_DIVISOR_MIN;
        self.segments.kept_back(ClaimPurpose::New) + taken.min(most).max(1)
    }

    /// Returns how long an emptied segment is not overwritten ([`StoreOptions::grace`]).
    pub fn grace(&self) -> Duration {
        self.segments.grace()
    }

    /// The item at `offset`, if it has this key. The caller holds the lock of its slot.
    // Else the item is copied twice.
    #[inline(always)]
    pub(crate) fn item_of(&self, offset: u64, key: &[u8]) -> Option<Item> {
        let item = Item::read(&self.memory, offset)?;
        let is_its =
            usize::from(item.key_len) == key.len() && self.memory.equals(offset + item.key_at(), key);
        is_its.then_some(item)
    }

    /// Returns whether the item at `offset` has this key. The caller holds the lock of its slot.
    #[inline]
    pub(crate) fn has_key(&self, offset: u64, key: &[u8]) -> bool {
        self.item_of(offset, key).is_some()
    }

    /// Copies the key of the item at `offset`, whose header contains its length.
    pub(crate) fn copy_key<'b>(
        &self,
        offset: u64,
        item: &Item,
        into: &'b mut [u8; KEY_BYTES_MAX],
    ) -> &'b [u8] {
        let key_at = offset + item.key_at();
        // A damaged header at the region's end may describe a key beyond it.
        let left = self.memory.len().saturating_sub(key_at) as usize;
        let key = &mut into[..usize::from(item.key_len).min(KEY_BYTES_MAX).min(left)];
        if !key.is_empty() {
            self.memory.copy_out(key_at, key);
        }
        key
    }

    /// The hash of the key whose item is at `offset`; `None` if it is damaged. The caller holds the lock of its slot.
    pub(crate) fn hash_at(&self, offset: u64) -> Option<KeyHash> {
        if self.segments.has_unverified() {
            return self.hash_of_intact(offset);
        }
        let item = Item::read(&self.memory, offset).expect("a slot points into the region");
        Some(self.hash(self.copy_key(offset, &item, &mut [0; KEY_BYTES_MAX])))
    }

    /// Evicts an item for which a growing table has no room.
    pub(crate) fn evict_for_growth(
        &self,
        counters: &StoreCounters,
        hash: KeyHash,
        seen: SlotSnapshot,
        unlink: impl FnOnce(),
    ) {
        if seen.slot.is_on_flash() {
            unlink();
            return self.count_evicted_on_flash(seen.slot);
        }
        let offset = seen.slot.offset();
        let item = Item::read(&self.memory, offset).expect("a slot points into the region");
        self.note_eviction(counters, hash, seen, &item);
        self.kill_chunks(offset, &item);
        self.end_item(offset, &item, unlink);
    }

    /// Takes a segment for the index, if one is free.
    pub(crate) fn index_segment(&self) -> Option<u64> {
        self.segments.take_for_index()
    }
}

/// The index asks the store for hashes of keys it moves.
impl Rehash for Handle {
    fn may_evict(&self) -> bool {
        self.store.evicts()
    }

    fn hash_at(&self, offset: u64) -> Option<KeyHash> {
        self.store.hash_at(offset)
    }

    fn hashes_on_flash(&self, slots: &[(SlotSnapshot, KeyHash)]) -> Option<Vec<Option<KeyHash>>> {
        self.store.hashes_on_flash(slots)
    }

    fn discard(&self, seen: SlotSnapshot, unlink: impl FnOnce()) {
        match seen.slot.is_on_flash() {
            true => self.store.evict_for_growth(self.counters(), KeyHash(0), seen, unlink),
            false => self.store.discard_for_growth(seen, unlink),
        }
    }

    fn evict(&self, hash: KeyHash, seen: SlotSnapshot, unlink: impl FnOnce()) {
        self.store.evict_for_growth(self.counters(), hash, seen, unlink);
    }
}

const _: () = assert!(HEADER_BYTES_MAX + KEY_BYTES_MAX < 512, "headers are copied to the stack");
