//! Regions whose bytes no server would write, or that change while they are read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabcache_client::FabricMode;
use fabcache_fabric::{Domain, Endpoint, EndpointOptions, PeerAccess, SharedArea};
use fabcache_layout::checksum::SECRET_BYTES;
use fabcache_layout::format::HEADER_BYTES;
use fabcache_store::liveness::Liveness;
use fabcache_store::{Change, Handle, NewValue, Store, StoreOptions, Value, Write};
use fabcache_testbed::bytes::pattern;
use fabcache_testbed::random::SplitMix64;

use crate::common::fabric::is_one_sided;
use crate::scripted::{
    ADDRESS, CLOCK_NS, GRACE_NS, KEY, LONG_ENOUGH, REGION_BYTES, SECRET, Script, ScriptedServer, Words,
    domain,
};

const KEYS: usize = 20;
const MEMORY_BYTES: u64 = 4 << 20;
/// After a failure the client sends requests for at most this long.
const GETS_MAX: Duration = Duration::from_secs(40);

fn key(number: usize) -> Vec<u8> {
    format!("key{number}").into_bytes()
}

/// Returns a value; some are chunked.
fn value(number: usize) -> Vec<u8> {
    let len = if number.is_multiple_of(8) { 20_000 + number } else { number * 17 };
    pattern(number, len)
}

/// A sound region that the tests corrupt.
struct Original {
    store: Arc<Store>,
    handle: Handle,
    _life: Liveness,
}

impl Original {
    fn create() -> Original {
        let store = Store::open(StoreOptions {
            memory_bytes: MEMORY_BYTES,
            memory_bytes_max: MEMORY_BYTES,
            threads: 1,
            ..StoreOptions::default()
        });
        let store = Arc::new(store.expect("memory for a test"));
        let life = Liveness::keep(&store).expect("a thread, and robust futexes");
        let handle = Handle::new(&store);
        for number in 0..KEYS {
            let value = value(number);
            let write = Write::plain(NewValue::Is(Value::Bytes(&value)));
            let stored = handle.mutate(&key(number), |_| (Change::Write(write), ()));
            stored.expect("there is memory");
        }
        Original { store, handle, _life: life }
    }

    /// Returns the region's current bytes.
    fn bytes(&self) -> Vec<u8> {
        self.handle.maintain();
        let file = File::from(
            self.store.region().expect("a memory file").try_clone_to_owned().expect("a descriptor"),
        );
        let mut bytes = vec![0; self.store.region_bytes() as usize];
        file.read_exact_at(&mut bytes, 0).expect("the region has its stated length");
        bytes
    }

    /// Returns the attach words that describe a region in that memory.
    fn words(&self, right: &Words, area: &SharedArea) -> Words {
        let memory = area.remote();
        right
            .with(REGION_BYTES, self.store.region_bytes())
            .with(CLOCK_NS, self.store.clock_ns())
            .with(ADDRESS, memory.address)
            .with(KEY, memory.key)
            .with(SECRET, STANDARD.encode(self.store.secret().0))
            .with(GRACE_NS, 0)
    }
}

type Spoil = Box<dyn FnMut(&mut [u8], Words) -> Words + Send>;

struct Regions {
    domain: Arc<Domain>,
    original: Arc<Mutex<Original>>,
    area: Arc<SharedArea>,
    server: ScriptedServer,
}

/// Opens the endpoint that registers the memory.
fn port(domain: &Arc<Domain>) -> Endpoint {
    Endpoint::open(domain, EndpointOptions { operations: 8, peers: 1, waits: false }).expect("an endpoint")
}

impl Regions {
    fn start() -> Regions {
        let domain = domain();
        let original = Original::create();
        let area =
            SharedArea::new(&mut port(&domain), original.store.region_bytes() as usize, PeerAccess::Read)
                .expect("memory");
        let server = ScriptedServer::start(&domain, Script::honest());
        Regions { domain, original: Arc::new(Mutex::new(original)), area: Arc::new(area), server }
    }

    /// From the next client on, the region is the original, corrupted by `spoil`.
    fn spoil(&self, mut spoil: Spoil) {
        let (original, area) = (Arc::clone(&self.original), Arc::clone(&self.area));
        let attach = move |right: &Words| {
            let original = original.lock().expect("nobody panics");
            let mut bytes = original.bytes();
            let words = spoil(&mut bytes, original.words(right, &area));
            area.copy_in(0, &bytes);
            words.line()
        };
        self.server.plays(Script { attach: Box::new(attach), ..Script::honest() });
    }

    /// Gets all keys repeatedly; asserts that found values are right, and returns the number of hits.
    fn gets(&self, what: &str, rounds: usize) -> usize {
        let cache = self.server.client(FabricMode::OneSided, LONG_ENOUGH);
        // This call attaches the region.
        let _ = cache.get(b"none");
        let (mut found, began) = (0, Instant::now());
        for number in (0..rounds).flat_map(|_| 0..KEYS) {
            // A get may fail, and the failure ends soon.
            if let Ok(Some(item)) = cache.get(&key(number)) {
                assert!(item.value == value(number), "{what}: key {number} has another value");
                found += 1;
            }
        }
        assert!(began.elapsed() < GETS_MAX * rounds as u32, "{what}: {:?}", began.elapsed());
        if cache.transports()[0].is_some() {
            is_one_sided(&cache);
        }
        found
    }
}

/// Otherwise nothing would be read of those that are not.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn sound_region_is_read() {
    let regions = Regions::start();
    regions.spoil(Box::new(|_, words| words));
    assert_eq!(regions.gets("sound", 3), 3 * KEYS);
    assert_eq!(regions.server.served(), 2, "the server saw requests beyond hello and locations");
}

/// An answer that took longer than a region's clock may lag.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn region_of_a_slow_answer_is_read() {
    let regions = Regions::start();
    regions.spoil(Box::new(|_, words| {
        std::thread::sleep(Duration::from_secs(5));
        words
    }));
    assert_eq!(regions.gets("slow", 1), KEYS);
    assert_eq!(regions.server.served(), 2, "the server saw requests beyond hello and locations");
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn misplaced_region_is_not_read() {
    let regions = Regions::start();
    let other = SharedArea::new(&mut port(&regions.domain), 1 << 16, PeerAccess::Write).expect("memory");
    let other = other.remote();
    let all: [(&str, Spoil); 7] = [
        ("no such key", Box::new(|_, words| words.with(KEY, 0x7fff_fff1u32))),
        ("any key", Box::new(|_, words| words.with(KEY, u64::MAX))),
        (
            "memory that may be written",
            Box::new(move |_, words| words.with(KEY, other.key).with(ADDRESS, other.address)),
        ),
        ("elsewhere", Box::new(|_, words| words.with(ADDRESS, 1u64 << 40))),
        ("shorter than its header", Box::new(|_, words| words.with(REGION_BYTES, 100))),
        ("nothing", Box::new(|_, words| words.with(REGION_BYTES, 0))),
        ("another secret", Box::new(|_, words| words.with(SECRET, STANDARD.encode([9; SECRET_BYTES])))),
    ];
    for (what, spoil) in all {
        regions.spoil(spoil);
        let requested = regions.server.served();
        assert_eq!(regions.gets(what, 1), 0, "{what}");
        assert!(regions.server.served() > requested + 1, "{what}: the server was not asked");
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn impossible_headers_are_rejected() {
    let regions = Regions::start();
    for word in 0..9 {
        // The second: segments without end.
        let value: u64 = [u64::MAX, u64::MAX << 32 | 0x0c_0003][word % 2];
        let spoil = move |bytes: &mut [u8], words: Words| {
            bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
            words
        };
        regions.spoil(Box::new(spoil));
        regions.gets(&format!("word {word} is {value:x}"), 1);
    }
}

/// A reader keeps some bytes per segment. Only the server says how many segments there are.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn region_with_too_many_segments_is_rejected() {
    let regions = Regions::start();
    let region_bytes: u64 = 1 << 42;
    regions.spoil(Box::new(move |bytes, words| {
        let segments: u64 = (region_bytes - (1 << 38)) >> 12;
        let shape = 3 | 12 << 16 | segments << 32;
        let table = HEADER_BYTES + (1 << 20);
        for (at, word) in [(2, region_bytes), (3, shape), (4, HEADER_BYTES), (5, table), (6, 1 << 38)] {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        words.with(REGION_BYTES, region_bytes)
    }));
    let before = peak_kb();
    assert_eq!(regions.gets("too many segments", 1), 0);
    assert!(peak_kb() - before < 400_000, "{before} to {} kB of memory", peak_kb());
}

fn peak_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("on Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("on Linux");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn corrupted_regions_yield_no_wrong_value() {
    let regions = Regions::start();
    let mut found = 0;
    // The corruption starts at the first byte, or after the status line.
    for (seed, from, one_in) in [(1, 0, 1), (2, 512, 50), (3, 0, 5_000), (4, 512, 100_000)] {
        let spoil = move |bytes: &mut [u8], words: Words| {
            let mut random = SplitMix64::new(seed);
            for byte in &mut bytes[from..] {
                let number = random.next_u64();
                if number.is_multiple_of(one_in) {
                    *byte = (number >> 40) as u8;
                }
            }
            words
        };
        regions.spoil(Box::new(spoil));
        found += regions.gets(&format!("one byte in {one_in} from {from} on"), 2);
    }
    assert!(found > 0, "sound items are found in a corrupted region");
}

/// Words of the region change all the time, and change back.
#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn changing_regions_yield_no_wrong_value() {
    let regions = Regions::start();
    regions.spoil(Box::new(|_, words| words));
    let right = regions.original.lock().expect("nobody panics").bytes();
    let is_over = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        let (area, is_over, right) = (&regions.area, &is_over, &right);
        scope.spawn(move || {
            let mut random = SplitMix64::new(99);
            let used = right.iter().rposition(|byte| *byte != 0).expect("it is not empty") as u64;
            while !is_over.load(Ordering::Relaxed) {
                let places: Vec<u64> = (0..200).map(|_| 512 + random.next_u64() % (used - 600)).collect();
                for at in &places {
                    area.copy_in(*at as usize, &random.next_u64().to_le_bytes());
                }
                for at in &places {
                    let at = *at as usize;
                    area.copy_in(at, &right[at..at + 8]);
                }
            }
        });
        let found: usize = (0..6).map(|_| regions.gets("changing", 3)).sum();
        is_over.store(true, Ordering::Relaxed);
        found
    });
    assert!(found > 0, "currently sound items are found");
}
