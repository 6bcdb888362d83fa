//! The process that owns the store: threads that write, delete, flush and forge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use fabcache_layout::Memory;
use fabcache_layout::reader::{Mapped, ReadOutcome, Validation};
use fabcache_store::liveness::Liveness;
use fabcache_store::{Expiry, Handle, Store, StoreOptions};
use fabcache_testbed::random::SplitMix64;

use crate::common::outside::map_all;
use crate::common::{delete, set, set_with};
use crate::value::{key, value};
use crate::{Ledger, Scenario};

const WRITERS: usize = 2;
/// Enough to fill memory a few times over.
const STORED_BETWEEN_FLUSHES: u64 = 25_000;

/// The store and its writers.
#[derive(Debug)]
pub struct Server {
    pub store: Arc<Store>,
    pub ledger: Arc<Ledger>,
    _life: Liveness,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// One writing thread.
struct Writer {
    scenario: Scenario,
    handle: Handle,
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    /// Read-locked by writes and write-locked by a flush, which orders them.
    flushing: Arc<RwLock<()>>,
    random: SplitMix64,
}

impl Server {
    /// Starts writing.
    pub fn start(scenario: Scenario) -> Server {
        let memory_bytes = match scenario {
            Scenario::Short => 4 << 20,
            Scenario::Roomy => 128 << 20,
        };
        let store = Store::open(StoreOptions {
            memory_bytes,
            memory_bytes_max: memory_bytes,
            threads: WRITERS + 2,
            grace: crate::GRACE,
            lease: crate::LEASE,
            ..StoreOptions::default()
        });
        let store = Arc::new(store.expect("memory for a test"));
        let ledger = Arc::new(Ledger::create(scenario.keys(), store.secret(), store.clock_zero_ns()));
        let life = Liveness::keep(&store).expect("a thread, and robust futexes");
        let stop = Arc::new(AtomicBool::new(false));
        let flushing = Arc::new(RwLock::new(()));
        let mut threads = Vec::new();
        for number in 0..WRITERS + 2 {
            let writer = Writer {
                scenario,
                handle: Handle::new(&store),
                ledger: Arc::clone(&ledger),
                stop: Arc::clone(&stop),
                flushing: Arc::clone(&flushing),
                random: SplitMix64::new(number as u64 + 1),
            };
            threads.push(std::thread::spawn(move || match number {
                0 => writer.keep_house(),
                1 => writer.forge(),
                _ => writer.write(number - 2),
            }));
        }
        Server { store, ledger, _life: life, stop, threads }
    }

    /// Stops the writers and prints statistics.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no writer failed");
        }
        let sums = self.store.sums();
        println!(
            "  {} stored, {} evicted, {} moved, {} reclaimed, {} segments emptied, {} flushes, {} tables rebuilt",
            sums.total_items,
            sums.evictions,
            sums.items_moved,
            sums.reclaimed,
            sums.segments_evicted + sums.segments_expired + sums.segments_compacted,
            self.ledger.flushes(),
            sums.tables_resized,
        );
    }
}

impl Writer {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Writes this writer's keys, one of them far more often than the others.
    fn write(mut self, number: usize) {
        let mut fillers = 0;
        while self.goes_on() {
            let hottest = number == 0 && self.random.once_in(4);
            let keys = self.scenario.keys();
            let i = if hottest { 0 } else { self.random.below(keys / WRITERS) * WRITERS + number };
            let flushing = Arc::clone(&self.flushing);
            let guard = flushing.read().expect("no thread panics while it writes");
            let version = self.ledger.begin(i);
            if self.scenario.may_miss(i) && self.random.once_in(10) {
                delete(&self.handle, &key(i));
            } else {
                let len = match self.random.below(400) {
                    0 => self.random.below(30_000),
                    1..20 => self.random.below(3_000),
                    _ => self.random.below(300),
                };
                let expires = self.scenario.may_miss(i) && self.random.once_in(4);
                let (now, origin) = (self.handle.store().now(), self.handle.store().clock_origin());
                let expiry = if expires { Expiry::from_client(1, now, origin) } else { Expiry::NEVER };
                let value = value(i, version, self.ledger.flushes(), len);
                set_with(&self.handle, &key(i), &value, 7, expiry).expect("memory enough, or eviction");
            }
            self.ledger.answer(i, version);
            drop(guard);
            // Grow the index meanwhile.
            if self.scenario == Scenario::Roomy && self.handle.store().usage().segments_free > 64 {
                fillers += 1;
                let filler = format!("filler-{number}-{fillers}");
                set(&self.handle, filler.as_bytes(), b"").expect("memory is free");
            }
        }
    }

    /// Stores values full of copied items of other locations, of earlier items there, and of forged ones: with a future
    /// version under a guessed checksum.
    fn forge(mut self) {
        let memory = map_all(self.handle.store().region().expect("a memory file"));
        let mut reader = Mapped::open(memory.clone(), Validation::SameHost).expect("a region");
        while self.goes_on() {
            let victim = self.random.below(self.scenario.keys());
            reader.begin(self.handle.store().now());
            if let Some(item) = item_bytes(&mut reader, &memory, &key(victim)) {
                let mut forged = item.clone();
                if self.random.once_in(2) {
                    let at = forged.len() / 2;
                    forged[at] ^= 0xff;
                }
                if self.random.once_in(2) {
                    forged[4..8].copy_from_slice(&(self.random.next_u64() as u32).to_le_bytes());
                }
                let copies = (2_000 / forged.len()).max(1);
                // The copies start at any multiple of 4 in the segment.
                let shift = self.random.below(8);
                let value = [vec![0; shift], forged.repeat(copies)].concat();
                let own = format!("forger-{}", self.random.below(1_000));
                set(&self.handle, own.as_bytes(), &value).expect("memory enough, or eviction");
            }
            if self.scenario == Scenario::Roomy {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn keep_house(self) {
        let stored = || self.handle.store().sums().total_items;
        let mut flushed_at = 0;
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(10));
            self.handle.maintain();
            if self.scenario == Scenario::Short && stored() - flushed_at > STORED_BETWEEN_FLUSHES {
                flushed_at = stored();
                let _alone = self.flushing.write().expect("no thread panics while it writes");
                self.handle.flush(Expiry::AT_ONCE);
                self.ledger.count_flush();
            }
        }
    }
}

/// Returns the bytes of a key's item, padded to a multiple of 4.
fn item_bytes(reader: &mut Mapped, memory: &Memory, key: &[u8]) -> Option<Vec<u8>> {
    let ReadOutcome::Hit(hit) = reader.get(key).0 else { return None };
    let item = fabcache_layout::Item::read(memory, hit.location.offset)?;
    let len = item.bytes().min(3_000);
    let mut bytes = vec![0; len as usize];
    memory.contains(hit.location.offset, len).then(|| memory.copy_out(hit.location.offset, &mut bytes))?;
    Some(bytes)
}
