//! Access to the bytes of a region.
//!
//! Other processes and the server's other threads read the region while it is written. Words are therefore accessed
//! through atomics, and bytes through the two copy routines of this file. A copy that races with a writer yields
//! meaningless bytes, never undefined behaviour in the caller; the reader's validation (generation, slot, checksum)
//! rejects them. Two unsafe functions form a reference: [`Memory::bytes`] to bytes that cannot change while it lives,
//! those of a pinned or locked item and of a record that is not yet published; [`Memory::fill`] to bytes of a reservation,
//! for the kernel to write.
//!
//! Accesses of different widths overlap here, which Rust's memory model leaves undefined. On x86-64 the copies are
//! assembly, so the processor's rules apply: each aligned word arrives whole and in order. On other targets the copies
//! are atomics of the widest size that fits.

#[cfg(not(loom))]
pub use real::Memory;

#[cfg(loom)]
pub use model::Memory;

/// Panics for an access out of bounds. The caller checks untrusted offsets with [`Memory::contains`] first.
#[cold]
#[inline(never)]
fn out_of_bounds(offset: u64, len: u64, size: u64) -> ! {
    panic!("access of {len} bytes at offset {offset} is outside the region of {size} bytes")
}

#[cfg(not(loom))]
mod real {
    use std::mem::MaybeUninit;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

    use crate::kill_points::{around, in_halves};

    const LINE_BYTES: u64 = 64;

    /// A mapped region, borrowed from its mapping.
    #[derive(Clone, Debug)]
    pub struct Memory {
        base: NonNull<u8>,
        len: u64,
    }

    // SAFETY: the mapping outlives every `Memory` over it (contract of `new`), and all safe access is by atomics or by
    // the copy routines, which any thread may run at any time.
    unsafe impl Send for Memory {}
    // SAFETY: as for Send: shared access is by atomics and the copy routines too.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// The memory of `len` bytes at `base`.
        ///
        /// # Safety
        /// `base` is aligned to 64 bytes and points to `len` bytes that stay mapped, readable and (unless the caller
        /// only reads) writable for as long as the value or a copy of it lives, and no reference into them exists
        /// while they are written.
        pub unsafe fn new(base: NonNull<u8>, len: u64) -> Memory {
            assert_eq!(base.as_ptr() as usize % 64, 0, "a region is aligned to cache lines");
            Memory { base, len }
        }

        /// Returns the bytes in the region.
        #[inline]
        pub fn len(&self) -> u64 {
            self.len
        }

        /// Returns false: a region is never empty.
        #[inline]
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// Returns whether `len` bytes at `offset` lie in the region.
        #[inline]
        pub fn contains(&self, offset: u64, len: u64) -> bool {
            offset.checked_add(len).is_some_and(|end| end <= self.len)
        }

        #[inline]
        fn at(&self, offset: u64, len: u64) -> *mut u8 {
            if !self.contains(offset, len) {
                super::out_of_bounds(offset, len, self.len);
            }
            // SAFETY: offset <= len of the mapping, checked above, so the result is inside or one past it.
            unsafe { self.base.as_ptr().add(offset as usize) }
        }

        /// Returns the address of the `LEN` bytes at `offset`, a multiple of it; `LEN` is a power of two.
        #[inline]
        fn aligned<const LEN: u64>(&self, offset: u64) -> *mut u8 {
            const { assert!(LEN.is_power_of_two()) };
            assert!(offset.is_multiple_of(LEN), "word at offset {offset} is not aligned to {LEN}");
            // A multiple of LEN that is less than another one is so by LEN at least.
            if offset >= self.len & !(LEN - 1) {
                super::out_of_bounds(offset, LEN, self.len);
            }
            // SAFETY: offset + LEN <= len of the mapping, checked above.
            unsafe { self.base.as_ptr().add(offset as usize) }
        }

        #[inline]
        fn u64(&self, offset: u64) -> &AtomicU64 {
            // SAFETY: in bounds and aligned (`aligned`; base is 64-byte aligned), mapped for the life of self, and
            // only ever accessed by atomics or the copy routines.
            unsafe { AtomicU64::from_ptr(self.aligned::<8>(offset).cast()) }
        }

        #[inline]
        fn u32(&self, offset: u64) -> &AtomicU32 {
            // SAFETY: as in `u64`.
            unsafe { AtomicU32::from_ptr(self.aligned::<4>(offset).cast()) }
        }

        #[inline]
        fn u16(&self, offset: u64) -> &AtomicU16 {
            // SAFETY: as in `u64`.
            unsafe { AtomicU16::from_ptr(self.aligned::<2>(offset).cast()) }
        }

        /// Loads the 8-byte word at `offset` (a multiple of 8).
        #[inline]
        pub fn load(&self, offset: u64, order: Ordering) -> u64 {
            self.u64(offset).load(order)
        }

        /// Loads the words of the cache line at `offset` (a multiple of 64), in any order, each with acquire.
        #[inline]
        pub fn load_line(&self, offset: u64) -> [u64; 8] {
            let start = self.aligned::<LINE_BYTES>(offset);
            // SAFETY: the line is in bounds and aligned.
            unsafe { copy::line(start) }
        }

        /// Stores the 8-byte word at `offset` (a multiple of 8).
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn store(&self, offset: u64, value: u64, order: Ordering) {
            around(|| self.u64(offset).store(value, order));
        }

        /// Adds to the word at `offset`; returns the previous word.
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn fetch_add(&self, offset: u64, value: u64, order: Ordering) -> u64 {
            around(|| self.u64(offset).fetch_add(value, order))
        }

        /// Replaces the word at `offset` if it is `current`; the error is the actual value.
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn compare_exchange(
            &self,
            offset: u64,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            around(|| self.u64(offset).compare_exchange(current, new, success, failure))
        }

        /// Loads the 4-byte word at `offset` (a multiple of 4).
        #[inline]
        pub fn load_u32(&self, offset: u64, order: Ordering) -> u32 {
            self.u32(offset).load(order)
        }

        /// Stores the 4-byte word at `offset` (a multiple of 4).
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
            around(|| self.u32(offset).store(value, order));
        }

        /// Loads the 2-byte word at `offset` (a multiple of 2).
        #[inline]
        pub fn load_u16(&self, offset: u64, order: Ordering) -> u16 {
            self.u16(offset).load(order)
        }

        /// Stores the 2-byte word at `offset` (a multiple of 2).
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn store_u16(&self, offset: u64, value: u16, order: Ordering) {
            around(|| self.u16(offset).store(value, order));
        }

        /// Sets bits of the 2-byte word at `offset`; returns the previous word.
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn fetch_or_u16(&self, offset: u64, bits: u16, order: Ordering) -> u16 {
            around(|| self.u16(offset).fetch_or(bits, order))
        }

        /// Replaces the 2-byte word at `offset` if it is `current`.
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn compare_exchange_u16(
            &self,
            offset: u64,
            current: u16,
            new: u16,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u16, u16> {
            around(|| self.u16(offset).compare_exchange(current, new, success, failure))
        }

        /// Prefetches the cache line at `offset`.
        #[inline]
        pub fn prefetch(&self, offset: u64) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            if offset < self.len {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                let line = self.at(offset, 0) as *const i8;
                // SAFETY: a prefetch of any address is allowed, and this one is mapped.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = offset;
        }

        /// Prefetches all cache lines of `len` bytes at `offset`.
        #[inline]
        pub fn prefetch_range(&self, offset: u64, len: u64) {
            let mut line = offset / LINE_BYTES * LINE_BYTES;
            while line < offset.saturating_add(len) {
                self.prefetch(line);
                line += LINE_BYTES;
            }
        }

        /// Copies `dst.len()` bytes at `offset` out of the region. They may be torn; see the module documentation.
        #[inline]
        pub fn copy_out(&self, offset: u64, dst: &mut [u8]) {
            let src = self.at(offset, dst.len() as u64);
            // SAFETY: `src` is in bounds for the length, and `dst` is exclusively borrowed.
            unsafe { copy::load(src, dst.as_mut_ptr(), dst.len()) }
        }

        /// Returns `N` bytes at `offset`. They may be torn; see the module documentation.
        #[inline]
        pub fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
            let src = self.at(offset, N as u64);
            let mut bytes = MaybeUninit::<[u8; N]>::uninit();
            // SAFETY: `src` is in bounds for the length, and `bytes` is as long and ours.
            unsafe { copy::load(src, bytes.as_mut_ptr().cast(), N) };
            // SAFETY: all of them were just written.
            unsafe { bytes.assume_init() }
        }

        /// Returns whether the bytes at `offset` equal these. They may be torn; see the module documentation.
        #[inline]
        pub fn equals(&self, offset: u64, bytes: &[u8]) -> bool {
            let src = self.at(offset, bytes.len() as u64);
            let mut differ = 0;
            let mut compare = |at: usize, here: &[u8; 8]| {
                // SAFETY: `at + 8` is at most the length of these bytes, so `src` is in bounds for them.
                let there = unsafe { copy::word(src.wrapping_add(at)) };
                differ |= there ^ u64::from_ne_bytes(*here);
            };
            for (i, word) in bytes.as_chunks().0.iter().enumerate() {
                compare(8 * i, word);
            }
            match bytes.last_chunk() {
                // The last eight bytes, some of which may already have been compared.
                Some(last) => compare(bytes.len() - 8, last),
                None => {
                    let mut there = [0; 8];
                    // SAFETY: src is in bounds for the length, which is below eight.
                    unsafe { copy::load(src, there.as_mut_ptr(), bytes.len()) };
                    return there[..bytes.len()] == *bytes;
                }
            }
            differ == 0
        }

        /// Appends `len` bytes at `offset` to `dst`. They may be torn; see the module documentation.
        #[inline(always)]
        pub fn append_to(&self, offset: u64, len: usize, dst: &mut Vec<u8>) {
            let src = self.at(offset, len as u64);
            dst.reserve(len);
            let end = dst.spare_capacity_mut().as_mut_ptr().cast();
            // SAFETY: src is in bounds for the length; dst has room for it.
            unsafe { copy::load(src, end, len) };
            // SAFETY: these bytes were just written.
            unsafe { dst.set_len(dst.len() + len) };
        }

        /// Copies `src` into the region at `offset`. Readers may see it half done.
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn copy_in(&self, offset: u64, src: &[u8]) {
            let dst = self.at(offset, src.len() as u64);
            in_halves(src, |at, part| {
                // SAFETY: `dst` is in bounds for the length, and the part lies in it; `src` is borrowed, so it is not written.
                unsafe { copy::store(part.as_ptr(), dst.wrapping_add(at), part.len()) }
            });
        }

        /// Copies parts into the region, one after the other from `offset` on. Readers may see them half done.
        #[inline]
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn copy_in_parts<const N: usize>(&self, offset: u64, parts: [&[u8]; N]) {
            let len = parts.iter().map(|part| part.len() as u64).sum();
            let mut dst = self.at(offset, len);
            for part in parts {
                in_halves(part, |at, half| {
                    // SAFETY: dst is in bounds for this part and those after it; the part is borrowed, so it is not written.
                    unsafe { copy::store(half.as_ptr(), dst.wrapping_add(at), half.len()) };
                });
                dst = dst.wrapping_add(part.len());
            }
        }

        /// Copies within the region, between ranges that do not overlap.
        pub fn copy_within(&self, from: u64, to: u64, len: u64) {
            assert!(from + len <= to || to + len <= from, "ranges of a copy overlap");
            let mut chunk = [0u8; 4096];
            let mut done = 0;
            while done < len {
                let part = (len - done).min(chunk.len() as u64) as usize;
                self.copy_out(from + done, &mut chunk[..part]);
                self.copy_in(to + done, &chunk[..part]);
                done += part as u64;
            }
        }

        /// Sets `len` bytes at `offset` to zero; both are multiples of 8.
        #[cfg_attr(feature = "kill-points", track_caller)]
        pub fn zero(&self, offset: u64, len: u64) {
            assert!(len.is_multiple_of(8), "zeroing goes by words");
            for word in (offset..offset + len).step_by(8) {
                self.store(word, 0, Ordering::Relaxed);
            }
        }

        /// Returns a reference to the bytes, for the kernel to send or for a checksum.
        ///
        /// # Safety
        /// No thread or process writes these bytes while the slice lives: they belong to a published item whose segment
        /// is pinned or whose slot is locked, or to a record that is not yet published, and exclude its state word.
        #[inline]
        pub unsafe fn bytes<'a>(&self, offset: u64, len: usize) -> &'a [u8] {
            let start = self.at(offset, len as u64);
            // SAFETY: `at` checked the bounds, and `new` that the region stays mapped; the caller guarantees that
            // nothing writes these bytes while the slice lives.
            unsafe { std::slice::from_raw_parts(start, len) }
        }

        /// Lets `fill` have the kernel write into `len` bytes at `offset`.
        ///
        /// # Safety
        /// The bytes are the caller's alone to write: a reservation that is not yet committed. `fill` hands the slice to
        /// the kernel and neither reads nor writes it, as readers of what lay there before may still read it.
        pub unsafe fn fill<R>(&self, offset: u64, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
            let start = self.at(offset, len as u64);
            // SAFETY: `at` checked the bounds, and `new` that the region stays mapped and is initialized. Nothing else
            // writes the bytes, and late readers read them by assembly, whose result they discard.
            around(|| fill(unsafe { std::slice::from_raw_parts_mut(start, len) }))
        }

        /// Returns the address of `len` bytes at `offset`, for the kernel to receive into.
        #[inline]
        pub fn pointer(&self, offset: u64, len: u64) -> *mut u8 {
            self.at(offset, len)
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    mod copy;

    /// Copies by relaxed atomics.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    mod copy {
        use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

        /// The widest atomic access that is aligned at `shared` and has at most `left` bytes.
        fn widest(shared: *const u8, left: usize) -> usize {
            let at = shared as usize;
            if left >= 8 && at.is_multiple_of(8) {
                8
            } else if left >= 4 && at.is_multiple_of(4) {
                4
            } else {
                1
            }
        }

        macro_rules! moves {
            ($load:ident, $store:ident, $atomic:ty, $word:ty) => {
                /// # Safety
                /// `from` is aligned and readable for the word, `to` writable for it and not shared.
                unsafe fn $load(from: *const u8, to: *mut u8) {
                    // SAFETY: aligned and readable by contract; the region is only accessed by atomics.
                    let word = unsafe { <$atomic>::from_ptr(from.cast_mut().cast()) }.load(Ordering::Relaxed);
                    let to: *mut $word = to.cast();
                    // SAFETY: writable by contract.
                    unsafe { to.write_unaligned(word) };
                }

                /// # Safety
                /// `from` is readable for the word and not written, `to` aligned and writable for it.
                unsafe fn $store(from: *const u8, to: *mut u8) {
                    let from: *const $word = from.cast();
                    // SAFETY: readable by contract.
                    let word = unsafe { from.read_unaligned() };
                    // SAFETY: aligned and writable by contract; accessed as in the load.
                    unsafe { <$atomic>::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
                }
            };
        }

        moves!(load8, store8, AtomicU64, u64);
        moves!(load4, store4, AtomicU32, u32);
        moves!(load1, store1, AtomicU8, u8);

        macro_rules! loops {
            ($name:ident, $shared:expr, $eight:ident, $four:ident, $one:ident) => {
                /// # Safety
                /// `src` is readable and `dst` writable for `len` bytes; the side that is not the region's is not
                /// shared.
                pub unsafe fn $name(src: *const u8, dst: *mut u8, len: usize) {
                    let mut done = 0;
                    while done < len {
                        let (from, to) = (src.wrapping_add(done), dst.wrapping_add(done));
                        let width = widest($shared(from, to), len - done);
                        match width {
                            // SAFETY: eight bytes are left on both sides, aligned on the shared one.
                            8 => unsafe { $eight(from, to) },
                            // SAFETY: four bytes are left on both sides, aligned on the shared one.
                            4 => unsafe { $four(from, to) },
                            // SAFETY: a byte is left on both sides.
                            _ => unsafe { $one(from, to) },
                        }
                        done += width;
                    }
                }
            };
        }

        /// Loads eight bytes.
        ///
        /// # Safety
        /// `src` is readable for them; it need not be aligned.
        pub unsafe fn word(src: *const u8) -> u64 {
            let mut word = [0; 8];
            // SAFETY: readable by contract, and the word is ours.
            unsafe { load(src, word.as_mut_ptr(), 8) };
            u64::from_ne_bytes(word)
        }

        /// Loads eight words, each with acquire.
        ///
        /// # Safety
        /// `src` is readable for 64 bytes and aligned to them.
        pub unsafe fn line(src: *mut u8) -> [u64; 8] {
            std::array::from_fn(|i| {
                // SAFETY: i < 8, so the word is readable and aligned by contract; the region is only accessed by
                // atomics.
                unsafe { AtomicU64::from_ptr(src.cast::<u64>().wrapping_add(i)) }.load(Ordering::Acquire)
            })
        }

        loops!(load, |from: *const u8, _: *mut u8| from, load8, load4, load1);
        loops!(store, |_: *const u8, to: *mut u8| to.cast_const(), store8, store4, store1);
    }
}

#[cfg(loom)]
#[allow(missing_docs, reason = "the interface is documented where it is real")]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Ordering;
    use proptest::prelude::*;
    use std::ptr::NonNull;

    #[repr(align(4096))]
    struct Page([u8; 8192]);

    proptest! {
        #[test]
        fn copies_preserve_bytes_and_neighbours(
            offset in 0u64..4000,
            data in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(any::<u8>(), 0..2000),
            ],
            at in any::<prop::sample::Index>(),
        ) {
            let mut page = Box::new(Page([0xee; 8192]));
            let base = NonNull::new(page.0.as_mut_ptr()).expect("boxed");
            // SAFETY: the page outlives the memory, and nothing else accesses it.
            let memory = unsafe { Memory::new(base, 8192) };
            memory.copy_in(offset, &data);
            let mut back = vec![0; data.len()];
            memory.copy_out(offset, &mut back);
            prop_assert_eq!(&back, &data);
            let mut appended = b"x".to_vec();
            memory.append_to(offset, data.len(), &mut appended);
            prop_assert_eq!(&appended[1..], &data[..]);
            let mut around = [0u8; 1];
            memory.copy_out(offset + data.len() as u64, &mut around);
            prop_assert_eq!(around[0], 0xee);
            prop_assert!(memory.equals(offset, &data));
            let (first, rest) = data.split_at(at.index(data.len() + 1));
            memory.copy_in_parts(offset + 1, [first, rest]);
            prop_assert!(memory.equals(offset + 1, &data));
            let len = data.len().min(40);
            prop_assert_eq!(&memory.read::<40>(offset + 1)[..len], &data[..len]);
            memory.copy_in(offset, &data);
            let line = offset / 64 * 64;
            let words = memory.load_line(line);
            prop_assert!((0..8).all(|i| words[i] == memory.load(line + 8 * i as u64, Ordering::Acquire)));
            memory.copy_in(offset + data.len() as u64, &[0xee]);
            let mut other = data.clone();
            if let Some(byte) = other.get_mut(at.index(data.len().max(1))) {
                *byte ^= 1 << (at.index(8));
                prop_assert!(!memory.equals(offset, &other));
            }
            if offset > 0 {
                memory.copy_out(offset - 1, &mut around);
                prop_assert_eq!(around[0], 0xee);
            }
        }
    }

    #[test]
    fn long_copies_preserve_bytes_at_every_distance() {
        let mut page = Box::new(Page([0; 8192]));
        let base = NonNull::new(page.0.as_mut_ptr()).expect("boxed");
        // SAFETY: as above.
        let memory = unsafe { Memory::new(base, 8192) };
        // Half of the copies out write 0 to 31 bytes beyond where they read, modulo the page.
        let bytes: Vec<u8> = (0..4096u32 + 64).map(|i| ((i * 7) >> 3) as u8).collect();
        for (distance, len) in (0..64).flat_map(|distance| [768, 2_049, 4_096].map(|len| (distance, len))) {
            let data = &bytes[distance..][..len];
            memory.zero(0, 8192);
            memory.copy_in(32, data);
            let mut back = Page([0; 8192]);
            memory.copy_out(32, &mut back.0[distance..][..len]);
            assert_eq!(&back.0[distance..][..len], data, "{distance} {len}");
            assert!(back.0[distance + len..].iter().all(|byte| *byte == 0), "{distance} {len}");
            let mut after = vec![1; 8192 - 32 - len];
            memory.copy_out(32 + len as u64, &mut after);
            assert!(after.iter().all(|byte| *byte == 0), "{distance} {len}");
        }
    }

    #[test]
    fn words_are_in_bounds_or_refused() {
        let mut page = Box::new(Page([0; 8192]));
        let base = NonNull::new(page.0.as_mut_ptr()).expect("boxed");
        for len in 0..80 {
            // SAFETY: as above.
            let memory = unsafe { Memory::new(base, len) };
            let is_refused = |load: &dyn Fn(u64), offset: u64| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| load(offset))).is_err()
            };
            for offset in (0..80).chain(u64::MAX - 63..=u64::MAX) {
                let is_in =
                    |size: u64| offset % size == 0 && offset.checked_add(size).is_some_and(|end| end <= len);
                let word = |at| _ = memory.load(at, Ordering::Acquire);
                assert_eq!(is_refused(&word, offset), !is_in(8), "{offset} of {len}");
                let half = |at| _ = memory.load_u16(at, Ordering::Acquire);
                assert_eq!(is_refused(&half, offset), !is_in(2), "{offset} of {len}");
                let line = |at| _ = memory.load_line(at);
                assert_eq!(is_refused(&line, offset), !is_in(64), "{offset} of {len}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside the region")]
    fn out_of_bounds_access_is_rejected() {
        let mut page = Box::new(Page([0; 8192]));
        let base = NonNull::new(page.0.as_mut_ptr()).expect("boxed");
        // SAFETY: as above.
        let memory = unsafe { Memory::new(base, 8192) };
        memory.copy_out(8190, &mut [0; 4]);
    }
}
