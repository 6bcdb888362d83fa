//! Traces: sequences of requests, recorded and synthetic.
//!
//! - `generate.rs`: synthetic traces; `file.rs`: recorded ones in memory; `mix.rs`: hybrids of both.
//! - `record.rs`: one request of a recorded trace; `reader.rs`: reads them one by one, from files of any length.
//! - `tally.rs`: numbers of requests and misses.
//! - `content.rs`: the key and value of an object.
//! - `replay.rs`: traces replayed on servers; `engine.rs`: sends requests; `expected.rs`: checks
//!   responses.

pub mod content;
mod engine;
mod expected;
pub mod file;
pub mod generate;
pub mod mix;
pub mod plan;
pub mod reader;
pub mod record;
pub mod replay;
pub mod tally;

/// An object cached under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Bytes of the key.
    pub key_bytes: u8,
    /// Bytes of the value.
    pub value_bytes: u32,
    /// Its time to live in seconds; 0 for unlimited.
    pub ttl_s: u32,
}

impl Object {
    /// Returns the bytes of key and value.
    pub fn bytes(&self) -> u64 {
        u64::from(self.key_bytes) + u64::from(self.value_bytes)
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The time in seconds; never decreases.
    pub second: u32,
    /// The object: an index into the trace's objects.
    pub object: u32,
}

/// A sequence of requests. Each object is requested at least once.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Its name in tables.
    pub name: String,
    /// Objects, in the order of their first requests.
    pub objects: Vec<Object>,
    /// Requests, in order.
    pub requests: Vec<Request>,
    /// The number of requests that warm the cache up.
    pub warm_up: usize,
    /// The reads of each burst of objects that are stored and then read: ascending indices of requests.
    pub bursts: Vec<Vec<u32>>,
}

/// No next access.
pub const NEVER: u32 = u32::MAX;

impl Trace {
    /// Returns the memory of all objects, each with `overhead_bytes` beside key and value.
    pub fn footprint_bytes(&self, overhead_bytes: f64) -> u64 {
        self.charges(overhead_bytes).iter().map(|&bytes| u64::from(bytes)).sum()
    }

    /// Returns the bytes that each object is charged.
    pub fn charges(&self, overhead_bytes: f64) -> Vec<u32> {
        self.objects.iter().map(|object| (object.bytes() as f64 + overhead_bytes).round() as u32).collect()
    }

    /// Returns for each request the index of the next one for the same object, or [`NEVER`].
    pub fn next_accesses(&self) -> Vec<u32> {
        let mut seen = vec![NEVER; self.objects.len()];
        let mut next = vec![NEVER; self.requests.len()];
        for (i, request) in self.requests.iter().enumerate().rev() {
            next[i] = std::mem::replace(&mut seen[request.object as usize], i as u32);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_accesses_and_footprint() {
        let object = |value_bytes| Object { key_bytes: 10, value_bytes, ttl_s: 0 };
        let requests = [0, 1, 0, 0, 1].map(|object| Request { second: 0, object });
        let objects = vec![object(5), object(7)];
        let trace = Trace { objects, requests: requests.to_vec(), ..Trace::default() };
        assert_eq!(trace.next_accesses(), [2, 4, 3, NEVER, NEVER]);
        assert_eq!(trace.charges(30.4), [45, 47]);
        assert_eq!(trace.footprint_bytes(30.4), 92);
    }
}
