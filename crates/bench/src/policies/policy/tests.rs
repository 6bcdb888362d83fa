//! Hand-computed sequences, models, and properties of every policy.

use proptest::prelude::*;

use super::{Access, Belady, Lru, Name, Policy, S3Fifo, Segmented, Sieve, misses};
use crate::random::Random;
use crate::trace::{NEVER, Object, Request, Trace};

/// Every object is charged 1.
const ONES: [u32; 26] = [1; 26];

/// Accesses objects named by letters, all in the same second; returns `h` or `m` for each.
fn play(policy: &mut dyn Policy, letters: &str) -> String {
    letters.bytes().map(|letter| if hits(policy, letter, 0) { 'h' } else { 'm' }).collect()
}

/// Makes one access as [`misses`] does, for a policy that does not use the future.
fn hits(policy: &mut dyn Policy, letter: u8, second: u32) -> bool {
    let (object, access) = (u32::from(letter - b'a'), Access { second, next: NEVER });
    let hit = policy.touch(object, access);
    if !hit {
        policy.insert(object, access);
    }
    hit
}

/// Returns requests for objects named by letters, all in the same second.
fn trace(letters: &str) -> Trace {
    let object = Object { key_bytes: 1, value_bytes: 0, ttl_s: 0 };
    let request = |letter: u8| Request { second: 0, object: u32::from(letter - b'a') };
    let requests = letters.bytes().map(request).collect();
    Trace { objects: vec![object; 26], requests, ..Trace::default() }
}

fn misses_of(name: Name, trace: &Trace, budget: u64, charges: &[u32]) -> u64 {
    misses(&mut *name.policy(budget, charges), trace, &trace.next_accesses()).all
}

#[test]
fn lru_evicts_the_least_recently_used() {
    assert_eq!(play(&mut Lru::new(3, &ONES), "abcadbcab"), "mmmhmmmmh");
}

#[test]
fn sieve_evicts_the_first_unmarked_before_the_hand() {
    // The hand clears a's mark, evicts b, then c at its position, then d.
    assert_eq!(play(&mut Sieve::new(3, &ONES), "abcadbca"), "mmmhmmmh");
}

#[test]
fn belady_evicts_the_object_needed_last() {
    // c is never needed again, so it is not admitted.
    assert_eq!(misses_of(Name::Belady, &trace("abcab"), 2, &ONES), 3);
    // a makes room for c.
    assert_eq!(misses_of(Name::Belady, &trace("abcbcab"), 2, &ONES), 4);
    let mut belady = Belady::new(2, &ONES);
    belady.insert(0, Access { second: 0, next: 5 });
    belady.insert(1, Access { second: 0, next: 3 });
    belady.insert(2, Access { second: 0, next: 9 });
    assert_eq!(belady.bytes(), 2);
    assert!(!belady.touch(2, Access { second: 0, next: NEVER }), "the object needed last is not admitted");
}

#[test]
fn s3_fifo_promotes_objects_hit_twice() {
    let mut policy = S3Fifo::new(20, &ONES);
    // SMALL has a and b, MAIN the other eighteen.
    assert_eq!(play(&mut policy, "abcdefghijklmnopqrst"), "m".repeat(20));
    // a is hit twice, and goes to MAIN when u comes; b goes to GHOST.
    assert_eq!(play(&mut policy, "aau"), "hhm");
    // MAIN exceeds its part: v evicts c, which is forgotten. b returns, to MAIN, and u goes to GHOST.
    assert_eq!(play(&mut policy, "vba"), "mmh");
    // c enters SMALL, and w and x evict it; b stays.
    assert_eq!(play(&mut policy, "cwxbc"), "mmmhm");
    assert_eq!(policy.bytes(), 20);
}

#[test]
fn s3_fifo_does_not_admit_objects_as_large_as_small() {
    let charges = [2, 1];
    let mut policy = S3Fifo::new(20, &charges);
    assert_eq!(play(&mut policy, "aabb"), "mmmh");
}

#[test]
fn segmented_lru_keeps_objects_accessed_twice() {
    let mut policy = Segmented::new(10, &ONES);
    // Of ten, HOT keeps j and i.
    assert_eq!(play(&mut policy, "abcdefghij"), "m".repeat(10));
    // One hit does not save b; two take a from COLD to WARM.
    assert_eq!(play(&mut policy, "baa"), "hhh");
    assert_eq!(play(&mut policy, "kab"), "mhm");
    // j is hit twice in HOT, and stays when it leaves that.
    assert_eq!(play(&mut policy, "jj"), "hh");
    assert_eq!(play(&mut policy, "nopqrstuvwxyz"), "m".repeat(13));
    assert_eq!(play(&mut policy, "aji"), "hhm");
}

#[test]
fn segmented_lru_lets_old_items_cool() {
    let mut policy = Segmented::new(10, &ONES);
    // At second 0 HOT has two of ten, at second 100 these two are as old as COLD's tail.
    play(&mut policy, "abcdefghij");
    assert!(!hits(&mut policy, b'k', 100));
    // So all but k are in COLD now, and nine more evict them all.
    let others = b"lmnopqrst";
    others.iter().for_each(|letter| assert!(!hits(&mut policy, *letter, 100)));
    assert!(hits(&mut policy, b'k', 100), "hit before it cools");
    assert!(!hits(&mut policy, b'j', 100));
}

#[test]
fn expired_objects_miss_and_free_their_memory() {
    let object = |ttl_s| Object { key_bytes: 1, value_bytes: 0, ttl_s };
    let requests = [(0, 0), (4, 0), (5, 0), (6, 1), (7, 1), (9, 0), (11, 0), (12, 1)];
    let trace = Trace {
        objects: vec![object(5), object(0)],
        requests: requests.map(|(second, object)| Request { second, object }).to_vec(),
        ..Trace::default()
    };
    // Object 0 is stored at seconds 0, 5 and 11, object 1 once, if both fit.
    for name in Name::ALL.into_iter().filter(|name| *name != Name::Belady) {
        assert_eq!(misses_of(name, &trace, 20, &[1, 1]), 4, "{name:?}");
    }
    assert_eq!(misses_of(Name::Belady, &trace, 2, &[1, 1]), 4);
    let mut policy = Lru::new(2, &ONES);
    play(&mut policy, "ab");
    policy.remove(0);
    policy.remove(5);
    assert_eq!(policy.bytes(), 1);
}

/// Returns requests in which low numbers are more frequent, for objects of several sizes.
fn skewed_trace() -> (Trace, Vec<u32>) {
    let mut random = Random::new(1);
    let objects = 3_000;
    let charges = (0..objects).map(|_| 30 + random.below(500)).collect();
    let object = Object { key_bytes: 1, value_bytes: 0, ttl_s: 0 };
    let mut skewed = |_| {
        let part = random.below(objects) * random.below(objects) / objects;
        Request { second: 0, object: part * random.below(objects) / objects }
    };
    let requests = (0..20_000).map(&mut skewed).collect();
    (Trace { objects: vec![object; objects as usize], requests, ..Trace::default() }, charges)
}

/// The counts of libCacheSim 0.3.5 (its Python package) for the same requests, sizes and budgets.
#[test]
fn misses_are_those_of_the_reference_simulator() {
    let (trace, charges) = skewed_trace();
    for (budget, [lru, s3_fifo, sieve]) in
        [(20_000, [17_418, 15_533, 15_491]), (100_000, [10_542, 8_890, 8_928])]
    {
        assert_eq!(misses_of(Name::Lru, &trace, budget, &charges), lru);
        assert_eq!(misses_of(Name::S3Fifo, &trace, budget, &charges), s3_fifo);
        assert_eq!(misses_of(Name::Sieve, &trace, budget, &charges), sieve);
    }
}

/// Generates requests over some objects, with times to live and sizes.
fn random_trace(ttl_s: impl Strategy<Value = u32>) -> impl Strategy<Value = (Trace, Vec<u32>)> {
    let objects = prop::collection::vec((ttl_s, 1u32..30), 20);
    let requests = prop::collection::vec((0u32..20, 0u32..20, 0u32..2), 1..400);
    (objects, requests).prop_map(|(objects, requests)| {
        let mut second = 0;
        let mut request = |(one, other, later): (u32, u32, u32)| {
            second += later;
            // Low numbers are requested more often.
            Request { second, object: one.min(other) }
        };
        let charges = objects.iter().map(|(_, charge)| *charge).collect();
        let object = |(ttl_s, _): (u32, u32)| Object { key_bytes: 1, value_bytes: 0, ttl_s };
        let trace = Trace {
            objects: objects.into_iter().map(object).collect(),
            requests: requests.into_iter().map(&mut request).collect(),
            ..Trace::default()
        };
        (trace, charges)
    })
}

/// Checks a policy's behaviour: it keeps only inserted objects, within its budget.
struct CheckedPolicy<'c> {
    policy: Box<dyn Policy + 'c>,
    budget: u64,
    charges: &'c [u32],
    /// Objects that may be kept: inserted, and not known to be evicted.
    given: Vec<bool>,
}

impl Policy for CheckedPolicy<'_> {
    fn touch(&mut self, object: u32, access: Access) -> bool {
        let hit = self.policy.touch(object, access);
        assert!(!hit || self.given[object as usize], "{object} was not stored, or has expired");
        hit
    }

    fn insert(&mut self, object: u32, access: Access) {
        self.given[object as usize] = true;
        self.policy.insert(object, access);
        assert!(self.bytes() <= self.budget, "{} of {}", self.bytes(), self.budget);
    }

    fn remove(&mut self, object: u32) {
        let before = self.bytes();
        self.given[object as usize] = false;
        self.policy.remove(object);
        let freed = before - self.bytes();
        assert!(freed == 0 || freed == u64::from(self.charges[object as usize]));
    }

    fn bytes(&self) -> u64 {
        self.policy.bytes()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn budgets_hold((trace, charges) in random_trace(0u32..10), budget in 1u64..200) {
        let next = trace.next_accesses();
        for name in Name::ALL {
            let policy = name.policy(budget, &charges);
            let given = vec![false; charges.len()];
            misses(&mut CheckedPolicy { policy, budget, charges: &charges, given }, &trace, &next);
        }
    }

    #[test]
    fn no_policy_beats_belady((trace, _) in random_trace(Just(0)), budget in 1u64..20) {
        let charges = vec![1; trace.objects.len()];
        let best = misses_of(Name::Belady, &trace, budget, &charges);
        for name in Name::ALL {
            prop_assert!(best <= misses_of(name, &trace, budget, &charges), "{:?}", name);
        }
    }

    #[test]
    fn lru_is_a_list((trace, charges) in random_trace(Just(0)), budget in 1u64..200) {
        let mut newest_last: Vec<u32> = Vec::new();
        let mut expected = 0;
        let charge = |object: u32| u64::from(charges[object as usize]);
        for request in &trace.requests {
            match newest_last.iter().position(|object| *object == request.object) {
                Some(place) => {
                    newest_last.remove(place);
                    newest_last.push(request.object);
                }
                None => {
                    expected += 1;
                    if charge(request.object) <= budget {
                        newest_last.push(request.object);
                    }
                    while newest_last.iter().map(|object| charge(*object)).sum::<u64>() > budget {
                        newest_last.remove(0);
                    }
                }
            }
        }
        prop_assert_eq!(misses_of(Name::Lru, &trace, budget, &charges), expected);
    }

    #[test]
    fn objects_that_fit_are_kept((trace, charges) in random_trace(Just(0))) {
        let mut requested: Vec<u32> = trace.requests.iter().map(|request| request.object).collect();
        requested.sort_unstable();
        requested.dedup();
        // S3-FIFO refuses objects as large as SMALL's tenth.
        for name in Name::ALL {
            prop_assert_eq!(misses_of(name, &trace, 1_000, &charges), requested.len() as u64, "{:?}", name);
        }
    }
}
