//! Access to the bytes of a region.
//!
//! The region is memory that other processes (and the server's other threads) read while it is written, so no
//! reference to it is ever formed: words go through atomics, and bytes through the two copy routines here, which
//! are the only ones. A copy that races with a writer yields bytes of no meaning, never undefined behaviour in the
//! caller; the reader's validation (generation, slot, checksum) decides whether they count.
//!
//! Atomic accesses of different widths meet on the same bytes here. The Rust memory model leaves such mixtures
//! open; x86-64 and AArch64 define them, and the long copies are assembly for which the hardware's rules hold.

#[cfg(not(loom))]
pub use real::Memory;

#[cfg(loom)]
pub use model::Memory;

/// What an access is out of: the caller checks untrusted offsets with [`Memory::contains`] first.
#[cold]
#[inline(never)]
fn out_of_bounds(offset: u64, len: u64, size: u64) -> ! {
    panic!("access of {len} bytes at offset {offset} is outside the region of {size} bytes")
}

#[cfg(not(loom))]
mod real {
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    /// From this length on the processor's string move is at least as fast as the loop of words.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    const STRING_MOVE_BYTES_MIN: usize = 768;

    /// A mapped region, borrowed from whoever mapped it.
    #[derive(Clone, Debug)]
    pub struct Memory {
        base: NonNull<u8>,
        len: u64,
    }

    // SAFETY: the mapping outlives every `Memory` over it (contract of `new`), and all access is by atomics or by
    // the copy routines, which any thread may run at any time.
    unsafe impl Send for Memory {}
    // SAFETY: as for Send.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// The memory of `len` bytes at `base`.
        ///
        /// # Safety
        /// `base` is aligned to 64 bytes and points to `len` bytes that stay mapped, readable and (unless the caller
        /// only reads) writable for as long as the value or a copy of it lives, and nobody holds a reference into
        /// them while they are written.
        pub unsafe fn new(base: NonNull<u8>, len: u64) -> Memory {
            assert_eq!(base.as_ptr() as usize % 64, 0, "a region is aligned to cache lines");
            Memory { base, len }
        }

        /// Bytes in the region.
        #[inline]
        pub fn len(&self) -> u64 {
            self.len
        }

        /// A region is never empty; for form.
        #[inline]
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// Whether `len` bytes at `offset` lie in the region.
        #[inline]
        pub fn contains(&self, offset: u64, len: u64) -> bool {
            offset <= self.len && len <= self.len - offset
        }

        #[inline]
        fn at(&self, offset: u64, len: u64) -> *mut u8 {
            if !self.contains(offset, len) {
                super::out_of_bounds(offset, len, self.len);
            }
            // SAFETY: offset <= len of the mapping, checked above, so the result is inside or one past it.
            unsafe { self.base.as_ptr().add(offset as usize) }
        }

        #[inline]
        fn aligned<T>(&self, offset: u64) -> *mut T {
            let size = size_of::<T>() as u64;
            assert!(offset.is_multiple_of(size), "word at offset {offset} is not aligned to {size}");
            self.at(offset, size).cast()
        }

        #[inline]
        fn u64(&self, offset: u64) -> &AtomicU64 {
            // SAFETY: in bounds and aligned (`aligned`; base is 64-byte aligned), mapped for the life of self, and
            // only ever accessed by atomics or the copy routines.
            unsafe { AtomicU64::from_ptr(self.aligned(offset)) }
        }

        #[inline]
        fn u32(&self, offset: u64) -> &AtomicU32 {
            // SAFETY: as in `u64`.
            unsafe { AtomicU32::from_ptr(self.aligned(offset)) }
        }

        #[inline]
        fn u16(&self, offset: u64) -> &AtomicU16 {
            // SAFETY: as in `u64`.
            unsafe { AtomicU16::from_ptr(self.aligned(offset)) }
        }

        /// Loads the 8-byte word at `offset` (a multiple of 8).
        #[inline]
        pub fn load(&self, offset: u64, order: Ordering) -> u64 {
            self.u64(offset).load(order)
        }

        /// Stores the 8-byte word at `offset` (a multiple of 8).
        #[inline]
        pub fn store(&self, offset: u64, value: u64, order: Ordering) {
            self.u64(offset).store(value, order);
        }

        /// Replaces the word at `offset` if it is `current`; the error is what was there.
        #[inline]
        pub fn compare_exchange(
            &self,
            offset: u64,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.u64(offset).compare_exchange(current, new, success, failure)
        }

        /// Loads the 4-byte word at `offset` (a multiple of 4).
        #[inline]
        pub fn load_u32(&self, offset: u64, order: Ordering) -> u32 {
            self.u32(offset).load(order)
        }

        /// Stores the 4-byte word at `offset` (a multiple of 4).
        #[inline]
        pub fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
            self.u32(offset).store(value, order);
        }

        /// Loads the 2-byte word at `offset` (a multiple of 2).
        #[inline]
        pub fn load_u16(&self, offset: u64, order: Ordering) -> u16 {
            self.u16(offset).load(order)
        }

        /// Sets bits of the 2-byte word at `offset`; returns what was there.
        #[inline]
        pub fn fetch_or_u16(&self, offset: u64, bits: u16, order: Ordering) -> u16 {
            self.u16(offset).fetch_or(bits, order)
        }

        /// Replaces the 2-byte word at `offset` if it is `current`.
        #[inline]
        pub fn compare_exchange_u16(
            &self,
            offset: u64,
            current: u16,
            new: u16,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u16, u16> {
            self.u16(offset).compare_exchange(current, new, success, failure)
        }

        /// Asks the processor to bring the line at `offset` nearer.
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

        /// Copies `dst.len()` bytes at `offset` out of the region. They may be torn; see the module's words.
        #[inline]
        pub fn copy_out(&self, offset: u64, dst: &mut [u8]) {
            let src = self.at(offset, dst.len() as u64);
            // SAFETY: src is in bounds for the length, dst is ours alone.
            unsafe { load_bytes(src, dst.as_mut_ptr(), dst.len()) }
        }

        /// Appends `len` bytes at `offset` to `dst`. They may be torn; see the module's words.
        #[inline]
        pub fn append_to(&self, offset: u64, len: usize, dst: &mut Vec<u8>) {
            let src = self.at(offset, len as u64);
            dst.reserve(len);
            let end = dst.spare_capacity_mut().as_mut_ptr().cast();
            // SAFETY: src is in bounds for the length; dst has room for it.
            unsafe { load_bytes(src, end, len) };
            // SAFETY: these bytes were just written.
            unsafe { dst.set_len(dst.len() + len) };
        }

        /// Copies `src` into the region at `offset`. Readers may see it half done.
        #[inline]
        pub fn copy_in(&self, offset: u64, src: &[u8]) {
            let dst = self.at(offset, src.len() as u64);
            // SAFETY: dst is in bounds for the length; src is borrowed, so nobody writes it.
            unsafe { store_bytes(src.as_ptr(), dst, src.len()) }
        }

        /// Copies within the region, between ranges that do not overlap.
        pub fn copy_within(&self, from: u64, to: u64, len: u64) {
            assert!(from + len <= to || to + len <= from, "ranges of a copy overlap");
            let mut piece = [0u8; 4096];
            let mut done = 0;
            while done < len {
                let part = (len - done).min(piece.len() as u64) as usize;
                self.copy_out(from + done, &mut piece[..part]);
                self.copy_in(to + done, &piece[..part]);
                done += part as u64;
            }
        }

        /// Sets `len` bytes at `offset` to zero; both are multiples of 8.
        pub fn zero(&self, offset: u64, len: u64) {
            assert!(len.is_multiple_of(8), "zeroing goes by words");
            for word in (offset..offset + len).step_by(8) {
                self.store(word, 0, Ordering::Relaxed);
            }
        }

        /// The bytes themselves, for the kernel to send or for a checksum.
        ///
        /// # Safety
        /// Nobody writes these bytes while the slice lives: they belong to a published item whose segment is pinned
        /// or whose slot is locked, or to a record not yet published, and exclude its state word.
        #[inline]
        pub unsafe fn bytes<'a>(&self, offset: u64, len: usize) -> &'a [u8] {
            let start = self.at(offset, len as u64);
            // SAFETY: in bounds; not written meanwhile, and mapped as long, by this function's own contract.
            unsafe { std::slice::from_raw_parts(start, len) }
        }

        /// The address of `len` bytes at `offset`, for the kernel to receive into.
        #[inline]
        pub fn pointer(&self, offset: u64, len: u64) -> *mut u8 {
            self.at(offset, len)
        }
    }

    /// # Safety
    /// `src` is readable and `dst` writable for `len` bytes; `dst` is not shared.
    #[inline]
    unsafe fn load_bytes(src: *const u8, dst: *mut u8, len: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if len >= STRING_MOVE_BYTES_MIN {
            // SAFETY: the caller's contract is that of the instruction; the direction flag is clear by the ABI.
            unsafe { string_move(src, dst, len) };
            return;
        }
        let mut done = 0;
        while done < len {
            let (from, to) = (src.wrapping_add(done), dst.wrapping_add(done));
            done += match widest(from, len - done) {
                8 => {
                    // SAFETY: eight bytes are left on both sides, and `from` is aligned to eight.
                    unsafe { load8(from, to) };
                    8
                }
                4 => {
                    // SAFETY: four bytes are left on both sides, and `from` is aligned to four.
                    unsafe { load4(from, to) };
                    4
                }
                _ => {
                    // SAFETY: a byte is left on both sides.
                    unsafe { load1(from, to) };
                    1
                }
            };
        }
    }

    /// # Safety
    /// `src` is readable and `dst` writable for `len` bytes; `src` is not written meanwhile.
    #[inline]
    unsafe fn store_bytes(src: *const u8, dst: *mut u8, len: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if len >= STRING_MOVE_BYTES_MIN {
            // SAFETY: as in load_bytes.
            unsafe { string_move(src, dst, len) };
            return;
        }
        let mut done = 0;
        while done < len {
            let (from, to) = (src.wrapping_add(done), dst.wrapping_add(done));
            done += match widest(to, len - done) {
                8 => {
                    // SAFETY: eight bytes are left on both sides, and `to` is aligned to eight.
                    unsafe { store8(from, to) };
                    8
                }
                4 => {
                    // SAFETY: four bytes are left on both sides, and `to` is aligned to four.
                    unsafe { store4(from, to) };
                    4
                }
                _ => {
                    // SAFETY: a byte is left on both sides.
                    unsafe { store1(from, to) };
                    1
                }
            };
        }
    }

    /// The widest atomic access that is aligned at `shared` and has at most `left` bytes.
    #[inline]
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
            #[inline]
            unsafe fn $load(from: *const u8, to: *mut u8) {
                // SAFETY: aligned and readable by contract; the region is only accessed by atomics and string moves.
                let word = unsafe { <$atomic>::from_ptr(from.cast_mut().cast()) }.load(Ordering::Relaxed);
                let to: *mut $word = to.cast();
                // SAFETY: writable by contract.
                unsafe { to.write_unaligned(word) };
            }

            /// # Safety
            /// `from` is readable for the word and not written, `to` aligned and writable for it.
            #[inline]
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

    /// # Safety
    /// `src` is readable and `dst` writable for `len` bytes.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    unsafe fn string_move(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: rep movsb reads len bytes at src and writes them at dst, which the caller vouches for.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") src => _,
                inout("rdi") dst => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// The same interface over loom's atomics, one for each 8-byte word, so that models run the real code.
#[cfg(loom)]
mod model {
    use loom::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;

    /// A region of model words.
    #[derive(Clone, Debug)]
    pub struct Memory {
        words: Arc<Vec<AtomicU64>>,
    }

    impl Memory {
        /// A zeroed region of `len` bytes, a multiple of 8.
        pub fn zeroed(len: u64) -> Memory {
            Memory { words: Arc::new((0..len / 8).map(|_| AtomicU64::new(0)).collect()) }
        }

        /// Bytes in the region.
        pub fn len(&self) -> u64 {
            self.words.len() as u64 * 8
        }

        /// Whether `len` bytes at `offset` lie in the region.
        pub fn contains(&self, offset: u64, len: u64) -> bool {
            offset <= self.len() && len <= self.len() - offset
        }

        fn word(&self, offset: u64) -> &AtomicU64 {
            if !self.contains(offset, 1) {
                super::out_of_bounds(offset, 1, self.len());
            }
            &self.words[(offset / 8) as usize]
        }

        pub fn load(&self, offset: u64, order: Ordering) -> u64 {
            assert!(offset.is_multiple_of(8));
            self.word(offset).load(order)
        }

        pub fn store(&self, offset: u64, value: u64, order: Ordering) {
            assert!(offset.is_multiple_of(8));
            self.word(offset).store(value, order);
        }

        pub fn compare_exchange(
            &self,
            offset: u64,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            assert!(offset.is_multiple_of(8));
            self.word(offset).compare_exchange(current, new, success, failure)
        }

        pub fn load_u32(&self, offset: u64, order: Ordering) -> u32 {
            (self.word(offset).load(order) >> (offset % 8 * 8)) as u32
        }

        pub fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
            let shift = offset % 8 * 8;
            self.update(offset, order, |word| word & !(0xffff_ffff << shift) | u64::from(value) << shift);
        }

        pub fn load_u16(&self, offset: u64, order: Ordering) -> u16 {
            (self.word(offset).load(order) >> (offset % 8 * 8)) as u16
        }

        pub fn fetch_or_u16(&self, offset: u64, bits: u16, order: Ordering) -> u16 {
            let shift = offset % 8 * 8;
            (self.word(offset).fetch_or(u64::from(bits) << shift, order) >> shift) as u16
        }

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
                match self.word(offset).compare_exchange(word, next, success, failure) {
                    Ok(_) => return Ok(current),
                    Err(other) => word = other,
                }
            }
        }

        pub fn prefetch(&self, _offset: u64) {}

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

        pub fn append_to(&self, offset: u64, len: usize, dst: &mut Vec<u8>) {
            let start = dst.len();
            dst.resize(start + len, 0);
            self.copy_out(offset, &mut dst[start..]);
        }

        pub fn copy_in(&self, offset: u64, src: &[u8]) {
            let mut done = 0;
            while done < src.len() {
                let at = offset + done as u64;
                let start = (at % 8) as usize;
                let part = (8 - start).min(src.len() - done);
                let bytes = &src[done..done + part];
                if part == 8 {
                    let word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                    self.word(at).store(word, Ordering::Relaxed);
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

        pub fn copy_within(&self, from: u64, to: u64, len: u64) {
            let mut bytes = vec![0; len as usize];
            self.copy_out(from, &mut bytes);
            self.copy_in(to, &bytes);
        }

        pub fn zero(&self, offset: u64, len: u64) {
            for word in (offset..offset + len).step_by(8) {
                self.store(word, 0, Ordering::Relaxed);
            }
        }

        fn update(&self, offset: u64, order: Ordering, change: impl Fn(u64) -> u64) {
            let mut word = self.word(offset).load(Ordering::Relaxed);
            while let Err(other) =
                self.word(offset).compare_exchange(word, change(word), order, Ordering::Relaxed)
            {
                word = other;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ptr::NonNull;

    #[repr(align(64))]
    struct Page([u8; 8192]);

    proptest! {
        #[test]
        fn copies_keep_bytes_and_neighbours(offset in 0u64..4000, data in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut page = Box::new(Page([0xee; 8192]));
            let base = NonNull::new(page.0.as_mut_ptr()).expect("boxed");
            // SAFETY: the page outlives the memory, and nothing else touches it.
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
            if offset > 0 {
                memory.copy_out(offset - 1, &mut around);
                prop_assert_eq!(around[0], 0xee);
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside the region")]
    fn out_of_bounds_is_refused() {
        let mut page = Box::new(Page([0; 8192]));
        let base = NonNull::new(page.0.as_mut_ptr()).expect("boxed");
        // SAFETY: as above.
        let memory = unsafe { Memory::new(base, 8192) };
        memory.copy_out(8190, &mut [0; 4]);
    }
}
