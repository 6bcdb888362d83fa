//! A memory file that changed while no server ran: a start over it is refused or works, and every read returns the value that
//! was stored or a miss.
//!
//! The input is a list of changes to the files of a server that stopped cleanly or was killed.
#![no_main]

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use fabcache_store::backing::BackingOptions;
use fabcache_store::{
    Change, CreateError, Detail, Get, Handle, NewValue, Payload, Store, StoreOptions, Value, Write,
};
use fabcache_testbed::cleanup::Folder;
use libfuzzer_sys::fuzz_target;

const MEMORY_BYTES: u64 = 1 << 20;
const KEYS: usize = 120;
const PAGE_BYTES: usize = 4096;
/// Header, directory and segment table.
const TABLES_BYTES: usize = 64 << 10;
const CHANGE_BYTES: usize = 7;

/// The files of a server that has ended.
struct Ended {
    region: Vec<u8>,
    meta: Vec<u8>,
}

fn open(folder: &Path, discard: bool) -> Result<Handle, CreateError> {
    let file = Some(folder.join("region"));
    let backing = BackingOptions { file, discard, ..BackingOptions::default() };
    let (memory_bytes, memory_bytes_max) = (MEMORY_BYTES, MEMORY_BYTES);
    let options = StoreOptions { backing, memory_bytes, memory_bytes_max, ..StoreOptions::default() };
    Ok(Handle::new(&Arc::new(Store::open(options)?)))
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

/// A value of some hundred bytes, or of several chunks.
fn value(number: usize) -> Vec<u8> {
    let len = if number.is_multiple_of(40) { 9_000 } else { 20 + number * 3 };
    (0..len).map(|at| (at * 7 + number * 31) as u8).collect()
}

fn set(handle: &Handle, key: &[u8], value: &[u8]) {
    let write = Write::plain(NewValue::Is(Value::Bytes(value)));
    handle.mutate(key, |_| (Change::Write(write), ())).expect("older items are evicted");
}

fn get(handle: &Handle, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match handle.get(key, Detail::Full, true, &mut out, |_, _| {}) {
        Get::Hit(_, Payload::Copied) => Some(out),
        Get::Hit(_, Payload::Pinned(value)) => Some(value.slices().flatten().copied().collect()),
        Get::Miss(_) | Get::OnFlash => None,
    }
}

impl Ended {
    fn new(is_clean: bool) -> Ended {
        let folder = Folder::new("fabcache-fuzz").expect("a folder");
        let handle = open(folder.path(), false).expect("a new file");
        (0..KEYS).for_each(|number| set(&handle, &key(number), &value(number)));
        if is_clean {
            handle.store().keep().expect("nothing is in use");
        }
        drop(handle);
        let read = |name: &str| fs::read(folder.path().join(name)).expect("the store's file");
        Ended { region: read("region"), meta: read("region.meta") }
    }

    /// Writes the files to a folder, changed as the input says.
    fn write_changed(&self, folder: &Path, changes: &[u8]) {
        let (mut region, mut meta) = (self.region.clone(), self.meta.clone());
        for change in changes.as_chunks::<CHANGE_BYTES>().0 {
            let [place, kind, low, middle, high, value, _] = *change;
            let (file, len) = match place % 4 {
                0 => (&mut meta, self.meta.len()),
                1 => (&mut region, TABLES_BYTES),
                _ => (&mut region, self.region.len()),
            };
            let at = u32::from_le_bytes([low, middle, high, 0]) as usize % len;
            let page = at / PAGE_BYTES * PAGE_BYTES;
            match kind % 4 {
                0 | 1 => file[at] ^= value.max(1),
                2 => file[at..(at + 8).min(len)].fill(value),
                _ => file[page..(page + PAGE_BYTES).min(len)].fill(value),
            }
        }
        for (name, bytes) in [("region", &region), ("region.meta", &meta)] {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(name));
            std::io::Write::write_all(&mut file.expect("our folder"), bytes).expect("our folder");
        }
    }
}

fn check(handle: &Handle) {
    for number in 0..KEYS {
        let found = get(handle, &key(number));
        assert!(found.is_none_or(|found| found == value(number)), "another value of key {number}");
    }
}

fuzz_target!(|data: &[u8]| {
    static ENDED: OnceLock<[Ended; 2]> = OnceLock::new();
    let Some((first, changes)) = data.split_first() else { return };
    let ended = ENDED.get_or_init(|| [Ended::new(true), Ended::new(false)]);
    let folder = Folder::new("fabcache-fuzz").expect("a folder");
    ended[usize::from(first % 2)].write_changed(folder.path(), changes);
    let opened = open(folder.path(), false).or_else(|_| open(folder.path(), true));
    let handle = opened.expect("a file of ours may be discarded");
    // Before all is verified, and after.
    if first & 2 == 0 {
        check(&handle);
    }
    if first & 4 == 0 {
        handle.finish_restart(&mut || true);
        check(&handle);
    }
    let more = vec![b'm'; 2_000];
    (0..if first & 8 == 0 { 20 } else { 700 })
        .for_each(|number| set(&handle, format!("more{number}").as_bytes(), &more));
    handle.maintain();
    check(&handle);
    if handle.store().keep().is_ok() {
        drop(handle);
        check(&open(folder.path(), false).expect("it was in use"));
    }
});
