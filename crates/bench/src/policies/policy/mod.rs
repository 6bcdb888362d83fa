//! Reference policies, simulated: objects are numbers, memory is a sum of bytes.
//!
//! All policies have the same budget and are charged the same bytes per object. Expired objects
//! disappear at once, without cost, and free their memory.

mod belady;
mod lists;
mod lru;
mod s3fifo;
mod segmented;
mod sieve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

pub use belady::Belady;
pub use lru::Lru;
pub use s3fifo::S3Fifo;
pub use segmented::Segmented;
pub use sieve::Sieve;

use crate::trace::tally::Tally;
use crate::trace::{NEVER, Trace};

/// The properties of an access besides its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The time in seconds.
    pub second: u32,
    /// The index of the request that is this object's next hit if it is kept, or [`NEVER`].
    pub next: u32,
}

/// A replacement policy.
pub trait Policy {
    /// Accesses an object; returns whether it is kept, which counts as a hit.
    fn touch(&mut self, object: u32, access: Access) -> bool;

    /// Stores an object that is not kept, evicting others, or refuses it.
    fn insert(&mut self, object: u32, access: Access);

    /// Removes an expired object, if it is kept.
    fn remove(&mut self, object: u32);

    /// Returns the bytes of all kept objects.
    fn bytes(&self) -> u64;
}

/// The name of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// Least recently used.
    Lru,
    /// memcached's segmented LRU.
    Segmented,
    /// S3-FIFO.
    S3Fifo,
    /// SIEVE.
    Sieve,
    /// Belady's optimum.
    Belady,
}

impl Name {
    /// All policies.
    pub const ALL: [Name; 5] = [Name::Lru, Name::Segmented, Name::S3Fifo, Name::Sieve, Name::Belady];

    /// Returns the heading of the policy's column.
    pub fn heading(self) -> &'static str {
        match self {
            Name::Lru => "LRU",
            Name::Segmented => "segmented",
            Name::S3Fifo => "S3-FIFO",
            Name::Sieve => "SIEVE",
            Name::Belady => "Belady",
        }
    }

    /// Returns the policy with a budget of `bytes` and these charges.
    pub fn policy(self, bytes: u64, charges: &[u32]) -> Box<dyn Policy + '_> {
        match self {
            Name::Lru => Box::new(Lru::new(bytes, charges)),
            Name::Segmented => Box::new(Segmented::new(bytes, charges)),
            Name::S3Fifo => Box::new(S3Fifo::new(bytes, charges)),
            Name::Sieve => Box::new(Sieve::new(bytes, charges)),
            Name::Belady => Box::new(Belady::new(bytes, charges)),
        }
    }
}

/// Replays a trace; returns the misses. `next` is from [`Trace::next_accesses`].
pub fn misses(policy: &mut dyn Policy, trace: &Trace, next: &[u32]) -> Tally {
    let mut misses = Tally::new(trace);
    let mut expiries = Expiries::new(trace);
    for (i, (request, &next)) in trace.requests.iter().zip(next).enumerate() {
        let (object, second) = (request.object, request.second);
        expiries.advance(second, |expired| policy.remove(expired));
        let next_second = || trace.requests[next as usize].second;
        let until = |expiry: u32| if next == NEVER || next_second() >= expiry { NEVER } else { next };
        if !policy.touch(object, Access { second, next: until(expiries.of(object)) }) {
            misses.count(trace, i);
            let expiry = expiries.store(object, second);
            policy.insert(object, Access { second, next: until(expiry) });
        }
    }
    misses
}

/// The expiry times of objects.
struct Expiries<'t> {
    trace: &'t Trace,
    /// The expiry of each object, as last stored.
    expiry: Vec<u32>,
    /// Objects that may expire, by second.
    due: BTreeMap<u32, Vec<u32>>,
    second: u32,
}

impl<'t> Expiries<'t> {
    fn new(trace: &'t Trace) -> Expiries<'t> {
        Expiries { trace, expiry: vec![NEVER; trace.objects.len()], due: BTreeMap::new(), second: 0 }
    }

    /// Returns the second from which on the object is invalid.
    fn of(&self, object: u32) -> u32 {
        self.expiry[object as usize]
    }

    fn store(&mut self, object: u32, second: u32) -> u32 {
        let ttl = self.trace.objects[object as usize].ttl_s;
        if ttl > 0 {
            self.expiry[object as usize] = second + ttl;
            self.due.entry(second + ttl).or_default().push(object);
        }
        self.of(object)
    }

    fn advance(&mut self, second: u32, mut expired: impl FnMut(u32)) {
        if second == self.second {
            return;
        }
        self.second = second;
        while let Some(first) = self.due.first_entry().filter(|first| *first.key() <= second) {
            let (due, objects) = first.remove_entry();
            // Objects that were stored again expire later.
            objects.into_iter().filter(|&object| self.expiry[object as usize] == due).for_each(&mut expired);
        }
    }
}
