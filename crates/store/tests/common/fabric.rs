//! A simulated fabric: reads of a region run in chunks of a few bytes whenever the test advances them, and complete
//! later in any order.

use std::any::Any;
use std::collections::HashMap;

use fabcache_layout::Memory;
use fabcache_layout::reader::Remote;
use fabcache_layout::reader::remote::{Arrival, Fetch, GetId, Now, To};

/// The maximum number of chunks per read; short reads run word by word.
const PARTS_MAX: usize = 64;

/// The reads in flight.
#[derive(Debug)]
pub struct Fabric {
    memory: Memory,
    in_order: bool,
    /// Delivers each word of short reads in two halves: all low ones first.
    halves: bool,
    reads: Vec<Read>,
    values: HashMap<GetId, Vec<u8>>,
    /// The number of reads posted so far, and of those at the region's header.
    pub posted: (u64, u64),
    /// A value that must live as long as the fabric.
    kept: Option<Box<dyn Any>>,
    /// The current time.
    pub ns: u64,
}

#[derive(Debug)]
struct Read {
    fetch: Fetch,
    bytes: Vec<u8>,
    /// The chunks still to read, as offsets in the region and lengths.
    left: Vec<(u64, usize)>,
}

impl Fabric {
    /// Creates a fabric to a region mapped here. `in_order` makes each read start after the previous one ended.
    pub fn new(memory: Memory, in_order: bool) -> Fabric {
        Fabric {
            memory,
            in_order,
            halves: false,
            reads: Vec::new(),
            values: HashMap::new(),
            posted: (0, 0),
            kept: None,
            ns: 0,
        }
    }

    /// Like [`Fabric::new`], also keeping a value alive.
    pub fn keeping(self, kept: Box<dyn Any>) -> Fabric {
        Fabric { kept: Some(kept), ..self }
    }

    /// Like [`Fabric::new`], delivering words in halves, as providers may that copy memory.
    pub fn halving(self) -> Fabric {
        Fabric { halves: true, ..self }
    }

    /// Reads the first half of every word of the reads that have just been posted.
    pub fn go_halfway(&mut self) {
        for read in &mut self.reads {
            for (offset, len) in read.left.drain(read.left.len() / 2..).rev() {
                let from = (offset - read.fetch.offset) as usize;
                self.memory.copy_out(offset, &mut read.bytes[from..from + len]);
            }
        }
    }

    /// Reads all but the second half of the last word of the reads that have just been posted.
    pub fn go_to_last_half(&mut self) {
        for read in &mut self.reads {
            let last = read.fetch.offset + read.fetch.len as u64 - 4;
            for (offset, len) in read.left.extract_if(.., |(offset, _)| *offset != last) {
                let from = (offset - read.fetch.offset) as usize;
                self.memory.copy_out(offset, &mut read.bytes[from..from + len]);
            }
        }
    }

    /// Returns whether two buckets of the index are being read.
    pub fn has_buckets(&self) -> bool {
        self.reads.iter().any(|read| read.fetch.len == 128 && read.fetch.offset.is_multiple_of(64))
    }

    /// Returns whether the overflow buckets of a group are being read.
    pub fn has_overflow(&self) -> bool {
        self.reads.iter().any(|read| read.fetch.len == 256 && read.fetch.offset.is_multiple_of(64))
    }

    /// Returns the number of incomplete reads.
    pub fn in_flight(&self) -> usize {
        self.reads.len()
    }

    /// Returns whether the status line is being read.
    pub fn has_lines(&self) -> bool {
        self.reads.iter().any(|read| read.fetch.offset < 4096)
    }

    /// Returns whether values are being assembled.
    pub fn has_values(&self) -> bool {
        self.reads.iter().any(|read| matches!(read.fetch.to, To::Value { .. }))
    }

    /// Posts every fetch that the reader requests; `random` returns numbers below its argument.
    pub fn post(&mut self, remote: &mut Remote<Vec<u8>, u64>, random: &mut impl FnMut(usize) -> usize) {
        while let Some(fetch) = remote.next_fetch(self.ns) {
            self.post_one(fetch, random);
        }
    }

    /// Posts one fetch.
    pub fn post_one(&mut self, fetch: Fetch, random: &mut impl FnMut(usize) -> usize) {
        let end = fetch.offset + fetch.len as u64;
        assert!(fetch.len > 0 && self.memory.contains(fetch.offset, fetch.len as u64), "{fetch:?}");
        let words = fetch.len.div_ceil(8).div_ceil(PARTS_MAX) as u64;
        // Cut at multiples of 8, wherever the first byte is.
        let mut left = Vec::new();
        let mut at = fetch.offset;
        while at < end {
            let to = (at / 8 * 8 + 8 * words).min(end);
            left.push((at, (to - at) as usize));
            at = to;
        }
        for i in (1..left.len()).rev() {
            left.swap(i, random(i + 1));
        }
        if self.halves && fetch.offset.is_multiple_of(8) && left.iter().all(|(_, len)| *len == 8) {
            let halves = |half| left.iter().map(move |(at, _)| (at + half, 4));
            left = halves(4).chain(halves(0)).collect();
        }
        if let To::Value { get, whole, .. } = fetch.to {
            let value = self.values.entry(get).or_default();
            if value.len() != whole {
                let is_alone =
                    |read: &Read| !matches!(read.fetch.to, To::Value { get: other, .. } if other == get);
                assert!(self.reads.iter().all(is_alone), "the value is being written to");
                *value = vec![0; whole];
            }
        }
        self.posted.0 += 1;
        self.posted.1 += u64::from(fetch.offset < 4096);
        self.reads.push(Read { fetch, bytes: vec![0; fetch.len], left });
    }

    /// Reads some chunks of one read.
    pub fn go_on(&mut self, parts: usize, random: &mut impl FnMut(usize) -> usize) {
        let waiting: Vec<usize> =
            self.reads.iter().enumerate().filter(|(_, read)| !read.left.is_empty()).map(|(i, _)| i).collect();
        if waiting.is_empty() {
            return;
        }
        let at = if self.in_order { waiting[0] } else { waiting[random(waiting.len())] };
        for _ in 0..parts {
            let read = &mut self.reads[at];
            let Some((offset, len)) = read.left.pop() else { return };
            let from = (offset - read.fetch.offset) as usize;
            self.memory.copy_out(offset, &mut read.bytes[from..from + len]);
        }
    }

    /// Completes one finished read, if there is one; with `fails`, as failed.
    pub fn hand_in(
        &mut self,
        remote: &mut Remote<Vec<u8>, u64>,
        second: u32,
        fails: bool,
        random: &mut impl FnMut(usize) -> usize,
    ) -> bool {
        let over: Vec<usize> =
            self.reads.iter().enumerate().filter(|(_, read)| read.left.is_empty()).map(|(i, _)| i).collect();
        if over.is_empty() {
            return false;
        }
        let now = Now { second, ns: self.ns };
        let Read { fetch, bytes, .. } = self.reads.remove(over[random(over.len())]);
        match fetch.to {
            _ if fails => remote.take(fetch.id, Arrival::Failed, now),
            To::Probe if random(2) == 0 => remote.take(fetch.id, Arrival::Placed(&bytes), now),
            To::Buffer | To::Item(_) | To::Probe => remote.take(fetch.id, Arrival::Buffer(bytes), now),
            To::Value { get, at, .. } => {
                let value = self.values.get_mut(&get).expect("created when the chunk was posted");
                value[at..at + bytes.len()].copy_from_slice(&bytes);
                remote.take(fetch.id, Arrival::Placed(&bytes), now);
            }
        }
        true
    }

    /// Overwrites the bytes of an unfinished read at this offset.
    pub fn replace(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let Some(read) = self.reads.iter_mut().find(|read| read.fetch.offset == offset) else { return false };
        read.left.clear();
        let len = read.bytes.len().min(bytes.len());
        read.bytes[..len].copy_from_slice(&bytes[..len]);
        true
    }

    /// Runs all pending reads at once.
    pub fn run(&mut self, remote: &mut Remote<Vec<u8>, u64>, second: u32) {
        let mut first = |_| 0;
        loop {
            self.post(remote, &mut first);
            if self.reads.is_empty() {
                return;
            }
            self.finish(remote, second);
        }
    }

    /// Completes all reads in flight.
    pub fn finish(&mut self, remote: &mut Remote<Vec<u8>, u64>, second: u32) {
        let mut first = |_| 0;
        while self.reads.iter().any(|read| !read.left.is_empty()) {
            self.go_on(usize::MAX, &mut first);
        }
        while self.hand_in(remote, second, false, &mut first) {}
    }

    /// Returns the value assembled for this GET.
    pub fn take_value(&mut self, get: GetId) -> Vec<u8> {
        self.values.remove(&get).unwrap_or_default()
    }
}
