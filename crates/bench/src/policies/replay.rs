//! Replays a trace through the real store, in this process, and compares every hit with the stored value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fabcache_store::clock::TimeSource;
use fabcache_store::dump::{Cursor, VisitedItem};
use fabcache_store::{
    Change, CreateError, Detail, EvictionPolicy, Expiry, Get, Handle, NewValue, Payload, Store, StoreOptions,
    Value, Write,
};
use serde::Serialize;

use crate::trace::content::Content;
use crate::trace::tally::Tally;
use crate::trace::{Object, Trace};

/// Requests between progress reports.
const PROGRESS_REQUESTS: usize = 10_000;
/// Minimum and maximum memory of the store in which the overhead is measured.
const SAMPLE_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=128 << 20;

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreRun {
    /// Requests that missed.
    pub misses: Tally,
    /// SETs that the store refused because the value is too long for its memory.
    pub refused: u64,
    /// Valid items at the end.
    pub items: u64,
    /// Bytes of their keys and values.
    pub content_bytes: u64,
    /// Nanoseconds per request, including making its key and value and comparing the response.
    pub ns_per_request: f64,
    /// Bytes of keys and values stored.
    pub stored_bytes: u64,
    /// Bytes of items moved by reclaim.
    pub moved_bytes: u64,
    /// Segments emptied by moving their live items.
    pub segments_compacted: u64,
    /// Segments emptied by eviction.
    pub segments_evicted: u64,
}

/// The clock of a trace.
#[derive(Clone, Debug, Default)]
struct TraceTime(Arc<AtomicU64>);

impl TimeSource for TraceTime {
    fn monotonic(&self) -> (u64, u32) {
        (self.0.load(Ordering::Relaxed), 0)
    }

    fn wall(&self) -> (u64, u32) {
        (1_700_000_000 + self.0.load(Ordering::Relaxed), 0)
    }
}

/// A store with its handle.
struct Cache<'c> {
    handle: Handle,
    time: TraceTime,
    content: &'c Content,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'c> Cache<'c> {
    /// Creates a store; `None` if it needs more memory.
    fn create(
        memory_bytes: u64,
        eviction: EvictionPolicy,
        content: &'c Content,
    ) -> Result<Option<Cache<'c>>> {
        let time = TraceTime::default();
        let options = StoreOptions {
            memory_bytes,
            memory_bytes_max: memory_bytes,
            eviction,
            time: Box::new(time.clone()),
            ..StoreOptions::default()
        };
        match Store::open(options) {
            Ok(store) => {
                let handle = Handle::new(&Arc::new(store));
                Ok(Some(Cache { handle, time, content, key: Vec::new(), value: Vec::new() }))
            }
            Err(CreateError::TooSmall { .. }) => Ok(None),
            Err(error) => Err(error).context("cannot make a store"),
        }
    }

    /// Advances the clock by a second and runs the housekeeping.
    fn advance(&self, second: u32) {
        self.time.0.store(second.into(), Ordering::Relaxed);
        self.handle.maintain();
    }

    /// Returns whether the object is a hit; a wrong value is an error.
    fn get(&mut self, number: u32, object: &Object) -> Result<bool> {
        self.content.key(number, object, &mut self.key);
        self.value.clear();
        let right = match self.handle.get(&self.key, Detail::Basic, true, &mut self.value, |_, _| ()) {
            Get::Hit(_, Payload::Copied) => {
                self.content.is_value(number, object, [&self.value[..]].into_iter())
            }
            Get::Hit(_, Payload::Pinned(pinned)) => self.content.is_value(number, object, pinned.slices()),
            // This store has no flash.
            Get::Miss(_) | Get::OnFlash => return Ok(false),
        };
        ensure!(right, "the store returned a wrong value for object {number}");
        Ok(true)
    }

    /// Stores an object; returns whether that succeeded. The key is the one of the last `get`.
    fn set(&mut self, number: u32, object: &Object) -> bool {
        self.content.value(number, object, &mut self.value);
        let store = self.handle.store();
        let write = Write {
            expiry: Expiry::from_client(object.ttl_s.into(), store.now(), store.clock_origin()),
            ..Write::plain(NewValue::Is(Value::Bytes(&self.value)))
        };
        self.handle.mutate(&self.key, |_| (Change::Write(write), ())).is_ok()
    }

    /// Returns the number of valid items, and the bytes of their keys and values.
    fn live(&self) -> (u64, u64) {
        let (mut items, mut bytes) = (0, 0);
        let mut cursor = Cursor::START;
        while !cursor.is_done() {
            let visit = |visited: VisitedItem<'_>| {
                items += 1;
                bytes += visited.key.len() as u64 + visited.info.len;
            };
            cursor = self.handle.walk(cursor, visit, |_| ());
        }
        (items, bytes)
    }
}

/// Measures the bytes of an item beside key and value, including its share of the index.
///
/// The store is filled with the trace's objects until the first eviction. The region's header and
/// tables and free segments do not count.
///
/// # Errors
/// Memory is exhausted, or the store refuses an item that it should accept.
pub fn overhead_bytes(trace: &Trace, content: &Content) -> Result<f64> {
    let all: u64 = trace.objects.iter().map(Object::bytes).sum();
    let memory = (all / 2).clamp(*SAMPLE_BYTES.start(), *SAMPLE_BYTES.end());
    let mut cache =
        Cache::create(memory, EvictionPolicy::default(), content)?.context("no store is so small")?;
    // The clock does not advance, so nothing expires.
    for (number, object) in trace.objects.iter().enumerate() {
        cache.content.key(number as u32, object, &mut cache.key);
        ensure!(cache.set(number as u32, object), "the store refuses {} bytes", object.value_bytes);
        if cache.handle.store().sums().evictions > 0 {
            break;
        }
    }
    let (items, content_bytes) = cache.live();
    let usage = cache.handle.store().usage();
    ensure!(items > 0, "a store holds not even one item");
    Ok((usage.item_bytes + usage.index_bytes).saturating_sub(content_bytes) as f64 / items as f64)
}

/// Replays a trace in `memory_bytes`; `None` if no store is that small. `progress` receives the number of requests
/// since its last call.
///
/// # Errors
/// A hit differs from the stored value, or memory is exhausted.
pub fn replay(
    trace: &Trace,
    content: &Content,
    memory_bytes: u64,
    eviction: EvictionPolicy,
    progress: &dyn Fn(u64),
) -> Result<Option<StoreRun>> {
    let Some(mut cache) = Cache::create(memory_bytes, eviction, content)? else { return Ok(None) };
    let mut misses = Tally::new(trace);
    let (mut refused, mut stored_bytes) = (0, 0);
    let mut second = 0;
    let start = Instant::now();
    let mut next = 0..;
    for requests in trace.requests.chunks(PROGRESS_REQUESTS) {
        for (request, i) in requests.iter().zip(&mut next) {
            if request.second != second {
                second = request.second;
                cache.advance(second);
            }
            let object = &trace.objects[request.object as usize];
            if cache.get(request.object, object)? {
                continue;
            }
            misses.count(trace, i);
            if cache.set(request.object, object) {
                stored_bytes += object.bytes();
            } else {
                refused += 1;
            }
        }
        progress(requests.len() as u64);
    }
    let elapsed = start.elapsed();
    let sums = cache.handle.store().sums();
    let (items, content_bytes) = cache.live();
    Ok(Some(StoreRun {
        misses,
        refused,
        items,
        content_bytes,
        ns_per_request: elapsed.as_nanos() as f64 / trace.requests.len().max(1) as f64,
        stored_bytes,
        moved_bytes: sums.bytes_moved,
        segments_compacted: sums.segments_compacted,
        segments_evicted: sums.segments_evicted,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Request;
    use crate::trace::generate::{Kind, Shape};

    const SHAPE: Shape = Shape { scale: 0.005, seed: 1, speed: 1 };

    #[test]
    fn while_all_fits_only_first_and_expired_requests_miss() {
        let content = Content::default();
        let trace = SHAPE.generate(Kind::Sizes, 1.0);
        let reported = AtomicU64::new(0);
        let progress = |done| {
            reported.fetch_add(done, Ordering::Relaxed);
        };
        let run = replay(&trace, &content, 64 << 20, EvictionPolicy::default(), &progress)
            .expect("right values")
            .expect("a store");
        assert_eq!((run.misses.all, run.refused), (trace.objects.len() as u64, 0));
        assert_eq!((run.items, reported.into_inner()), (run.misses.all, 20_000));
        let bytes: u64 = trace.objects.iter().map(Object::bytes).sum();
        assert_eq!((run.content_bytes, run.stored_bytes), (bytes, bytes));

        let object = Object { key_bytes: 16, value_bytes: 9, ttl_s: 5 };
        let requests = [0, 4, 5, 9, 10, 11].map(|second| Request { second, object: 0 });
        let trace =
            Trace { objects: vec![object], requests: requests.to_vec(), warm_up: 2, ..Trace::default() };
        let run = replay(&trace, &content, 4 << 20, EvictionPolicy::default(), &|_| ())
            .expect("right values")
            .expect("a store");
        assert_eq!((run.misses.all, run.misses.warm), (3, 2), "at seconds 0, 5 and 10");
    }

    #[test]
    fn a_full_store_misses_more() {
        let content = Content::default();
        let trace = SHAPE.generate(Kind::Sizes, 1.0);
        let run = replay(&trace, &content, 1 << 20, EvictionPolicy::default(), &|_| ())
            .expect("right values")
            .expect("a store");
        assert!(run.misses.all > trace.objects.len() as u64 && run.misses.all < 20_000, "{run:?}");
        assert!(run.segments_evicted > 0 && run.items < trace.objects.len() as u64, "{run:?}");
        assert_eq!(
            replay(&trace, &content, 10_000, EvictionPolicy::default(), &|_| ()).expect("no error"),
            None,
            "too small"
        );
    }

    #[test]
    fn overhead_is_that_of_the_region() {
        let content = Content::default();
        let object = Object { key_bytes: 20, value_bytes: 100, ttl_s: 0 };
        let objects = vec![object; 100_000];
        let trace = Trace { objects, ..Trace::default() };
        let without_expiry = overhead_bytes(&trace, &content).expect("a store");
        // A slot has eight bytes; an item has at least a state word, options and lengths.
        assert!((13.0..60.0).contains(&without_expiry), "{without_expiry}");
        let objects = vec![Object { ttl_s: 60, ..object }; 100_000];
        let with_expiry = overhead_bytes(&Trace { objects, ..trace }, &content).expect("a store");
        assert!(with_expiry > without_expiry + 1.0, "{with_expiry} with an expiry, {without_expiry} without");
    }
}
