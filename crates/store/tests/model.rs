//! The store against a map, under random operations, clock jumps, flushes, eviction and clean restarts. While memory is not full, the
//! store must hold all items of the map; afterwards it may have lost some, but must never be wrong.
#![cfg(not(loom))]

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::{SetClock, delete, get, plain, set, set_with, store};
use fabcache_store::backing::BackingOptions;
use fabcache_store::bounds::RUN_SETS_MAX;
use fabcache_store::restart::Unclean;
use fabcache_store::{
    Change, Detail, Expiry, Handle, NewValue, Opening, OutOfMemory, Probe, Put, Store, StoreOptions, Upload,
    Value, Write,
};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::cleanup::Folder;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Set { key: u16, len: usize, flags: u32, ttl: i64 },
    SetMany { sets: Vec<(u16, usize, i64)> },
    Upload { key: u16, len: usize, finish: bool },
    Add { key: u16, len: usize },
    Join { key: u16, len: usize, after: bool, uploaded: bool },
    Cas { key: u16, len: usize, right: bool },
    Touch { key: u16, ttl: i64 },
    Delete { key: u16 },
    Get { key: u16 },
    Advance { seconds: u64 },
    Flush { delay: i64 },
    Maintain,
    Restart,
    Kill,
}

/// Adds bytes as a link does that receives them into the upload's space.
fn receive_into(upload: &mut Upload, handle: &Handle, mut bytes: &[u8]) -> Result<(), OutOfMemory> {
    while !bytes.is_empty() {
        let space = upload.space();
        let len = space.len().min(bytes.len());
        space[..len].copy_from_slice(&bytes[..len]);
        upload.fill(handle, len)?;
        bytes = &bytes[len..];
    }
    Ok(())
}

/// Adds bytes as a link does that receives them into a chunk: as many as there is space for, or fewer.
fn receive_chunk(upload: &mut Upload, handle: &Handle, bytes: &[u8], is_short: bool) -> usize {
    if upload.chunk_rest() > bytes.len() {
        return 0;
    }
    let (mut taken, missing) = (0, upload.missing());
    let space = upload.receive_chunk(handle, |space, is_last| {
        assert_eq!(is_last, space.len() as u64 == missing);
        assert!(space.len() <= bytes.len(), "more space than available bytes");
        taken = if is_short { space.len() / 3 } else { space.len() };
        space[..taken].copy_from_slice(&bytes[..taken]);
        taken
    });
    assert!(space.is_some() || taken == 0);
    taken
}

fn op(keys: u16, len_max: usize) -> impl Strategy<Value = Op> {
    let len = prop_oneof![4 => 0usize..200, 2 => 0..len_max / 8, 1 => 0..len_max];
    let ttl = prop_oneof![4 => Just(0i64), 4 => 1i64..40, 1 => Just(-1i64), 1 => Just(1_700_000_020)];
    let key = 0..keys;
    let set = (key.clone(), len.clone(), ttl.clone());
    prop_oneof![
        4 => prop::collection::vec(set, 1..=RUN_SETS_MAX).prop_map(|sets| Op::SetMany { sets }),
        12 => (key.clone(), len.clone(), prop_oneof![Just(0u32), any::<u32>()], ttl.clone())
            .prop_map(|(key, len, flags, ttl)| Op::Set { key, len, flags, ttl }),
        2 => (key.clone(), len.clone(), prop::bool::weighted(0.8)).prop_map(|(key, len, finish)| Op::Upload { key, len, finish }),
        2 => (key.clone(), len.clone()).prop_map(|(key, len)| Op::Add { key, len }),
        5 => (key.clone(), len.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(key, len, after, uploaded)| Op::Join { key, len, after, uploaded }),
        2 => (key.clone(), len, any::<bool>()).prop_map(|(key, len, right)| Op::Cas { key, len, right }),
        2 => (key.clone(), ttl).prop_map(|(key, ttl)| Op::Touch { key, ttl }),
        2 => key.clone().prop_map(|key| Op::Delete { key }),
        12 => key.prop_map(|key| Op::Get { key }),
        2 => (0u64..15).prop_map(|seconds| Op::Advance { seconds }),
        1 => (-1i64..10).prop_map(|delay| Op::Flush { delay }),
        2 => Just(Op::Maintain),
        1 => Just(Op::Restart),
        1 => Just(Op::Kill),
    ]
}

#[derive(Clone, Debug)]
struct ExpectedItem {
    value: Vec<u8>,
    flags: u32,
    expiry: u32,
    cas: u64,
}

struct Model {
    handle: Handle,
    clock: SetClock,
    known: HashMap<u16, ExpectedItem>,
    flush_at: Option<u32>,
    seed: u64,
    /// Memory was full at some time, so the store may have lost items.
    may_forget: bool,
    value_max: usize,
    memory_bytes: u64,
    evict: bool,
    folder: Folder,
}

/// Opens the store in the folder.
fn open(folder: &Folder, memory_bytes: u64, evict: bool, clock: &SetClock) -> (Handle, Opening) {
    let options = StoreOptions {
        memory_bytes,
        memory_bytes_max: memory_bytes,
        backing: BackingOptions { file: Some(folder.path().join("region")), ..BackingOptions::default() },
        evict,
        time: Box::new(clock.clone()),
        ..StoreOptions::default()
    };
    let store = Store::open(options).expect("memory for a test");
    let (opening, _) = store.opening();
    (Handle::new(&Arc::new(store)), opening)
}

impl Model {
    fn new(memory_bytes: u64, evict: bool, may_forget: bool, value_max: usize) -> Model {
        let folder = Folder::new("fabcache-model").expect("a folder");
        let clock = SetClock::default();
        let (handle, opening) = open(&folder, memory_bytes, evict, &clock);
        assert_eq!(opening, Opening::New);
        let known = HashMap::new();
        let seed = 0;
        Model {
            handle,
            clock,
            known,
            flush_at: None,
            seed,
            may_forget,
            value_max,
            memory_bytes,
            evict,
            folder,
        }
    }

    /// Ends without saving anything and starts again: items are as before, but for what finds no room when it is moved out
    /// of a segment that was open. Recovery is finished at once, or goes on with the requests that follow.
    fn kill(&mut self) {
        let before = self.handle.store().usage();
        let (last_cas, second) = (set_with(&self.handle, b"last", b"", 0, Expiry::NEVER).ok(), self.now());
        self.handle = Handle::new(&store(1 << 20, true, 1).0);
        let (handle, opening) = open(&self.folder, self.memory_bytes, self.evict, &self.clock);
        self.handle = handle;
        assert_eq!(opening, Opening::Recovered { why: Unclean::NotStopped });
        if self.seed.is_multiple_of(2) {
            assert!(self.handle.finish_restart(&mut || true));
            let after = self.handle.store().usage();
            // A chunk that is moved may be cut in several, each with a header.
            let most = before.item_bytes + before.segment_bytes / 8;
            assert!(after.items <= before.items + 1 && after.item_bytes <= most, "{before:?} {after:?}");
        }
        assert_eq!(self.now(), second);
        if last_cas.is_some() {
            delete(&self.handle, b"last");
        }
        let whole_max = before.segment_bytes as usize / 4 - 300;
        for key in self.known.keys().copied().collect::<Vec<_>>() {
            let is_lost = self.valid(key).is_some() && get(&self.handle, &name(key)).is_none();
            if is_lost {
                let known = self.known.remove(&key).expect("one of its keys");
                let is_whole = known.value.len() <= whole_max;
                assert!(
                    !is_whole || self.may_forget || !self.evict,
                    "key {key} of {} bytes is lost",
                    known.value.len()
                );
            }
        }
        let next = set_with(&self.handle, b"last", b"", 0, Expiry::NEVER).ok();
        assert!(next.zip(last_cas).is_none_or(|(next, last)| next > last), "{next:?} after {last_cas:?}");
        if next.is_some() {
            delete(&self.handle, b"last");
        }
    }

    /// Stops cleanly and starts again: every item and every account is as before.
    fn restart(&mut self) {
        let account = |handle: &Handle| {
            let usage = handle.store().usage();
            let index =
                (usage.index_bytes, usage.index_slots, usage.index_chain_buckets, usage.index_growing);
            (usage.items, usage.item_bytes, usage.segments, usage.segments_index, index)
        };
        assert!(self.handle.finish_restart(&mut || true));
        let before = account(&self.handle);
        let second = self.now();
        let kept = self.handle.store().keep().expect("nothing is in use");
        assert_eq!(kept, Some(before.0));
        // The file is locked until the store is gone.
        self.handle = Handle::new(&store(1 << 20, true, 1).0);
        let (handle, opening) = open(&self.folder, self.memory_bytes, self.evict, &self.clock);
        self.handle = handle;
        assert_eq!(opening, Opening::Kept { items: before.0, clock_went_back: false });
        assert_eq!((account(&self.handle), self.now()), (before, second));
    }

    fn now(&self) -> u32 {
        self.handle.store().now()
    }

    fn expiry(&self, seconds: i64) -> Expiry {
        Expiry::from_client(seconds, self.now(), self.handle.store().clock_origin())
    }

    fn next_value(&mut self, len: usize) -> Vec<u8> {
        self.seed += 1;
        pattern(self.seed, len)
    }

    /// Returns the item that the map holds for the key.
    fn valid(&self, key: u16) -> Option<&ExpectedItem> {
        self.known.get(&key).filter(|known| known.expiry == 0 || known.expiry > self.now())
    }

    /// Updates the map from an observed result, and returns whether the key exists.
    fn look(&mut self, key: u16) -> Option<ExpectedItem> {
        let found = get(&self.handle, &name(key));
        let valid = self.valid(key).cloned();
        match (&found, &valid) {
            (Some((info, value)), Some(known)) => {
                assert!(
                    value == &known.value,
                    "key {key}: another value of {} bytes, not {}",
                    value.len(),
                    known.value.len()
                );
                assert_eq!(
                    (info.flags, info.cas, info.expiry.second()),
                    (known.flags, known.cas, known.expiry)
                );
                valid
            }
            (Some((info, _)), None) => panic!("key {key} should not exist: {info:?}"),
            (None, Some(_)) => {
                assert!(self.may_forget, "key {key} was lost though memory is not full");
                self.known.remove(&key);
                None
            }
            (None, None) => None,
        }
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::SetMany { ref sets } => self.set_many(sets),
            Op::Set { key, len, flags, ttl } => {
                let (value, expiry) = (self.next_value(len), self.expiry(ttl));
                let (handle, key_name) = (&self.handle, name(key));
                // By the short way and by the general one.
                let stored = if flags == 0 {
                    let probe = handle.probe_for_write(&key_name);
                    handle
                        .put(&Put { key: &key_name, value: &value, flags, expiry }, &probe)
                        .map(|stored| stored.cas)
                } else {
                    set_with(handle, &key_name, &value, flags, expiry)
                };
                match stored {
                    Ok(cas) => drop(
                        self.known.insert(key, ExpectedItem { value, flags, expiry: expiry.second(), cas }),
                    ),
                    Err(_) => self.refused(),
                }
            }
            Op::Upload { key, len, finish } => self.upload(key, len, finish),
            Op::Add { key, len } => self.add(key, len),
            Op::Join { key, len, after, uploaded } => self.join(key, len, after, uploaded),
            Op::Cas { key, len, right } => self.compare_and_swap(key, len, right),
            Op::Touch { key, ttl } => self.touch(key, ttl),
            Op::Delete { key } => {
                let there = self.look(key).is_some();
                assert_eq!(delete(&self.handle, &name(key)), there);
                self.known.remove(&key);
            }
            Op::Get { key } => drop(self.look(key)),
            Op::Advance { seconds } => {
                self.clock.advance(seconds);
                self.handle.store().tick();
                if self.flush_at.is_some_and(|at| at <= self.now()) {
                    self.flush_at = None;
                    self.known.clear();
                }
            }
            Op::Flush { delay } => {
                let expiry = self.expiry(delay);
                self.handle.flush(expiry);
                self.flush_at = Some(expiry.second()).filter(|at| *at > self.now());
                if self.flush_at.is_none() && expiry != Expiry::NEVER {
                    self.known.clear();
                }
            }
            Op::Maintain => self.handle.maintain(),
            Op::Restart => self.restart(),
            Op::Kill => self.kill(),
        }
    }

    /// Stores a run; every key then has its last value, under a CAS value greater than before.
    fn set_many(&mut self, sets: &[(u16, usize, i64)]) {
        let items: Vec<_> = sets
            .iter()
            .map(|(key, len, ttl)| (*key, name(*key), self.next_value(*len), self.expiry(*ttl)))
            .collect();
        let puts: Vec<Put<'_>> = items
            .iter()
            .map(|(_, key, value, expiry)| Put { key, value, flags: 0, expiry: *expiry })
            .collect();
        let mut probes = [Probe::NONE; RUN_SETS_MAX];
        self.handle.probe_many(puts.iter().map(|put| put.key), &mut probes);
        let mut told = Vec::new();
        let done = self.handle.put_many(&puts, &probes, |i, item| {
            assert_eq!(i, told.len(), "in order");
            told.push(item.cas);
        });
        let stored = done.map_or_else(|incomplete| incomplete.stored, |()| items.len());
        assert_eq!(told.len(), stored);
        if done.is_err() {
            self.refused();
        }
        let mut last = HashMap::new();
        for ((key, _, value, expiry), told) in items.iter().zip(told) {
            last.insert(*key, (value, expiry.second(), told));
        }
        for (key, (value, expiry, told)) in last {
            let before = self.known.remove(&key).map_or(0, |known| known.cas);
            let cas = get(&self.handle, &name(key)).map(|(info, _)| info.cas);
            assert!(cas.is_none_or(|cas| cas > before), "{cas:?} is not greater than {before}");
            assert!(cas.is_none_or(|cas| cas == told), "{cas:?} instead of {told}");
            let item = ExpectedItem { value: value.clone(), flags: 0, expiry, cas: cas.unwrap_or(0) };
            self.known.insert(key, item);
            self.look(key);
        }
    }

    fn add(&mut self, key: u16, len: usize) {
        let value = self.next_value(len);
        let there = self.look(key).is_some();
        let write = plain(NewValue::Is(Value::Bytes(&value)));
        let done = self.handle.mutate(&name(key), |existing| match existing.info {
            Ok(_) => (Change::Keep, false),
            Err(_) => (Change::Write(write), true),
        });
        match done {
            Ok((added, written)) => {
                assert_eq!(added, !there);
                if added {
                    self.known.insert(key, ExpectedItem { value, flags: 0, expiry: 0, cas: written.cas });
                }
            }
            Err(_) => self.refused(),
        }
    }

    fn compare_and_swap(&mut self, key: u16, len: usize, right: bool) {
        let value = self.next_value(len);
        let Some(known) = self.look(key) else { return };
        let wanted = if right { known.cas } else { known.cas + 1 };
        let write = plain(NewValue::Is(Value::Bytes(&value)));
        let done = self.handle.mutate(&name(key), |existing| match existing.info {
            Ok(info) if info.cas == wanted => (Change::Write(write), Some(true)),
            Ok(_) => (Change::Keep, Some(false)),
            Err(_) => (Change::Keep, None),
        });
        match done {
            Ok((Some(true), written)) => {
                assert!(right);
                self.known.insert(key, ExpectedItem { value, flags: 0, expiry: 0, cas: written.cas });
            }
            Ok((Some(false), _)) => assert!(!right),
            Ok((None, _)) => assert!(self.may_forget),
            Err(_) => self.refused(),
        }
    }

    /// Checks that a write was refused for lack of memory only.
    fn refused(&self) {
        let usage = self.handle.store().usage();
        assert!(
            self.may_forget || !self.handle.store().evicts(),
            "refused though memory is not full: {usage:?}"
        );
    }

    fn upload(&mut self, key: u16, len: usize, finish: bool) {
        let value = self.next_value(len);
        let mut upload = Upload::begin(self.handle.store(), &name(key), Expiry::NEVER, len as u64);
        let cut = if finish { len } else { len / 2 };
        for (number, chunk) in value[..cut].chunks(10_000).enumerate() {
            let mut chunk = chunk;
            if number % 2 == 1 {
                chunk = &chunk[receive_chunk(&mut upload, &self.handle, chunk, number % 4 == 1)..];
            }
            let written = match number % 3 {
                0 => upload.write(&self.handle, chunk),
                _ => receive_into(&mut upload, &self.handle, chunk),
            };
            if written.is_err() {
                return self.refused();
            }
            if number % 4 == 3 {
                upload.settle();
            }
        }
        if !finish {
            return;
        }
        let Ok(uploaded) = upload.finish(&self.handle) else { return self.refused() };
        let write = plain(NewValue::Is(Value::CompletedUpload(&uploaded)));
        match self.handle.mutate(&name(key), |_| (Change::Write(write), ())) {
            Ok((_, written)) => {
                drop(self.known.insert(key, ExpectedItem { value, flags: 0, expiry: 0, cas: written.cas }))
            }
            Err(_) => self.refused(),
        }
    }

    fn join(&mut self, key: u16, len: usize, after: bool, uploaded: bool) {
        let part = self.next_value(len);
        let Some(known) = self.look(key) else { return };
        if known.value.len() + len > self.value_max {
            return;
        }
        let upload = uploaded.then(|| {
            let mut upload = Upload::begin(self.handle.store(), &name(key), Expiry::NEVER, len as u64);
            upload.write(&self.handle, &part).and_then(|()| upload.finish(&self.handle))
        });
        let value = match &upload {
            None => Value::Bytes(&part),
            Some(Ok(uploaded)) => Value::CompletedUpload(uploaded),
            Some(Err(_)) => return self.refused(),
        };
        let done = self.handle.mutate(&name(key), |existing| match existing.info {
            Ok(info) => {
                let value = if after { NewValue::Appended(value) } else { NewValue::Prepended(value) };
                let write = Write { flags: info.flags, expiry: info.expiry, same_item: true, ..plain(value) };
                (Change::Write(write), true)
            }
            Err(_) => (Change::Keep, false),
        });
        match done {
            Ok((true, written)) => {
                let value = if after { [known.value, part].concat() } else { [part, known.value].concat() };
                self.known.insert(key, ExpectedItem { value, cas: written.cas, ..known });
            }
            Ok((false, _)) => assert!(self.may_forget),
            Err(_) => self.refused(),
        }
    }

    fn touch(&mut self, key: u16, ttl: i64) {
        let expiry = self.expiry(ttl);
        let there = self.look(key);
        let done = self.handle.mutate(&name(key), |existing| match existing.info {
            Ok(info) => {
                let write = Write {
                    flags: info.flags,
                    expiry,
                    cas: Some(info.cas),
                    same_item: true,
                    ..plain(NewValue::Same)
                };
                (Change::Write(write), true)
            }
            Err(_) => (Change::Keep, false),
        });
        match done {
            Ok((touched, _)) => {
                assert!(touched == there.is_some() || self.may_forget);
                if let (true, Some(known)) = (touched, there) {
                    self.known.insert(key, ExpectedItem { expiry: expiry.second(), ..known });
                }
            }
            Err(_) => self.refused(),
        }
    }

    /// At the end every item is read, by key and by a walk, and the accounting must be right.
    fn finish(mut self) {
        for key in self.known.keys().copied().collect::<Vec<_>>() {
            self.look(key);
        }
        let mut seen = Vec::new();
        let mut cursor = fabcache_store::dump::Cursor::START;
        let mut bytes = 0;
        while !cursor.is_done() {
            let visit = |visited: fabcache_store::dump::VisitedItem<'_>| {
                seen.push(visited.key.to_vec());
                bytes += visited.info.bytes;
            };
            cursor = self.handle.walk(cursor, visit, |_| {});
        }
        seen.sort();
        let mut known: Vec<_> =
            self.known.keys().filter(|key| self.valid(**key).is_some()).map(|key| name(*key)).collect();
        known.sort();
        assert_eq!(seen, known, "a walk visits every key once");
        for key in seen {
            self.handle.describe(&key, Detail::Full, true).expect("the key was just seen");
            assert!(delete(&self.handle, &key));
        }
        self.handle.crawl();
        let usage = self.handle.store().usage();
        assert_eq!((usage.items, usage.item_bytes, usage.segments_pinned), (0, 0, 0), "everything is freed");
        assert!(bytes < usage.memory_limit);
    }
}

fn name(key: u16) -> Vec<u8> {
    match key % 3 {
        0 => format!("k{key}").into_bytes(),
        1 => format!("a-longer-key-of-some-length:{key}").into_bytes(),
        _ => [format!("{key}-").as_bytes(), &[b'x'; 240]].concat(),
    }
}

fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(60))]

    /// Forty keys of at most 40 kB: a third of the memory, however they are overwritten.
    #[test]
    fn nothing_is_lost_while_memory_is_not_full(ops in prop::collection::vec(op(40, 40_000), 1..600)) {
        let mut model = Model::new(8 << 20, true, false, 60_000);
        ops.iter().for_each(|op| model.run(op));
        model.finish();
    }

    #[test]
    fn values_are_right_while_memory_is_full(ops in prop::collection::vec(op(600, 400_000), 1..800)) {
        let mut model = Model::new(2 << 20, true, true, 500_000);
        ops.iter().for_each(|op| model.run(op));
        model.finish();
    }

    #[test]
    fn nothing_is_evicted_if_eviction_is_off(ops in prop::collection::vec(op(100, 100_000), 1..800)) {
        let mut model = Model::new(2 << 20, false, false, 200_000);
        ops.iter().for_each(|op| model.run(op));
        prop_assert_eq!(model.handle.store().sums().evictions, 0);
        model.finish();
    }

    #[test]
    fn many_small_items_grow_the_index(ops in prop::collection::vec(op(20_000, 100), 1..50), fill in 1_000u16..20_000) {
        let mut model = Model::new(8 << 20, true, false, 1_000);
        for key in 0..fill {
            model.run(&Op::Set { key, len: 20, flags: 0, ttl: 0 });
            if key % 1_000 == 0 {
                ops.iter().for_each(|op| model.run(op));
            }
        }
        model.finish();
    }
}

/// A segment may be named by slots that are not checked yet: it is not freed when the last item that is counted dies.
#[test]
fn segment_of_unchecked_items_is_not_freed() {
    let folder = Folder::new("fabcache-killed-unchecked").expect("a folder");
    let clock = SetClock::default();
    let (handle, _) = open(&folder, 8 << 20, true, &clock);
    let name = |number: u64| format!("key-{number}");
    for number in 0..1_000 {
        set(&handle, name(number).as_bytes(), &pattern(number, 60)).expect("there is room");
    }
    drop(handle);
    let (handle, _) = open(&folder, 8 << 20, true, &clock);
    // In the groups that these deletes check nothing is left.
    let is_first = |number: &u64| handle.store().hash(name(*number).as_bytes()).0 >> 62 == 0;
    let (first, others): (Vec<_>, Vec<_>) = (0..1_000).partition(is_first);
    first.iter().for_each(|number| assert!(delete(&handle, name(*number).as_bytes()), "it is stored"));
    let progress = handle.store().recovery_progress().expect("its server was killed");
    assert!(progress.groups_checked < progress.groups, "{progress:?}");
    assert_eq!(handle.store().usage().items, 0);
    for _ in 0..3 {
        clock.advance(1);
        handle.maintain();
    }
    for number in others {
        let (_, value) = get(&handle, name(number).as_bytes()).expect("it is stored");
        assert_eq!(value, pattern(number, 60));
    }
}

/// Long values of two keys that a search of the index tells apart only by the keys are both moved out of open segments.
#[test]
fn long_values_of_keys_with_one_tag_are_recovered() {
    let folder = Folder::new("fabcache-killed-tags").expect("a folder");
    let clock = SetClock::default();
    let (handle, _) = open(&folder, 8 << 20, true, &clock);
    let mut by_place = HashMap::new();
    let pair = (0_u32..).find_map(|number| {
        let key = format!("key-{number}");
        let hash = handle.store().hash(key.as_bytes()).0;
        // The tag, and the home bucket in a table of one group for each of at most 32 partitions.
        by_place.insert((hash & 0xfff, hash >> 54), key.clone()).map(|other| [other, key])
    });
    let keys = pair.expect("there is no end to them");
    let long =
        |key: &String| pattern(key.len() as u64 + 7, handle.store().usage().segment_bytes as usize / 3);
    keys.iter().for_each(|key| {
        set(&handle, key.as_bytes(), &long(key)).expect("there is room");
    });
    let values = keys.each_ref().map(long);
    drop(handle);
    let (handle, _) = open(&folder, 8 << 20, true, &clock);
    assert!(handle.finish_restart(&mut || true));
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(&get(&handle, key.as_bytes()).expect("it is stored").1, value);
    }
    let found = handle.store().recovery_progress().expect("its server was killed");
    assert_eq!((found.kept, found.dropped), (2, 0));
}

/// Items in segments of a killed server are found when they expire, although nobody reads them.
#[test]
fn expired_items_of_a_killed_server_are_removed() {
    let folder = Folder::new("fabcache-killed-expiry").expect("a folder");
    let clock = SetClock::default();
    let (handle, _) = open(&folder, 8 << 20, true, &clock);
    let set_all = |handle: &Handle, ttl: i64| {
        for number in 0..20_000 {
            let expiry = Expiry::from_client(ttl, handle.store().now(), handle.store().clock_origin());
            let key = format!("{ttl} {number}").replace(' ', "-");
            set_with(handle, key.as_bytes(), &[b'x'; 60], 0, expiry).expect("there is room");
        }
    };
    set_all(&handle, 20);
    set_all(&handle, 10_000);
    let before = handle.store().usage().items;
    drop(handle);
    let (handle, opening) = open(&folder, 8 << 20, true, &clock);
    assert_eq!(opening, Opening::Recovered { why: Unclean::NotStopped });
    assert!(handle.finish_restart(&mut || true));
    let found = handle.store().recovery_progress().expect("its server was killed");
    assert_eq!((found.kept, found.dropped), (before, 0));
    handle.maintain();
    assert_eq!(handle.store().usage().items, before);
    clock.advance(30);
    handle.maintain();
    assert_eq!(handle.store().usage().items, before / 2, "the others have expired");
}
