//! A fabric that is made up: reads of a region are carried out in parts of a few bytes whenever it is told to go on, and
//! come in after that in any order.

use std::any::Any;
use std::collections::HashMap;

use fabcache_layout::Memory;
use fabcache_layout::reader::Remote;
use fabcache_layout::reader::remote::{Arrival, Fetch, Now, To};

/// Parts that a read is carried out in, at most: short ones word by word.
const PARTS_MAX: usize = 64;

/// Reads under way.
#[derive(Debug)]
pub struct Fabric {
    memory: Memory,
    in_order: bool,
    reads: Vec<Read>,
    values: HashMap<u64, Vec<u8>>,
    /// Reads carried out so far, and those of them at the region's header.
    pub posted: (u64, u64),
    /// What is to live as long as this.
    kept: Option<Box<dyn Any>>,
    /// The current time.
    pub ns: u64,
}

#[derive(Debug)]
struct Read {
    fetch: Fetch,
    bytes: Vec<u8>,
    /// Parts that are still to be read, as offsets in the region, and their lengths.
    left: Vec<(u64, usize)>,
}

impl Fabric {
    /// Of the region that is mapped here. In order: a read begins when the one posted before is over.
    pub fn new(memory: Memory, in_order: bool) -> Fabric {
        Fabric {
            memory,
            in_order,
            reads: Vec::new(),
            values: HashMap::new(),
            posted: (0, 0),
            kept: None,
            ns: 0,
        }
    }

    /// The same with what is to live as long.
    pub fn keeping(self, kept: Box<dyn Any>) -> Fabric {
        Fabric { kept: Some(kept), ..self }
    }

    /// Reads that did not come in.
    pub fn in_flight(&self) -> usize {
        self.reads.len()
    }

    /// The published line is being read.
    pub fn has_lines(&self) -> bool {
        self.reads.iter().any(|read| read.fetch.offset < 4096)
    }

    /// Values are being put together.
    pub fn has_values(&self) -> bool {
        self.reads.iter().any(|read| matches!(read.fetch.to, To::Value { .. }))
    }

    /// Posts all that is to be posted; `random` gives numbers below what it is asked for.
    pub fn post(&mut self, remote: &mut Remote<Vec<u8>>, random: &mut impl FnMut(usize) -> usize) {
        while let Some(fetch) = remote.next_fetch(self.ns) {
            self.post_one(fetch, random);
        }
    }

    /// Posts one.
    pub fn post_one(&mut self, fetch: Fetch, random: &mut impl FnMut(usize) -> usize) {
        let end = fetch.offset + fetch.len as u64;
        assert!(fetch.len > 0 && self.memory.contains(fetch.offset, fetch.len as u64), "{fetch:?}");
        let words = fetch.len.div_ceil(8).div_ceil(PARTS_MAX) as u64;
        // Cut at multiples of 8, wherever the first of them is.
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
        if let To::Value { token, whole, .. } = fetch.to {
            let value = self.values.entry(token).or_default();
            if value.len() != whole {
                let is_alone =
                    |read: &Read| !matches!(read.fetch.to, To::Value { token: other, .. } if other == token);
                assert!(self.reads.iter().all(is_alone), "the value is being written to");
                *value = vec![0; whole];
            }
        }
        self.posted.0 += 1;
        self.posted.1 += u64::from(fetch.offset < 4096);
        self.reads.push(Read { fetch, bytes: vec![0; fetch.len], left });
    }

    /// Carries out some parts of a read.
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

    /// Hands in one read that is over, if there is one; if it is to fail, as failed.
    pub fn hand_in(
        &mut self,
        remote: &mut Remote<Vec<u8>>,
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
            To::Buffer | To::Item { .. } | To::Probe => remote.take(fetch.id, Arrival::Buffer(bytes), now),
            To::Value { token, at, .. } => {
                let value = self.values.get_mut(&token).expect("it was made when this was posted");
                value[at..at + bytes.len()].copy_from_slice(&bytes);
                remote.take(fetch.id, Arrival::Placed(&bytes), now);
            }
        }
        true
    }

    /// Changes what a read that is under way brings, if it is one of this offset.
    pub fn replace(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let Some(read) = self.reads.iter_mut().find(|read| read.fetch.offset == offset) else { return false };
        read.left.clear();
        let len = read.bytes.len().min(bytes.len());
        read.bytes[..len].copy_from_slice(&bytes[..len]);
        true
    }

    /// Does all that is to be done now, without anything in between.
    pub fn run(&mut self, remote: &mut Remote<Vec<u8>>, second: u32) {
        let mut first = |_| 0;
        loop {
            self.post(remote, &mut first);
            if self.reads.is_empty() {
                return;
            }
            while self.reads.iter().any(|read| !read.left.is_empty()) {
                self.go_on(usize::MAX, &mut first);
            }
            while self.hand_in(remote, second, false, &mut first) {}
        }
    }

    /// The value that was put together for the GET with this token.
    pub fn take_value(&mut self, token: u64) -> Vec<u8> {
        self.values.remove(&token).unwrap_or_default()
    }
}
