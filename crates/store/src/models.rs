//! Models of the whole store under loom: the real handle, reads, writes and reclaim, over model memory.
//!
//! `cargo xtask loom` runs these, those of `index/models.rs` and `segments/models.rs`, and those of the layout.

mod damage;
mod kills;
pub(crate) mod outside;
mod recovery;

use std::sync::Arc;

use fabcache_layout::format::PARTITION_BYTES;
use fabcache_layout::format::SEGMENT_ENTRY_BYTES;
use fabcache_layout::item::{self, State};
use fabcache_layout::sync::{AtomicBool, Ordering};
use fabcache_layout::{Geometry, Item, Memory};
use loom::thread;

use crate::clock::TimeSource;
use crate::segments::{ClaimPurpose, Queue};
use crate::upload::Upload;
use crate::write::ExistingItem;
use crate::{
    Change, Detail, Expiry, FlashOptions, Get, Handle, Located, NewValue, Payload, Probe, Put, Store,
    StoreOptions, StoredItem, Value, Write,
};

/// Runs `model` in every interleaving that preempts threads at most `preemptions` times, with every value that a load
/// may see. Bugs of this kind of code need one or two preemptions; without a bound there is no end to it. The
/// environment's `LOOM_MAX_PREEMPTIONS` overrules the bound.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let started = std::time::Instant::now();
    let executions = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    // A bound on the length of one execution, not on their number.
    builder.max_branches = 100_000;
    let count = Arc::clone(&executions);
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let executions = executions.load(std::sync::atomic::Ordering::Relaxed);
    let thread = std::thread::current();
    println!("{}: {executions} executions, {:?}", thread.name().unwrap_or_default(), started.elapsed());
}

/// A clock that stays until it is set.
#[derive(Clone, Debug, Default)]
struct SetClock(Arc<std::sync::atomic::AtomicU64>);

impl SetClock {
    fn set(&self, seconds: u64) {
        self.0.store(seconds, std::sync::atomic::Ordering::Relaxed);
    }
}

impl TimeSource for SetClock {
    fn monotonic(&self) -> (u64, u32) {
        (self.0.load(std::sync::atomic::Ordering::Relaxed), 0)
    }

    fn wall(&self) -> (u64, u32) {
        (1_700_000_000, 0)
    }
}

const DIRECTORY: u64 = fabcache_layout::format::USED_BYTES;
const SEGMENT_SHIFT: u32 = 9;
/// Without eviction four are kept back.
const SEGMENTS: u32 = 8;
/// What a model uses of a segment: a table of one group, or two items.
const USED_BYTES: u64 = 96;

fn store() -> (Arc<Store>, SetClock) {
    store_that(false)
}

/// A store that evicts (and so moves items to gain memory) or not.
fn store_that(evict: bool) -> (Arc<Store>, SetClock) {
    store_of(evict, USED_BYTES)
}

/// A store that does not evict, of whose segments more bytes are used.
fn store_that_uses(used_bytes: u64) -> (Arc<Store>, SetClock) {
    store_of(false, used_bytes)
}

/// A store that evicts, with a flash tier.
pub(crate) fn store_with_flash(flash: FlashOptions) -> Arc<Store> {
    store_from(StoreOptions { flash: Some(flash), ..options(true) }, 2 * USED_BYTES).0
}

fn store_of(evict: bool, used_bytes: u64) -> (Arc<Store>, SetClock) {
    store_from(options(evict), used_bytes)
}

fn store_from(options: StoreOptions, used_bytes: u64) -> (Arc<Store>, SetClock) {
    let segment_table = DIRECTORY + PARTITION_BYTES;
    let first_segment = (segment_table + u64::from(SEGMENTS) * SEGMENT_ENTRY_BYTES).next_multiple_of(64);
    let geometry = Geometry {
        region_bytes: first_segment + (u64::from(SEGMENTS) << SEGMENT_SHIFT),
        partition_bits: 0,
        block_shift: 0,
        segment_shift: SEGMENT_SHIFT,
        segments: SEGMENTS,
        directory: DIRECTORY,
        segment_table,
        first_segment,
    };
    let clock = SetClock::default();
    let options = StoreOptions { time: Box::new(clock.clone()), ..options };
    let memory = Memory::sparse(geometry.region_bytes, |offset| {
        geometry.segment_of(offset).is_none_or(|id| offset < geometry.segment_offset(id) + used_bytes)
    });
    (Arc::new(Store::model(options, geometry, memory).expect("memory for a model")), clock)
}

fn options(evict: bool) -> StoreOptions {
    StoreOptions { threads: 4, evict, time: Box::new(SetClock::default()), ..StoreOptions::default() }
}

fn set(handle: &Handle, key: &[u8], value: &[u8], expiry: Expiry) -> StoredItem {
    let write = Write { expiry, ..plain(NewValue::Is(Value::Bytes(value))) };
    handle.mutate(key, |_| (Change::Write(write), ())).expect("memory enough").1
}

fn plain(value: NewValue<'_>) -> Write<'_> {
    Write { cas: Some(1), ..Write::plain(value) }
}

fn get(handle: &Handle, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match handle.get(key, Detail::Basic, true, &mut out, |_, _| {}) {
        Get::Hit(info, Payload::Copied) => {
            assert_eq!(info.len, out.len() as u64);
            Some(out)
        }
        Get::Hit(_, Payload::Pinned(pinned)) => Some(pinned.copy()),
        Get::Miss(_) => None,
        Get::OnFlash => panic!("models with a flash tier read it"),
    }
}

/// Empties the sealed segment without live items, if it is not pinned.
fn reclaim(handle: &Handle) {
    let store = handle.store();
    let mut reclaim = store.reclaim.lock().expect("no other thread fails");
    for _ in 0..2 {
        store.reclaim_step(&mut reclaim, handle.counters(), 8);
    }
}

/// Seconds to live, longer than any model.
const LATER: i64 = 1_000;

/// Reads a key by a probe that may be old.
fn read_located(handle: &Handle, key: &[u8], probe: &Probe) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match handle.locate(key, probe) {
        Located::Item(item) if handle.append_value(&item, &mut out) => Some(out),
        Located::Item(_) | Located::Unsettled | Located::OnFlash => get(handle, key),
        Located::Miss(_) => None,
    }
}

/// A reader of `a` meets a writer that replaces it, has its segment reclaimed, and writes `b` where it was. The reader
/// may have probed the index before the writer began, as in a batch.
fn a_read_while_its_segment_is_used_again(
    preemptions: usize,
    value_len: usize,
    other_expiry: i64,
    is_batched: bool,
) {
    check(preemptions, move || {
        let (store, clock) = store();
        let main = Handle::new(&store);
        let [old, new, other] = [b'1', b'2', b'3'].map(|digit| vec![digit; value_len]);
        set(&main, b"a", &old, expiry_of(&store, LATER));
        store.segments.seal_open(|_| true);
        // A second later an access is noted in the state word.
        clock.set(1);
        store.tick();
        let probe = main.probe(b"a");
        let writer = {
            let (store, new, other) = (Arc::clone(&store), new.clone(), other.clone());
            thread::spawn(move || {
                let handle = Handle::new(&store);
                set(&handle, b"a", &new, expiry_of(&store, LATER));
                reclaim(&handle);
                store.segments.seal_open(|_| true);
                set(&handle, b"b", &other, expiry_of(&store, other_expiry));
            })
        };
        let found = if is_batched { read_located(&main, b"a", &probe) } else { get(&main, b"a") };
        let found = found.expect("never a miss: it was replaced, not removed");
        assert!(found == old || found == new, "the old or the new value: {found:?}");
        writer.join().expect("written");
        assert_eq!(get(&main, b"a").as_ref(), Some(&new));
        if other_expiry >= 0 {
            let hash = store.hash(b"b");
            let at = store.index.lock(hash).find(hash, |slot| store.has_key(slot.offset(), b"b"));
            let item =
                Item::read(&store.memory, at.expect("the key exists").slot.offset()).expect("in the region");
            assert_eq!(item.state.window(), 1, "no access was recorded");
            assert_eq!(get(&main, b"b"), Some(other));
        }
        assert_eq!(store.usage().segments_pinned, 0);
    });
}

#[test]
fn access_is_not_recorded_for_another_item() {
    a_read_while_its_segment_is_used_again(1, 8, LATER, false);
}

/// A reader notes its access in the state word in which a writer marks the item dead.
#[test]
fn dead_mark_is_kept_though_an_access_is_noted() {
    check(2, || {
        let (store, clock) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        let hash = store.hash(b"a");
        let at = store.index.lock(hash).find(hash, |_| true).expect("the key exists").slot.offset();
        // A second later an access is noted.
        clock.set(1);
        store.tick();
        let reader = {
            let store = Arc::clone(&store);
            thread::spawn(move || get(&Handle::new(&store), b"a"))
        };
        set(&main, b"a", b"2", Expiry::NEVER);
        assert!(reader.join().expect("read").is_some(), "it was replaced, not removed");
        assert!(item::load_state(&store.memory, at).has(State::DEAD));
    });
}

#[test]
fn dead_item_is_not_read_after_its_mark() {
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        let hash = store.hash(b"a");
        let at = store.index.lock(hash).find(hash, |_| true).expect("the key exists").slot.offset();
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || set(&Handle::new(&store), b"a", b"2", Expiry::NEVER))
        };
        let is_dead = item::load_state(&store.memory, at).has(State::DEAD);
        let found = get(&main, b"a");
        assert!(found.as_deref() == Some(b"2") || !is_dead && found.as_deref() == Some(b"1"), "{found:?}");
        writer.join().expect("written");
    });
}

/// A writer that died between the mark and the slot leaves a slot of a dead item.
#[test]
fn slot_of_a_dead_item_is_a_miss_and_cleared() {
    check(1, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        let hash = store.hash(b"a");
        let at = store.index.lock(hash).find(hash, |_| true).expect("the key exists").slot.offset();
        item::mark_dead(&store.memory, at);
        assert_eq!(get(&main, b"a"), None);
        assert!(store.index.lock(hash).find(hash, |_| true).is_none(), "the slot is cleared");
        set(&main, b"a", b"2", Expiry::NEVER);
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn batched_read_meets_a_reused_segment() {
    a_read_while_its_segment_is_used_again(1, 8, LATER, true);
}

#[test]
fn successor_of_an_expired_item_is_not_removed() {
    check(1, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", expiry_of(&store, -1));
        store.segments.seal_open(|_| true);
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let handle = Handle::new(&store);
                reclaim(&handle);
                // The same key in the same bucket, so its slot is the same.
                set(&handle, b"a", b"2", expiry_of(&store, LATER));
            })
        };
        // A reader removes an expired item.
        assert_ne!(get(&main, b"a").as_deref(), Some(&b"1"[..]), "it is expired");
        writer.join().expect("written");
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn expiry_walk_keeps_replacements() {
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", expiry_of(&store, -1));
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let handle = Handle::new(&store);
                store.segments.seal_open(|_| true);
                reclaim(&handle);
                // The same key, and at the same place if that was freed.
                set(&handle, b"a", b"2", expiry_of(&store, LATER));
            })
        };
        main.maintain();
        writer.join().expect("written");
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"2"[..]));
        main.maintain();
        assert_eq!(store.usage().items, 1, "the expired item was removed");
    });
}

#[test]
fn segment_is_reused_only_after_slots_of_its_dead_items_changed() {
    // Another thread than the one that replaces `a` reuses the segment of the old one.
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        store.segments.seal_open(|_| true);
        let reclaimer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let handle = Handle::new(&store);
                let before = store.segments.free_count();
                for id in 0..SEGMENTS {
                    store.free_dead(id, handle.counters());
                }
                if store.segments.free_count() > before {
                    store.segments.seal_open(|_| true);
                    // Chunks are written without the lock of a group, which the thread that replaces `a` may hold.
                    let owner = store.hash(b"b");
                    let chunk = store.write_chunk(
                        owner,
                        Queue::Small,
                        Expiry::NEVER,
                        b"3",
                        ClaimPurpose::Move,
                        false,
                    );
                    store.kill_chunk(chunk.expect("memory enough"));
                }
                let found = get(&handle, b"a");
                assert!(matches!(found.as_deref(), Some(b"1" | b"2")), "{found:?}");
            })
        };
        set(&main, b"a", b"2", Expiry::NEVER);
        reclaimer.join().expect("reclaimed");
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn item_moved_by_reclaim_is_found() {
    check(1, || {
        let (store, _) = store_that(true);
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        store.segments.seal_open(|_| true);
        let mover = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let handle = Handle::new(&store);
                reclaim(&handle);
                assert_eq!(store.sums().items_moved, 1);
                set(&handle, b"b", b"2", Expiry::NEVER);
            })
        };
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"1"[..]), "never a miss");
        mover.join().expect("moved");
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"1"[..]));
        assert_eq!(get(&main, b"b").as_deref(), Some(&b"2"[..]));
    });
}

#[test]
fn chunked_value_is_the_old_or_the_new_one() {
    // The place of the old one's chunk is reused; its head follows it.
    check(1, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        let mut upload = Upload::begin(&store, b"a", Expiry::NEVER, 8);
        upload.write(&main, b"11111111").expect("memory enough");
        let uploaded = upload.finish_in_chunks(&main).expect("memory enough");
        let write = plain(NewValue::Is(Value::CompletedUpload(&uploaded)));
        main.mutate(b"a", |_| (Change::Write(write), ())).expect("memory enough");
        store.segments.seal_open(|_| true);
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let handle = Handle::new(&store);
                set(&handle, b"a", b"22222222", Expiry::NEVER);
                reclaim(&handle);
                store.segments.seal_open(|_| true);
                set(&handle, b"b", b"33333333", Expiry::NEVER);
            })
        };
        let found = get(&main, b"a").expect("never a miss: it was replaced, not removed");
        assert!(found == b"11111111" || found == b"22222222", "the old or the new value: {found:?}");
        writer.join().expect("written");
        assert_eq!(get(&main, b"a").as_deref(), Some(&b"22222222"[..]));
        assert_eq!(store.usage().segments_pinned, 0);
    });
}

/// A run replaces a key and adds two while another thread seals its segment and reclaims what it may.
#[test]
fn run_of_writes_is_whole_though_its_segment_is_sealed() {
    check(1, || {
        let (store, _) = store_that(true);
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let handle = Handle::new(&store);
                let put = |key, value| Put { key, value, ..Put::default() };
                let puts = [put(b"a", b"2"), put(b"b", b"3"), put(b"a", b"4")];
                let probes = puts.map(|put| handle.probe_for_write(put.key));
                handle.put_many(&puts, &probes, |_, _| ()).expect("memory enough");
            })
        };
        store.segments.seal_open(|_| true);
        reclaim(&main);
        let found = get(&main, b"a");
        assert!(found.is_none_or(|found| [b"1", b"2", b"4"].iter().any(|value| found == *value)));
        writer.join().expect("written");
        // Reclaim may have evicted them, but nothing else.
        assert!(get(&main, b"a").is_none_or(|found| found == b"4"));
        assert!(get(&main, b"b").is_none_or(|found| found == b"3"));
        for key in [b"a", b"b"] {
            main.mutate(key, |_| (Change::Remove, ())).expect("nothing is stored");
        }
        let usage = store.usage();
        assert_eq!((usage.items, usage.item_bytes), (0, 0), "each death was counted once");
    });
}

fn expiry_of(store: &Store, seconds: i64) -> Expiry {
    Expiry::from_client(seconds, store.now(), store.clock_origin())
}

#[test]
fn pinned_value_is_the_old_or_the_new_one() {
    a_read_while_its_segment_is_used_again(2, 24, LATER, false);
}

#[test]
fn copied_value_is_the_old_or_the_new_one() {
    // The other item is expired, and must not be mistaken for the key's.
    a_read_while_its_segment_is_used_again(2, 8, -1, false);
}

#[test]
fn increments_are_not_lost() {
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"n", b"0", Expiry::NEVER);
        let add = |handle: &Handle| {
            let done = handle.mutate(b"n", |existing| {
                let number = existing.value(4).expect("a number")[0] - b'0';
                (Change::Write(plain(NewValue::Number { number: u64::from(number) + 1, width: 1 })), ())
            });
            done.expect("memory enough");
        };
        let other = {
            let store = Arc::clone(&store);
            thread::spawn(move || add(&Handle::new(&store)))
        };
        add(&main);
        other.join().expect("added");
        assert_eq!(get(&main, b"n").as_deref(), Some(&b"2"[..]));
        assert_eq!(store.usage().items, 1, "the accounts agree");
        assert_eq!(store.sums().total_items, 3);
    });
}

#[test]
fn removed_item_does_not_reappear() {
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        let remover = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let handle = Handle::new(&store);
                handle.mutate(b"a", |_| (Change::Remove, ())).expect("removing needs no memory");
                assert_eq!(get(&handle, b"a"), None, "as answered");
            })
        };
        let seen = [get(&main, b"a"), get(&main, b"a")];
        assert!(seen[0].is_some() || seen[1].is_none(), "an evicted item does not reappear");
        remover.join().expect("removed");
        assert_eq!((get(&main, b"a"), store.usage().items), (None, 0));
    });
}

#[test]
fn flushed_item_is_not_visible_after_the_reply() {
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        let answered = Arc::new(AtomicBool::new(false));
        let flusher = {
            let (store, answered) = (Arc::clone(&store), Arc::clone(&answered));
            thread::spawn(move || {
                Handle::new(&store).flush(expiry_of(&store, -1));
                answered.store(true, Ordering::Release);
            })
        };
        let was_answered = answered.load(Ordering::Acquire);
        let seen = get(&main, b"a");
        assert!(!was_answered || seen.is_none(), "flushed before the read began");
        flusher.join().expect("flushed");
        assert_eq!((get(&main, b"a"), store.usage().items), (None, 0));
    });
}

#[test]
fn flushed_item_is_not_revived_by_a_derived_item() {
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        set(&main, b"a", b"1", Expiry::NEVER);
        let toucher = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                let touch = |existing: &mut ExistingItem<'_>| match existing.info {
                    Ok(_) => (Change::Write(Write::plain(NewValue::Same)), ()),
                    Err(_) => (Change::Keep, ()),
                };
                Handle::new(&store).mutate(b"a", touch).expect("there is room");
            })
        };
        main.flush(expiry_of(&store, -1));
        assert_eq!(get(&main, b"a"), None, "stored before the flush");
        toucher.join().expect("touched");
        assert_eq!(get(&main, b"a"), None, "and not since");
    });
}

#[test]
fn flush_finding_nothing_new_missed_no_answered_write() {
    check(2, || {
        let (store, _) = store();
        let main = Handle::new(&store);
        // From now on there is nothing to flush.
        main.flush(expiry_of(&store, -1));
        let answered = Arc::new(AtomicBool::new(false));
        let writer = {
            let (store, answered) = (Arc::clone(&store), Arc::clone(&answered));
            thread::spawn(move || {
                set(&Handle::new(&store), b"a", b"1", Expiry::NEVER);
                answered.store(true, Ordering::Release);
            })
        };
        let was_answered = answered.load(Ordering::Acquire);
        main.flush(expiry_of(&store, -1));
        assert!(!was_answered || get(&main, b"a").is_none(), "stored before the flush began");
        writer.join().expect("stored");
        main.flush(expiry_of(&store, -1));
        assert_eq!(get(&main, b"a"), None);
    });
}

#[test]
fn published_clock_never_goes_back() {
    check(3, || {
        let (store, clock) = store();
        let tickers = [1, 2].map(|seconds| {
            let (store, clock) = (Arc::clone(&store), clock.clone());
            thread::spawn(move || {
                clock.set(seconds);
                store.tick();
            })
        });
        let seen = [store.now(), store.now()];
        assert!(seen[0] <= seen[1]);
        for ticker in tickers {
            ticker.join().expect("ticked");
        }
        assert!(store.now() >= seen[1] && store.now() > crate::clock::FIRST_SECOND);
    });
}
