//! Access hints: sampled reads that readers of the region report.
#![cfg(not(loom))]

mod common;

use common::outside::map_all;
use common::{get, set, store};
use fabcache_layout::KeyHash;
use fabcache_layout::reader::{Location, Mapped, ReadOutcome, Rejection, Validation, reads_to_report};
use fabcache_layout::slot::FREQUENCY_MAX;
use fabcache_store::{Access, Handle};
use fabcache_testbed::random::SplitMix64;

const KEYS: usize = 30_000;
const READS: u32 = 150_000;

/// Draws keys by Zipf's law: the `k`-th most popular one with a frequency of `1 / k^exponent`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=KEYS).map(|k| {
            sum += (k as f64).powf(-exponent);
            sum
        });
        Zipf(sums.collect())
    }

    fn draw(&self, random: &mut SplitMix64) -> usize {
        let point = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * self.0[KEYS - 1];
        self.0.partition_point(|sum| *sum < point)
    }
}

/// Returns the hit ratio of reads through the server, or of a client with a location cache of this many entries that
/// reports sampled reads; and the number of reads it reported. Missed items are stored.
fn hit_ratio(exponent: f64, keeps: Option<usize>) -> (f64, f64) {
    let (store, _) = store(1 << 20, true, 1);
    let handle = Handle::new(&store);
    let mut client = Client {
        mapped: Mapped::open(map_all(store.region().expect("a memory file")), Validation::SameHost)
            .expect("a region"),
        kept: vec![None; keeps.unwrap_or(0)],
        reported: Vec::new(),
        told_sum: 0,
        random: SplitMix64::new(2),
    };
    let (zipf, mut random) = (Zipf::new(exponent), SplitMix64::new(1));
    let mut hits = 0;
    for i in 0..READS {
        let number = zipf.draw(&mut random);
        let key = format!("{number:020}");
        let hit = match keeps {
            None => get(&handle, key.as_bytes()).is_some(),
            Some(_) => client.read(&handle, number, key.as_bytes()),
        };
        // The first third fills memory.
        hits += u32::from(hit && i >= READS / 3);
        if !hit {
            set(&handle, key.as_bytes(), &[b'v'; 100]).expect("something is evicted");
        }
    }
    let sums = store.sums();
    assert!(sums.evictions > 1_000 && (keeps.is_none() || sums.accesses_outside > 1_000));
    (f64::from(hits) / f64::from(READS - READS / 3), client.told_sum as f64 / f64::from(hits) / 1.5)
}

/// A client on the server's host.
struct Client {
    mapped: Mapped,
    kept: Vec<Option<(usize, Location)>>,
    reported: Vec<Access>,
    told_sum: usize,
    random: SplitMix64,
}

impl Client {
    fn read(&mut self, handle: &Handle, number: usize, key: &[u8]) -> bool {
        self.mapped.begin(handle.store().now());
        let place = number % self.kept.len().max(1);
        let mut outcome = ReadOutcome::Stale(Rejection::Dead);
        if let Some(Some((other, location))) = self.kept.get(place)
            && *other == number
        {
            outcome = self.mapped.get_at(key, *location).0;
        }
        if matches!(outcome, ReadOutcome::Stale(_)) {
            outcome = self.mapped.get(key).0;
        }
        let ReadOutcome::Hit(hit) = outcome else { return false };
        if let Some(kept) = self.kept.get_mut(place) {
            *kept = Some((number, hit.location));
        }
        let reads = reads_to_report(&hit, (self.random.next_u64() >> 32) as u32);
        if reads > 0 {
            self.reported.push(Access { hash: self.mapped.reader().hash(key), reads });
        }
        // Reports are sent in batches.
        if self.reported.len() >= 32 {
            self.told_sum += self.reported.len();
            handle.note_accesses(self.reported.iter().copied());
            self.reported.clear();
        }
        true
    }
}

#[test]
fn external_reads_keep_items_like_server_reads() {
    for exponent in [0.8, 1.0] {
        let server = hit_ratio(exponent, None).0;
        for keeps in [0, 2_000] {
            let (outside, reported) = hit_ratio(exponent, Some(keeps));
            println!(
                "Zipf {exponent}: {server:.4} by the server; {keeps} locations cached: {outside:.4}, reported {reported:.3}"
            );
            // Reports are samples: some items that were read twice seem read once.
            assert!(outside >= server * 0.98 && reported < 0.5);
        }
    }
}

#[test]
fn hints_for_missing_items_do_nothing() {
    let (store, _) = store(1 << 20, true, 1);
    let handle = Handle::new(&store);
    let mut random = SplitMix64::new(7);
    set(&handle, b"key", b"value").expect("memory is free");
    let hostile: Vec<Access> = (0..50_000u32)
        .map(|i| Access { hash: KeyHash(random.next_u64()), reads: i as u8 })
        .chain([Access { hash: KeyHash(0), reads: 0 }, Access { hash: KeyHash(u64::MAX), reads: u8::MAX }])
        .collect();
    let before = store.sums().accesses_outside;
    handle.note_accesses(hostile);
    assert!(store.sums().accesses_outside - before < 500, "except for colliding tags");
    assert_eq!(get(&handle, b"key").expect("still there").1, b"value");
    let hash = store.hash(b"key");
    let before = store.sums();
    handle.note_accesses([Access { hash, reads: u8::MAX }]);
    let hits = store.sums().since(&before);
    let counted = if hash.0 % 16 == 0 { 255 } else { 0 };
    assert_eq!((hits.small_queue_hits, hits.main_queue_hits), (counted, 0), "a report is for so many reads");
    let mut reader = Mapped::open(map_all(store.region().expect("a memory file")), Validation::SameHost)
        .expect("a region");
    reader.begin(store.now());
    let ReadOutcome::Hit(hit) = reader.get(b"key").0 else { panic!("the item exists") };
    assert_eq!(hit.frequency, Some(FREQUENCY_MAX));
}
