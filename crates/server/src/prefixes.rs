//! `stats detail`: requests counted by the prefix of their keys, up to the delimiter.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bounds::PREFIXES_MAX;

/// Counts of one prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Requested keys.
    pub gets: u64,
    /// Keys found.
    pub hits: u64,
    /// Values offered.
    pub sets: u64,
    /// Deletes.
    pub deletes: u64,
}

/// The counted operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A get, and whether it hit.
    Get(bool),
    /// A store.
    Set,
    /// A delete.
    Delete,
}

/// The counts of all prefixes. Off, it costs one load a request.
#[derive(Debug)]
pub struct Prefixes {
    on: AtomicBool,
    delimiter: u8,
    counts: Mutex<BTreeMap<Vec<u8>, PrefixCounts>>,
}

impl Prefixes {
    /// Counts by the part of the key before `delimiter`.
    pub fn new(delimiter: u8, on: bool) -> Prefixes {
        Prefixes { on: AtomicBool::new(on), delimiter, counts: Mutex::default() }
    }

    /// Starts or stops counting.
    pub fn set(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Returns whether it is counting.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Counts a request for `key`.
    #[inline]
    pub fn count(&self, key: &[u8], request: Request) {
        if self.is_on() {
            self.count_now(key, request);
        }
    }

    #[cold]
    fn count_now(&self, key: &[u8], request: Request) {
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let mut counts = self.counts.lock().expect("no thread panics while it counts");
        let prefix = &key[..end];
        let is_full = counts.len() == PREFIXES_MAX;
        let counts = match counts.get_mut(prefix) {
            Some(counts) => counts,
            None if is_full => return,
            None => counts.entry(prefix.to_vec()).or_default(),
        };
        match request {
            Request::Get(hit) => {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            }
            Request::Set => counts.sets += 1,
            Request::Delete => counts.deletes += 1,
        }
    }

    /// Visits prefixes and their counts in order, from the one after `last` on, until `visit` returns false; returns
    /// whether all were visited.
    pub fn visit_after(
        &self,
        last: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &PrefixCounts) -> bool,
    ) -> bool {
        let counts = self.counts.lock().expect("no thread panics while it counts");
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        counts.range::<[u8], _>((after, Bound::Unbounded)).all(|(prefix, counts)| visit(prefix, counts))
    }

    /// Forgets all counts.
    pub fn clear(&self) {
        self.counts.lock().expect("no thread panics while it counts").clear();
    }
}
