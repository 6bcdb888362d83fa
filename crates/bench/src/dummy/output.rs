//! Unsent responses.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

use fabcache_transport::Link;

use crate::items::Items;

/// Longer parts of values are sent without a copy.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// Maximum number of parts per send.
const PARTS_MAX: usize = 64;

/// Copied bytes, interleaved with parts of the item pool.
#[derive(Debug, Default)]
pub struct Output {
    /// The copied bytes.
    pub bytes: Vec<u8>,
    /// Parts of the item pool, each with the offset in `bytes` that it precedes.
    parts: VecDeque<(usize, Range<usize>)>,
    /// How much of `bytes` is sent.
    sent: usize,
}

impl Output {
    /// Returns whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.parts.is_empty()
    }

    /// Appends `len` bytes of an item's value.
    #[inline]
    pub fn value(&mut self, items: &Items, number: u64, len: usize) {
        let (begin, parts) = items.pieces(number, len);
        self.bytes.extend_from_slice(begin.as_ref());
        for part in parts {
            if part.len() > COPIED_BYTES_MAX {
                self.parts.push_back((self.bytes.len(), part));
            } else {
                self.bytes.extend_from_slice(items.piece(part));
            }
        }
    }

    /// Moves everything to `all`, replacing its contents.
    pub fn take(&mut self, items: &Items, all: &mut Vec<u8>) {
        all.clear();
        let mut from = std::mem::take(&mut self.sent);
        for (at, part) in self.parts.drain(..) {
            all.extend_from_slice(&self.bytes[from..at]);
            all.extend_from_slice(items.piece(part));
            from = at;
        }
        all.extend_from_slice(&self.bytes[from..]);
        self.bytes.clear();
    }

    /// Sends what the link accepts; returns whether that was all.
    ///
    /// # Errors
    /// The link is broken.
    pub fn send(&mut self, items: &Items, link: &mut dyn Link) -> io::Result<bool> {
        while !self.is_empty() {
            let sent = if self.parts.is_empty() {
                link.send(&[IoSlice::new(&self.bytes[self.sent..])])?
            } else {
                link.send(&self.slices(items))?
            };
            if sent == 0 {
                return Ok(false);
            }
            self.advance(sent);
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }

    fn slices<'a>(&'a self, items: &'a Items) -> Vec<IoSlice<'a>> {
        let mut slices = Vec::with_capacity(2 * self.parts.len().min(PARTS_MAX) + 1);
        let mut from = self.sent;
        for (at, part) in self.parts.iter().take(PARTS_MAX) {
            if from < *at {
                slices.push(IoSlice::new(&self.bytes[from..*at]));
                from = *at;
            }
            slices.push(IoSlice::new(items.piece(part.clone())));
        }
        if self.parts.len() <= PARTS_MAX && from < self.bytes.len() {
            slices.push(IoSlice::new(&self.bytes[from..]));
        }
        slices
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let until = self.parts.front().map_or(self.bytes.len(), |(at, _)| *at);
            let bytes = count.min(until - self.sent);
            self.sent += bytes;
            count -= bytes;
            let Some((_, part)) = self.parts.front_mut().filter(|_| count > 0) else { return };
            let taken = count.min(part.len());
            part.start += taken;
            count -= taken;
            if part.start == part.end {
                self.parts.pop_front();
            }
        }
    }
}
