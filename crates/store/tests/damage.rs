//! A memory file that was damaged while no server ran: every read returns the right value or a miss, and the store works.
//!
//! `FABCACHE_MUTATIONS=FIRST..END`, `0..2000` without it, chooses the mutations, which are numbered: a failure names its number.
#![cfg(not(loom))]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{delete, get, set, set_with};
use fabcache_store::backing::BackingOptions;
use fabcache_store::dump::Cursor;
use fabcache_store::{
    Change, Expiry, Handle, Located, NewValue, Opening, Probe, Store, StoreOptions, Value, Write,
};
use fabcache_testbed::cleanup::Folder;

const MEMORY_BYTES: u64 = 2 << 20;
const PAGE_BYTES: usize = 4096;
/// Offset of the first page of directory and table.
const TABLES_AT: usize = PAGE_BYTES;
/// One mutation may not take longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What each key holds; without an entry it was deleted.
type Ledger = BTreeMap<String, Vec<u8>>;

/// Numbers that depend on the number of a mutation alone.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn open(file: &Path, discard: bool) -> Result<Handle, fabcache_store::CreateError> {
    let backing = BackingOptions { file: Some(file.into()), discard, ..BackingOptions::default() };
    let options = StoreOptions {
        memory_bytes: MEMORY_BYTES,
        memory_bytes_max: MEMORY_BYTES,
        background_threads: 1,
        backing,
        ..StoreOptions::default()
    };
    Ok(Handle::new(&Arc::new(Store::open(options)?)))
}

fn value(key: &str, version: u64, len: usize) -> Vec<u8> {
    let mut random = Random(version ^ key.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte)));
    std::iter::repeat_with(|| random.next() as u8).take(len).collect()
}

/// Bytes of the value of key `i`: a few have chunks.
fn len_of(i: usize) -> usize {
    match i % 40 {
        0 => 40_000,
        1 => 20_000,
        n => 10 + n * 17,
    }
}

fn write_all(handle: &Handle, ledger: &mut Ledger, keys: Range<usize>, version: u64) {
    for i in keys {
        let (key, expiry) = (
            format!("key{i}"),
            if i % 7 == 0 { Expiry::from_client(1_000_000, handle.store().now(), 0) } else { Expiry::NEVER },
        );
        let value = value(&key, version, len_of(i));
        if set_with(handle, key.as_bytes(), &value, (i % 3) as u32, expiry).is_ok() {
            assert_eq!(get(handle, key.as_bytes()).expect("just stored").1, value, "{key}");
            ledger.insert(key, value);
        } else {
            ledger.remove(&key);
        }
    }
}

/// A file and PATH.meta as a server left them, a page of an earlier time for each page, and what was stored.
struct Template {
    region: Vec<u8>,
    earlier: Vec<u8>,
    meta: Vec<u8>,
    ledger: Ledger,
}

impl Template {
    fn new(is_clean: bool) -> Template {
        let folder = Folder::new("fabcache-damage").expect("a folder");
        let file = folder.path().join("region");
        let handle = open(&file, false).expect("a new file");
        let mut ledger = Ledger::new();
        write_all(&handle, &mut ledger, 0..160, 1);
        let earlier = fs::read(&file).expect("our file");
        write_all(&handle, &mut ledger, 40..90, 2);
        for i in (0..160).step_by(9) {
            assert!(delete(&handle, format!("key{i}").as_bytes()));
            ledger.remove(&format!("key{i}"));
        }
        for i in [1, 5, 41, 80, 82] {
            let key = format!("key{i}");
            let more = NewValue::Appended(Value::Bytes(b"more"));
            handle
                .mutate(key.as_bytes(), |_| (Change::Write(Write::plain(more)), ()))
                .expect("memory is free");
            ledger.get_mut(&key).expect("it is there").extend_from_slice(b"more");
        }
        // Seals what is open, as only that outlives a kill in place.
        handle.maintain();
        if is_clean {
            handle.store().keep().expect("nothing is in use");
        }
        drop(handle);
        let read = |name| fs::read(folder.path().join(name)).expect("our file");
        Template { region: read("region"), earlier, meta: read("region.meta"), ledger }
    }

    /// Returns the page at which the mutation happens: any that holds something, those in front more often.
    fn page(&self, random: &mut Random) -> usize {
        let first = match random.below(4) {
            0 => return random.below(2) * TABLES_AT,
            1 => 16,
            _ => self.region.len() / PAGE_BYTES,
        };
        loop {
            let at = random.below(first) * PAGE_BYTES;
            if self.region[at..at + PAGE_BYTES].iter().any(|byte| *byte != 0) {
                return at;
            }
        }
    }

    /// Writes the files, damaged as the number says. Returns how many pages are of an earlier time.
    fn write_damaged(&self, folder: &Path, number: u64) -> u32 {
        let mut random = Random(number);
        let mut gone_back = 0;
        let (mut region, mut meta) = (self.region.clone(), self.meta.clone());
        for _ in 0..1 + random.below(3) {
            let at = self.page(&mut random);
            let page = at..at + PAGE_BYTES;
            match random.below(12) {
                0..5 => {
                    for _ in 0..1 + random.below(4) {
                        region[at + random.below(PAGE_BYTES)] ^= 1 << random.below(8);
                    }
                }
                5 => region[page].fill(0),
                6 => {
                    let other = self.page(&mut random);
                    region[page].copy_from_slice(&self.region[other..other + PAGE_BYTES]);
                    region[other..other + PAGE_BYTES].copy_from_slice(&self.region[at..at + PAGE_BYTES]);
                }
                7 => {
                    gone_back += 1;
                    let torn = at + 64 * random.below(PAGE_BYTES / 64);
                    region[at..torn].copy_from_slice(&self.earlier[at..torn]);
                }
                8 => {
                    gone_back += 1;
                    region[page].copy_from_slice(&self.earlier[at..at + PAGE_BYTES]);
                }
                9 => region[page].iter_mut().for_each(|byte| *byte = random.next() as u8),
                10 => {
                    let word = at + 8 * random.below(PAGE_BYTES / 8);
                    region[word..word + 8].copy_from_slice(&random.next().to_le_bytes());
                }
                _ if random.below(4) == 0 => region.truncate(region.len() - random.below(at + 1)),
                _ if random.below(2) == 0 => meta.truncate(random.below(meta.len() + 1)),
                _ if meta.is_empty() => {}
                _ => {
                    let at = random.below(meta.len());
                    meta[at] ^= 1 << random.below(8);
                }
            }
            region.resize(region.len().max(self.region.len()), 0);
        }
        for (name, bytes) in [("region", &region), ("region.meta", &meta)] {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(name));
            file.and_then(|file| file.write_all_at(bytes, 0)).expect("our folder");
        }
        gone_back
    }
}

/// A damaged store in use.
struct Trial {
    file: PathBuf,
    random: Random,
    ledger: Ledger,
    /// Keys that any earlier version may be read of: nothing may.
    keys: Vec<String>,
}

impl Trial {
    fn check(&self, handle: &Handle) -> usize {
        let mut hits = 0;
        for key in &self.keys {
            let found = get(handle, key.as_bytes()).map(|(_, value)| value);
            let mut out = Vec::new();
            let mut probes = [Probe::NONE; 1];
            handle.probe_many(std::iter::once(key.as_bytes()), &mut probes);
            if let Located::Item(item) = handle.locate(key.as_bytes(), &probes[0])
                && handle.append_value(&item, &mut out)
            {
                assert_eq!(Some(&out), self.ledger.get(key), "located {key}");
            }
            if let Some(found) = found {
                hits += 1;
                let wanted = self.ledger.get(key);
                assert!(wanted == Some(&found), "{key} has {} bytes of another value", found.len());
            }
        }
        hits
    }

    fn use_store(&mut self, handle: &Handle) {
        for _ in 0..3 {
            match self.random.below(9) {
                0 => {
                    handle.finish_restart(&mut || true);
                }
                1 => {
                    let mut left = self.random.below(4);
                    handle.finish_restart(&mut || {
                        left = left.saturating_sub(1);
                        left > 0
                    });
                }
                2 | 3 => {
                    self.check(handle);
                }
                4 => write_all(handle, &mut self.ledger, 30..60, self.random.0),
                5 => self.append(handle),
                6 => self.fill(handle),
                7 => handle.maintain(),
                _ => {
                    let mut cursor = Cursor::START;
                    while !cursor.is_done() {
                        cursor = handle.walk(cursor, |_| (), |_| ());
                    }
                }
            }
        }
        self.check(handle);
        handle.finish_restart(&mut || true);
        self.check(handle);
    }

    /// Appends to values, and deletes one.
    fn append(&mut self, handle: &Handle) {
        for i in [2, 40, 41, 100, 121] {
            let key = format!("key{i}");
            let more = NewValue::Appended(Value::Bytes(b"tail"));
            let appended = handle.mutate(key.as_bytes(), |existing| match existing.info {
                Ok(_) => (Change::Write(Write::plain(more)), true),
                Err(_) => (Change::Keep, false),
            });
            match (appended, self.ledger.get_mut(&key)) {
                (Ok((true, _)), Some(value)) => value.extend_from_slice(b"tail"),
                (Ok((true, _)), None) => panic!("{key} was deleted"),
                _ => {}
            }
        }
        delete(handle, b"key3");
        self.ledger.remove("key3");
    }

    /// Writes more than memory holds.
    fn fill(&mut self, handle: &Handle) {
        let bytes = vec![7; 4000];
        for i in 0..600 {
            set(handle, format!("fill{i}").as_bytes(), &bytes).expect("older items are evicted");
        }
    }

    /// Everything works: the store can be filled, flushed, and stopped.
    fn finish(&mut self, handle: Handle) {
        self.fill(&handle);
        handle.maintain();
        self.check(&handle);
        if self.random.below(3) == 0 {
            handle.flush(Expiry::AT_ONCE);
            assert_eq!(self.check(&handle), 0, "all is flushed");
            self.ledger.clear();
            handle.maintain();
        }
        write_all(&handle, &mut self.ledger, 0..20, self.random.0);
        let found = self.check(&handle);
        assert!(found > 0, "what was stored last is there");
        let is_kept = self.random.below(2) == 0;
        if is_kept {
            handle.store().keep().expect("nothing is in use");
        }
        drop(handle);
        let handle = open(&self.file, false).expect("it was in use");
        let (opening, _) = handle.store().opening();
        assert!(!matches!(opening, Opening::Discarded(_)), "{opening:?}");
        assert!(!is_kept || matches!(opening, Opening::Kept { .. }), "all is counted rightly: {opening:?}");
        assert!(!is_kept || self.check(&handle) == found, "a clean stop keeps all");
        handle.finish_restart(&mut || true);
        assert_eq!(handle.store().items_corrupt(), 0, "all damage was found before");
        let kept = self.check(&handle);
        assert!(!is_kept || kept == found, "the scrub keeps all: {kept} of {found}");
    }
}

fn try_mutation(template: &Template, folder: &Path, number: u64) -> bool {
    let gone_back = template.write_damaged(folder, number);
    let file = folder.join("region");
    let (handle, is_refused) = match open(&file, false) {
        Ok(handle) => (handle, false),
        Err(_) => (open(&file, true).expect("it may be discarded"), true),
    };
    // Recovery has no checksums of the index. With a page of it and one of items that are both of an earlier time, deleted
    // items are back. But it only takes place if the system ran on, and then no page of memory goes back.
    if gone_back > 1 && matches!(handle.store().opening(), (Opening::Recovered { .. }, _)) {
        return is_refused;
    }
    let keys = (0..160).map(|i| format!("key{i}")).collect();
    let mut trial = Trial { file, random: Random(!number), ledger: template.ledger.clone(), keys };
    trial.use_store(&handle);
    trial.finish(handle);
    is_refused
}

/// Ends the process if a mutation does not end.
fn watch(running: &[Mutex<Option<(u64, Instant)>>], is_over: impl Fn() -> bool) {
    loop {
        let mut all_ended = true;
        for running in running {
            if let Some((number, began)) = *running.lock().expect("no panic while it is locked") {
                all_ended = false;
                if began.elapsed() > PATIENCE {
                    eprintln!("mutation {number} does not end");
                    std::process::abort();
                }
            }
        }
        if all_ended && is_over() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn mutations() -> Range<u64> {
    let named = std::env::var("FABCACHE_MUTATIONS").unwrap_or("0..2000".into());
    let (first, end) = named.split_once("..").expect("FABCACHE_MUTATIONS=FIRST..END");
    let number = |text: &str| text.parse().expect("FABCACHE_MUTATIONS=FIRST..END");
    number(first)..number(end)
}

#[test]
fn damaged_file_never_yields_a_wrong_value() {
    let templates = [Template::new(true), Template::new(false)];
    let Range { start, end } = mutations();
    let next = AtomicU64::new(start);
    let failed = Mutex::new(Vec::new());
    let refused = AtomicU64::new(0);
    let running = [const { Mutex::new(None::<(u64, Instant)>) }; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| watch(&running, || next.load(Ordering::Relaxed) >= end));
        for running in &running {
            let (next, failed, refused, templates) = (&next, &failed, &refused, &templates);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return;
                    }
                    *running.lock().expect("no panic while it is locked") = Some((number, Instant::now()));
                    let folder = Folder::new("fabcache-damage").expect("a folder");
                    let template = &templates[(number % 2) as usize];
                    let tried = std::panic::catch_unwind(|| try_mutation(template, folder.path(), number));
                    match tried {
                        Ok(is_refused) => {
                            refused.fetch_add(u64::from(is_refused), Ordering::Relaxed);
                        }
                        Err(_) => failed.lock().expect("no panic while it is locked").push(number),
                    }
                    *running.lock().expect("no panic while it is locked") = None;
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic while it is locked");
    assert!(failed.is_empty(), "mutations {failed:?}");
    let refused = refused.into_inner();
    assert!(refused * 2 < end - start, "{refused} of them were refused, so little was tried");
}
