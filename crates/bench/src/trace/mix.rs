//! Hybrid traces: a recorded trace mixed with a pattern of requests that it lacks. The same seed gives the same trace.

use serde::Serialize;

use super::generate::{FILLS_AND_BURSTS_OF_PERCENT, SESSION_PERCENT, WORKING_SETS};
use super::{Object, Request, Trace};
use crate::random::Random;

/// A pattern of requests to mix a recorded trace with. New objects have sizes of recorded ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Bursts of 1%, 10%, 30% and 65% of memory, each stored and then read, at equal distances.
    Bursts,
    /// For each recorded request a session: stored, and read once after 30% of memory was stored in sessions.
    Sessions,
    /// Scans over objects that are requested once: a fifth of all requests.
    Scan,
    /// For each recorded request an object that is requested once.
    OneHit,
    /// The trace in four parts, each with other objects.
    Change,
}

impl Mix {
    /// All mixes.
    pub const ALL: [Mix; 5] = [Mix::Bursts, Mix::Sessions, Mix::Scan, Mix::OneHit, Mix::Change];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Bursts => "bursts",
            Mix::Sessions => "sessions",
            Mix::Scan => "scan",
            Mix::OneHit => "one-hit",
            Mix::Change => "change",
        }
    }

    /// Returns the mix with this name.
    pub fn of_name(name: &str) -> Option<Mix> {
        Mix::ALL.into_iter().find(|mix| mix.name() == name)
    }

    /// Mixes a recorded trace for a memory that holds `fit` objects.
    pub fn with(self, recorded: &Trace, fit: u32, seed: u64) -> Trace {
        let mut mixer = Mixer::new(recorded, self, seed);
        match self {
            Mix::Bursts => mixer.bursts(fit),
            Mix::Sessions => mixer.sessions(percent_of(fit, SESSION_PERCENT)),
            Mix::Scan => mixer.scans(),
            Mix::OneHit => mixer.one_hits(),
            Mix::Change => mixer.changes(),
        }
        mixer.trace
    }
}

/// Recorded requests between scans, in scans: a fifth of all requests scans.
const SCAN_DISTANCE: usize = 4;
/// Scans of a trace.
const SCANS: usize = 40;

fn percent_of(fit: u32, percent: u32) -> u32 {
    (u64::from(fit) * u64::from(percent) / 100).max(1) as u32
}

/// Builds a hybrid trace.
struct Mixer<'t> {
    recorded: &'t Trace,
    trace: Trace,
    random: Random,
    /// The hybrid's index of each recorded object.
    known: Vec<Option<u32>>,
    second: u32,
}

impl<'t> Mixer<'t> {
    fn new(recorded: &'t Trace, mix: Mix, seed: u64) -> Mixer<'t> {
        let trace = Trace { name: format!("{}+{}", recorded.name, mix.name()), ..Trace::default() };
        let known = vec![None; recorded.objects.len()];
        Mixer { recorded, trace, random: Random::new(seed), known, second: 0 }
    }

    fn request(&mut self, object: u32) {
        self.trace.requests.push(Request { second: self.second, object });
    }

    fn add(&mut self, object: Object) -> u32 {
        self.trace.objects.push(object);
        self.trace.objects.len() as u32 - 1
    }

    fn request_recorded(&mut self, request: &Request) {
        self.second = request.second;
        let at = request.object as usize;
        let object = self.known[at].unwrap_or_else(|| self.add(self.recorded.objects[at]));
        self.known[at] = Some(object);
        self.request(object);
    }

    /// Requests a new object, and returns it.
    fn request_new(&mut self) -> u32 {
        let like = self.random.below(self.recorded.objects.len() as u32);
        let object = self.add(self.recorded.objects[like as usize]);
        self.request(object);
        object
    }

    fn bursts(&mut self, fit: u32) {
        let recorded = self.recorded;
        let distance = recorded.requests.len().div_ceil(FILLS_AND_BURSTS_OF_PERCENT.len() + 1).max(1);
        let mut percents = FILLS_AND_BURSTS_OF_PERCENT.into_iter();
        for part in recorded.requests.chunks(distance) {
            part.iter().for_each(|request| self.request_recorded(request));
            let Some(percent) = percents.next() else { continue };
            let burst: Vec<u32> = (0..percent_of(fit, percent)).map(|_| self.request_new()).collect();
            let from = self.trace.requests.len() as u32;
            burst.iter().for_each(|object| self.request(*object));
            self.trace.bursts.push((from..self.trace.requests.len() as u32).collect());
        }
    }

    fn sessions(&mut self, age: u32) {
        let mut sessions = std::collections::VecDeque::new();
        for request in &self.recorded.requests {
            self.request_recorded(request);
            sessions.push_back(self.request_new());
            if sessions.len() > age as usize {
                let oldest = sessions.pop_front();
                oldest.into_iter().for_each(|session| self.request(session));
            }
        }
    }

    fn scans(&mut self) {
        let scan = (self.recorded.requests.len() / SCANS / SCAN_DISTANCE).max(1);
        for part in self.recorded.requests.chunks(SCAN_DISTANCE * scan) {
            part.iter().for_each(|request| self.request_recorded(request));
            for _ in 0..part.len() / SCAN_DISTANCE {
                self.request_new();
            }
        }
    }

    fn one_hits(&mut self) {
        for request in &self.recorded.requests {
            self.request_recorded(request);
            self.request_new();
        }
    }

    fn changes(&mut self) {
        let part = self.recorded.requests.len().div_ceil(WORKING_SETS as usize).max(1);
        for requests in self.recorded.requests.chunks(part) {
            self.known.fill(None);
            requests.iter().for_each(|request| self.request_recorded(request));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::super::generate::{Kind, Shape};
    use super::*;

    /// Returns a trace of 4,000 requests in place of a recorded one: its objects have distinct sizes.
    fn recorded() -> Trace {
        let mut trace = Shape { scale: 0.001, seed: 1, speed: 1 }.generate(Kind::Zipf10, 1.0);
        (0..).zip(&mut trace.objects).for_each(|(number, object)| object.value_bytes = number);
        trace.requests.iter_mut().zip(0..).for_each(|(request, i)| request.second = i / 100);
        trace
    }

    /// Returns how often each object is requested.
    fn counts(requests: &[Request]) -> HashMap<u32, usize> {
        let mut counts = HashMap::new();
        requests.iter().for_each(|request| *counts.entry(request.object).or_insert(0) += 1);
        counts
    }

    /// Returns the sizes that identify the recorded object of each request.
    fn sizes<'t>(trace: &'t Trace, requests: impl IntoIterator<Item = &'t Request>) -> Vec<u32> {
        requests.into_iter().map(|request| trace.objects[request.object as usize].value_bytes).collect()
    }

    #[test]
    fn hybrids_are_whole_and_repeatable() {
        let recorded = recorded();
        for mix in Mix::ALL {
            assert_eq!(Mix::of_name(mix.name()), Some(mix));
            let trace = mix.with(&recorded, 1_000, 1);
            assert_eq!(trace.name, format!("zipf-1.0+{}", mix.name()));
            assert!(trace.requests.is_sorted_by_key(|request| request.second));
            assert_eq!(counts(&trace.requests).len(), trace.objects.len(), "{mix:?}: each is requested");
            let mut first = 0;
            for request in &trace.requests {
                assert!(request.object <= first, "{mix:?}: objects are in the order of their first requests");
                first = first.max(request.object + 1);
            }
            let again = mix.with(&recorded, 1_000, 1);
            assert_eq!((again.objects, again.requests), (trace.objects.clone(), trace.requests));
            let other = mix.with(&recorded, 1_000, 2);
            assert_eq!(other.objects == trace.objects, mix == Mix::Change, "{mix:?}: only new objects vary");
        }
    }

    #[test]
    fn bursts_are_between_the_recorded_requests() {
        let recorded = recorded();
        let trace = Mix::Bursts.with(&recorded, 1_000, 1);
        assert_eq!(trace.bursts.iter().map(Vec::len).collect::<Vec<_>>(), [10, 100, 300, 650]);
        let (mut rest, mut at) = (Vec::new(), 0);
        for (burst, part) in trace.bursts.iter().zip(1..) {
            let (stored, read) = (burst[0] as usize - burst.len(), burst[0] as usize);
            rest.extend_from_slice(&trace.requests[at..stored]);
            at = read + burst.len();
            assert_eq!(rest.len(), 800 * part, "a fifth of the trace before each burst");
            assert_eq!(trace.requests[stored..read], trace.requests[read..at], "stored, then read");
            let counts = counts(&trace.requests);
            assert!(trace.requests[read..at].iter().all(|request| counts[&request.object] == 2), "new");
        }
        rest.extend_from_slice(&trace.requests[at..]);
        assert_eq!(sizes(&trace, &rest), sizes(&recorded, &recorded.requests));
    }

    #[test]
    fn each_session_is_read_once_at_its_age() {
        let recorded = recorded();
        let trace = Mix::Sessions.with(&recorded, 1_000, 1);
        let mut requests = trace.requests.iter();
        let (mut kept, mut sessions) = (Vec::new(), Vec::new());
        while let (Some(of_trace), Some(new)) = (requests.next(), requests.next()) {
            kept.push(*of_trace);
            sessions.push(new.object);
            if sessions.len() > 300 {
                let read = requests.next().map(|request| request.object);
                assert_eq!(read, Some(sessions[sessions.len() - 301]), "30% of 1,000 were stored since");
            }
        }
        assert_eq!(sizes(&trace, &kept), sizes(&recorded, &recorded.requests));
        let counts = counts(&trace.requests);
        assert!(sessions.iter().take(3_700).all(|session| counts[session] == 2), "stored and read once");
    }

    #[test]
    fn scans_and_one_hits_request_their_part_once() {
        let recorded = recorded();
        for (mix, new) in [(Mix::Scan, 1_000), (Mix::OneHit, 4_000)] {
            let trace = mix.with(&recorded, 1_000, 1);
            assert_eq!(trace.requests.len(), 4_000 + new, "{mix:?}");
            assert_eq!(trace.objects.len(), recorded.objects.len() + new, "{mix:?}: new objects");
            let once = |trace: &Trace| counts(&trace.requests).values().filter(|count| **count == 1).count();
            assert_eq!(once(&trace), once(&recorded) + new, "{mix:?}: each is requested once");
        }
        let scan = Mix::Scan.with(&recorded, 1_000, 1);
        let counts = counts(&scan.requests);
        assert!(scan.requests[100..125].iter().all(|request| counts[&request.object] == 1), "25 after 100");
    }

    #[test]
    fn changes_replace_all_objects() {
        let recorded = recorded();
        let trace = Mix::Change.with(&recorded, 1_000, 1);
        assert_eq!(sizes(&trace, &trace.requests), sizes(&recorded, &recorded.requests));
        let mut seen = HashSet::new();
        for part in trace.requests.chunks(1_000) {
            let objects: HashSet<u32> = part.iter().map(|request| request.object).collect();
            assert!(seen.is_disjoint(&objects), "no object of an earlier part");
            seen.extend(objects);
        }
    }
}
