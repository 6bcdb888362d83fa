//! Numbers of requests and misses, of a whole trace and of its parts.

use serde::Serialize;

use super::Trace;

/// The requests of a trace that a miss ratio is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All requests.
    All,
    /// The requests after the warm-up.
    Warm,
    /// The reads of one burst, counted from 0.
    Burst(usize),
}

/// A number of requests or misses: of a whole trace, and of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// In the whole trace.
    pub all: u64,
    /// After the warm-up.
    pub warm: u64,
    /// Among the reads of each burst.
    pub bursts: Vec<u64>,
}

impl Tally {
    /// Returns zeros for this trace.
    pub fn new(trace: &Trace) -> Tally {
        Tally { all: 0, warm: 0, bursts: vec![0; trace.bursts.len()] }
    }

    /// Returns the numbers of the trace's requests.
    pub fn of_requests(trace: &Trace) -> Tally {
        Tally {
            all: trace.requests.len() as u64,
            warm: trace.requests.len().saturating_sub(trace.warm_up) as u64,
            bursts: trace.bursts.iter().map(|reads| reads.len() as u64).collect(),
        }
    }

    /// Counts a request of the trace, given by its index.
    pub fn count(&mut self, trace: &Trace, request: usize) {
        self.all += 1;
        self.warm += u64::from(request >= trace.warm_up);
        for (count, reads) in self.bursts.iter_mut().zip(&trace.bursts) {
            *count += u64::from(reads.binary_search(&(request as u32)).is_ok());
        }
    }

    /// Returns the number of a part; 0 for a burst that the trace does not have.
    pub fn of(&self, part: Part) -> u64 {
        match part {
            Part::All => self.all,
            Part::Warm => self.warm,
            Part::Burst(burst) => self.bursts.get(burst).copied().unwrap_or(0),
        }
    }

    /// Returns the miss ratio of a part of so many requests; `None` if it has none.
    pub fn ratio(&self, requests: &Tally, part: Part) -> Option<f64> {
        let requests = requests.of(part);
        (requests > 0).then(|| self.of(part) as f64 / requests as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Object, Request};

    #[test]
    fn requests_are_counted_in_their_parts() {
        let object = Object { key_bytes: 10, value_bytes: 1, ttl_s: 0 };
        let requests = vec![Request { second: 0, object: 0 }; 8];
        let bursts = vec![vec![1, 3], vec![4, 6, 7]];
        let trace = Trace { objects: vec![object], requests, warm_up: 2, bursts, ..Trace::default() };
        let requests = Tally::of_requests(&trace);
        let mut counted = Tally::new(&trace);
        (0..8).for_each(|request| counted.count(&trace, request));
        assert_eq!(counted, requests);
        assert_eq!(requests, Tally { all: 8, warm: 6, bursts: vec![2, 3] });

        let mut misses = Tally::new(&trace);
        [0, 1, 6].into_iter().for_each(|request| misses.count(&trace, request));
        assert_eq!(misses, Tally { all: 3, warm: 1, bursts: vec![1, 1] });
        let ratio = |part| misses.ratio(&requests, part);
        assert_eq!([Part::All, Part::Burst(0), Part::Burst(2)].map(ratio), [Some(0.375), Some(0.5), None]);
    }
}
