//! The same interface over loom's atomics, one for each 8-byte word, so that models run the real code.

use std::sync::Arc;

use crate::kill_points::around;
use crate::sync::{AtomicU64, Ordering};

/// A region of model words.
#[derive(Clone, Debug)]
pub struct Memory {
    words: Arc<Vec<Option<AtomicU64>>>,
}

impl Memory {
    /// A zeroed region of `len` bytes, a multiple of 8.
    pub fn zeroed(len: u64) -> Memory {
        Memory::sparse(len, |_| true)
    }

    /// As [`Memory::zeroed`], without the words that the model never uses, because each word costs time in every
    /// execution: `is_used` is called with their offsets.
    pub fn sparse(len: u64, is_used: impl Fn(u64) -> bool) -> Memory {
        let word = |i| is_used(i * 8).then(|| AtomicU64::new(0));
        Memory { words: Arc::new((0..len / 8).map(word).collect()) }
    }

    /// Returns the bytes in the region.
    pub fn len(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns whether `len` bytes at `offset` lie in the region.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset <= self.len() && len <= self.len() - offset
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        if !self.contains(offset, 1) {
            super::out_of_bounds(offset, 1, self.len());
        }
        self.words[(offset / 8) as usize].as_ref().expect("a word that the model uses")
    }

    pub fn load(&self, offset: u64, order: Ordering) -> u64 {
        assert!(offset.is_multiple_of(8));
        self.word(offset).load(order)
    }

    /// As many words as a bucket has in models.
    pub fn load_line<const N: usize>(&self, offset: u64) -> [u64; N] {
        std::array::from_fn(|i| self.load(offset + 8 * i as u64, Ordering::Acquire))
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn store(&self, offset: u64, value: u64, order: Ordering) {
        assert!(offset.is_multiple_of(8));
        around(|| self.word(offset).store(value, order));
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn fetch_add(&self, offset: u64, value: u64, order: Ordering) -> u64 {
        assert!(offset.is_multiple_of(8));
        around(|| self.word(offset).fetch_add(value, order))
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn compare_exchange(
        &self,
        offset: u64,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        assert!(offset.is_multiple_of(8));
        around(|| self.word(offset).compare_exchange(current, new, success, failure))
    }

    pub fn load_u32(&self, offset: u64, order: Ordering) -> u32 {
        (self.word(offset).load(order) >> (offset % 8 * 8)) as u32
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
        let shift = offset % 8 * 8;
        self.update(offset, order, |word| word & !(0xffff_ffff << shift) | u64::from(value) << shift);
    }

    pub fn load_u16(&self, offset: u64, order: Ordering) -> u16 {
        (self.word(offset).load(order) >> (offset % 8 * 8)) as u16
    }

    /// Stores a part of a model word, whose other parts may change meanwhile.
    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn store_u16(&self, offset: u64, value: u16, order: Ordering) {
        let load = || self.load_u16(offset, Ordering::Relaxed);
        while self.compare_exchange_u16(offset, load(), value, order, Ordering::Relaxed).is_err() {}
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn fetch_or_u16(&self, offset: u64, bits: u16, order: Ordering) -> u16 {
        let shift = offset % 8 * 8;
        (around(|| self.word(offset).fetch_or(u64::from(bits) << shift, order)) >> shift) as u16
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn compare_exchange_u16(
        &self,
        offset: u64,
        current: u16,
        new: u16,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u16, u16> {
        let shift = offset % 8 * 8;
        let mut word = self.word(offset).load(Ordering::Relaxed);
        loop {
            if (word >> shift) as u16 != current {
                return Err((word >> shift) as u16);
            }
            let next = word & !(0xffff << shift) | u64::from(new) << shift;
            match around(|| self.word(offset).compare_exchange(word, next, success, failure)) {
                Ok(_) => return Ok(current),
                Err(other) => word = other,
            }
        }
    }

    pub fn prefetch(&self, _offset: u64) {}

    pub fn prefetch_range(&self, _offset: u64, _len: u64) {}

    pub fn copy_out(&self, offset: u64, dst: &mut [u8]) {
        let mut done = 0;
        while done < dst.len() {
            let at = offset + done as u64;
            let word = self.word(at).load(Ordering::Relaxed).to_le_bytes();
            let start = (at % 8) as usize;
            let part = (8 - start).min(dst.len() - done);
            dst[done..done + part].copy_from_slice(&word[start..start + part]);
            done += part;
        }
    }

    pub fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.copy_out(offset, &mut bytes);
        bytes
    }

    pub fn equals(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut there = vec![0; bytes.len()];
        self.copy_out(offset, &mut there);
        there == bytes
    }

    pub fn append_to(&self, offset: u64, len: usize, dst: &mut Vec<u8>) {
        let start = dst.len();
        dst.resize(start + len, 0);
        self.copy_out(offset, &mut dst[start..]);
    }

    /// # Safety
    /// As above; nothing in the model depends on it.
    pub unsafe fn fill<R>(&self, offset: u64, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = vec![0; len];
        let result = fill(&mut bytes);
        self.copy_in(offset, &bytes);
        result
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn copy_in(&self, offset: u64, src: &[u8]) {
        let mut done = 0;
        while done < src.len() {
            let at = offset + done as u64;
            let start = (at % 8) as usize;
            let part = (8 - start).min(src.len() - done);
            let bytes = &src[done..done + part];
            if part == 8 {
                let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                around(|| self.word(at).store(word, Ordering::Relaxed));
            } else {
                self.update(at, Ordering::Relaxed, |word| {
                    let mut old = word.to_le_bytes();
                    old[start..start + part].copy_from_slice(bytes);
                    u64::from_le_bytes(old)
                });
            }
            done += part;
        }
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn copy_in_parts<const N: usize>(&self, offset: u64, parts: [&[u8]; N]) {
        self.copy_in(offset, &parts.concat());
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn copy_within(&self, from: u64, to: u64, len: u64) {
        let mut bytes = vec![0; len as usize];
        self.copy_out(from, &mut bytes);
        self.copy_in(to, &bytes);
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    pub fn zero(&self, offset: u64, len: u64) {
        for word in (offset..offset + len).step_by(8) {
            self.store(word, 0, Ordering::Relaxed);
        }
    }

    #[cfg_attr(feature = "kill-points", track_caller)]
    fn update(&self, offset: u64, order: Ordering, change: impl Fn(u64) -> u64) {
        let mut word = self.word(offset).load(Ordering::Relaxed);
        while let Err(other) =
            around(|| self.word(offset).compare_exchange(word, change(word), order, Ordering::Relaxed))
        {
            word = other;
        }
    }
}
